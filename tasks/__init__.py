"""A durable task queue whose running tasks are leased rows.

from tasks import handler

@handler("reports.build")
def build(ctx, report_id):
    ...

Task.objects.enqueue("reports.build", {"report_id": 42})
"""

from tasks.declarations import schedule
from tasks.registry import handler

__all__ = ["handler", "schedule"]
