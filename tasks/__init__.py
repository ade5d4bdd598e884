"""A durable task queue whose running tasks are leased rows.

from tasks import handler

@handler("reports.build")
def build(ctx, report_id):
    ...

Task.objects.enqueue("reports.build", {"report_id": 42})
"""

from tasks.registry import handler
from tasks.scheduling.declarations import schedule

__all__ = ["handler", "schedule"]
