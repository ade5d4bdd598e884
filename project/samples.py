"""Create the samples of the demo, so that no page is empty: a task that will fail, one for
tomorrow, one in a queue that is paused, and a schedule."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from tasks.conf import task_settings
from tasks.dashboard.queue_actions import QUEUE_ACTIONS
from tasks.models import Queue, Schedule, Task
from tasks.sample import SLEEP

REPORTS = "reports"


def seed() -> None:
    """Make them, once for a database: what a visitor did to them stays done."""
    if Schedule.objects.filter(name="demo.nap").exists():
        return
    if REPORTS in task_settings.QUEUES:
        # Before the rest: the entry of the audit is committed before the pause.
        reason = {"reason": "The report server is being moved."}
        rows = Queue.objects.known(REPORTS)
        QUEUE_ACTIONS["pause"].perform(rows, {REPORTS: None}, reason, user="demo", via="command")
    _make_rows()


@transaction.atomic
def _make_rows() -> None:
    nap = {"sleep_duration_seconds": 2}
    Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": -1})  # its handler gives up
    Task.objects.enqueue(SLEEP, nap, delay=timedelta(days=1))
    if REPORTS in task_settings.QUEUES:
        Task.objects.enqueue(SLEEP, nap, queue=REPORTS)
    Schedule.objects.create(
        name="demo.nap", task_name=SLEEP, task_data=nap, every=timedelta(minutes=1)
    )
