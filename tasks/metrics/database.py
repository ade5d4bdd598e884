"""Read figures of tasks from the database. Counts go over partial indexes: of tasks that wait, run,
or have failed, but never of all that ever existed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from django.db.models import Count, F, Min, Q
from django.db.models.functions import Coalesce

from leasing.functions import DbNow, database_now
from leasing.metrics.database import Family, Figure
from tasks.conf import task_settings
from tasks.maintenance.depths import Depth, count_depths
from tasks.models import (
    OutboxMessage,
    Queue,
    Schedule,
    Task,
    Worker,
    WorkerRole,
    WorkerState,
)

QUEUE = "queue"


@cache
def figures() -> Sequence[Figure]:
    """Of tasks."""
    return [
        Figure("waiting tasks", _waiting),
        Figure("running tasks", _running),
        Figure("failed tasks", _failed),
        Figure("queues and workers", _workers),
        Figure("schedules", _schedules),
        Figure("outbox", _outbox),
    ]


def _names() -> set[str]:
    """Every queue that is known: those without tasks have figures of 0."""
    known = Queue.objects.home().values_list("name", flat=True)
    return {*task_settings.QUEUES, *known}


def _waiting() -> list[Family]:
    ready = Family("tasks_queue_ready", "Due tasks.", QUEUE)
    scheduled = Family(
        "tasks_queue_scheduled", "Tasks for later, including waiting retries.", QUEUE
    )
    oldest = Family(
        "tasks_queue_oldest_ready_age_seconds",
        "How long the oldest due task has been due, also without a handler; 0: none.",
        QUEUE,
    )
    now = database_now(Task.objects.home().db)
    depths = count_depths()
    for queue in sorted({*_names(), *depths}):
        depth = depths.get(queue, Depth())
        since = depth.due_since
        ready.add(depth.ready, queue)
        scheduled.add(depth.scheduled, queue)
        oldest.add(max(0.0, (now - since).total_seconds()) if since else 0.0, queue)
    return [ready, scheduled, oldest]


def _running() -> list[Family]:
    running = Family("tasks_queue_running", "Claimed tasks, including orphans.", QUEUE)
    orphans = Family(
        "tasks_orphans", "Running tasks whose lease expired or whose progress is overdue.", QUEUE
    )
    oldest = Family(
        "tasks_oldest_heartbeat_age_seconds",
        "Longest time since a running task's last heartbeat or claim; 0: none runs.",
        QUEUE,
    )
    rows = Task.objects.home().running().order_by()
    sign_of_life = Coalesce(F("renewed_at"), F("acquired_at"))
    counted = rows.values_list("queue").annotate(count=Count("pk"), since=Min(sign_of_life))
    now = database_now(rows.db)
    found = {queue: values for queue, *values in counted}
    lapsed = dict(rows.lapsed().values_list("queue").annotate(count=Count("pk")))
    for queue in sorted({*_names(), *found}):
        count, since = found.get(queue, (0, None))
        running.add(count, queue)
        orphans.add(lapsed.get(queue, 0), queue)
        oldest.add(max(0.0, (now - since).total_seconds()) if since else 0.0, queue)
    return [running, orphans, oldest]


def _failed() -> list[Family]:
    # Both, for the index that has them has both.
    failed = Task.objects.home().failed().filter(processed_at__isnull=False).count()
    undoing = Task.objects.home().failed().filter(compensation="").count()
    return [
        Family("tasks_failed_current", "Tasks that failed for good.").add(failed),
        Family("tasks_compensations_failed", "Of these, compensations.").add(undoing),
    ]


def _workers() -> list[Family]:
    seen: list[Any] = list(Worker.objects.home().with_state())
    by_state = Family("tasks_workers", "Processes that were seen within a day.", "role", "state")
    for role in WorkerRole:
        for state in WorkerState:
            alike = [each for each in seen if (each.role, each.state) == (role, state)]
            by_state.add(len(alike), role.value, state.value)
    at_work = [each for each in seen if each.state in (WorkerState.LIVE, WorkerState.LATE)]
    recovering = Family("tasks_recovering_workers", "Live processes that run recovery.")
    recovering.add(sum(each.sweeps for each in at_work))
    served = Family("tasks_queue_workers", "Live workers that serve the queue.", QUEUE)
    paused = Family("tasks_queue_paused", "1: an operator paused it.", QUEUE)
    stopped = set(Queue.objects.home().paused().values_list("name", flat=True))
    for queue in sorted(_names()):
        served.add(sum(queue in each.queues for each in at_work), queue)
        paused.add(queue in stopped, queue)
    return [by_state, recovering, served, paused]


def _schedules() -> list[Family]:
    schedules = Schedule.objects.home()
    late = schedules.filter(paused_at=None, next_at__lt=DbNow() - Schedule.OVERDUE_AFTER)
    what = "Schedules with a slot that has passed and was not served."
    return [Family("tasks_schedules_overdue", what).add(late.count())]


def _outbox() -> list[Family]:
    relays = Family("tasks_relays", "Live relays.")
    messages = Family("tasks_outbox_pending", "Messages of the outbox to be published.")
    failing = Family("tasks_outbox_failing", "Of these, messages that failed ten times or more.")
    oldest = Family(
        "tasks_outbox_oldest_age_seconds",
        "How long the oldest message has waited to be published; 0: none waits.",
    )
    rows = OutboxMessage.objects.home().pending().order_by()
    counted = rows.aggregate(
        count=Count("pk"), failing=Count("pk", filter=Q(failures__gte=10)), since=Min("created_at")
    )
    since = counted["since"]
    messages.add(counted["count"])
    failing.add(counted["failing"])
    oldest.add(max(0.0, (database_now(rows.db) - since).total_seconds()) if since else 0.0)
    if task_settings.CELERY_QUEUES or counted["count"]:
        relays.add(Worker.objects.home().present().filter(role=WorkerRole.RELAY).count())
    return [relays, messages, failing, oldest]
