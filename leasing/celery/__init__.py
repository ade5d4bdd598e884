"""For users of Celery: tasks that run under a lease, and a beat that may run on every node.

@app.task(base=LeasedTask, bind=True, resource="sync:{account}", when_held="skip")
def sync(self, account):
    for page in pages(account):
        self.request.hold.ensure()
        write(page, self.request.fencing_token)

celery -A project beat -S leasing.celery:LeaderScheduler
"""

from __future__ import annotations

try:
    import celery  # noqa: F401
except ImportError as error:
    raise ImportError("leasing.celery needs Celery: install django-leasing[celery]") from error

from leasing.celery.beat import LeaderMixin, LeaderScheduler
from leasing.celery.task import LeasedTask, is_skipped

__all__ = ["LeaderMixin", "LeaderScheduler", "LeasedTask", "is_skipped"]
