"""Signs of tasks, attempts, queues, workers and the generator. See ``leasing.web.badges``."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from leasing.web.badges import LATE, UNKNOWN, Sign, is_late
from tasks.models import AttemptOutcome, OutboxMessage, Queue, Task, TaskStatus, WorkerState

READY: Final = Sign("ready", "mute", "circle", "○")
SCHEDULED: Final = Sign("scheduled", "mute", "clock", "◷")
RETRYING: Final = Sign("retrying", "warn", "retry", "↻")
RUNNING: Final = Sign("running", "info", "play", "▶")
STUCK: Final = Sign("stuck", "crit", "alert", "▲")
SUCCEEDED: Final = Sign("succeeded", "ok", "check", "✓")
FAILED: Final = Sign("failed", "crit", "cross", "✕")
CANCELLED: Final = Sign("cancelled", "mute", "slash", "⊘")

TASK_SIGNS: Final = {
    TaskStatus.READY: READY,
    TaskStatus.RUNNING: RUNNING,
    TaskStatus.SUCCEEDED: SUCCEEDED,
    TaskStatus.FAILED: FAILED,
    TaskStatus.CANCELLED: CANCELLED,
}

ATTEMPT_SIGNS: Final = {
    AttemptOutcome.FAILED: Sign("failed", "crit", "cross", "✕"),
    AttemptOutcome.LOST: Sign("lost", "warn", "alert", "▲"),
    AttemptOutcome.RETURNED: Sign("given back", "mute", "unlock", "◌"),
    AttemptOutcome.SNOOZED: Sign("postponed", "mute", "clock", "◷"),
    AttemptOutcome.CANCELLED: CANCELLED,
}

WORKER_SIGNS: Final = {
    WorkerState.LIVE: Sign("live", "ok", "check", "●"),
    WorkerState.LATE: LATE,
    WorkerState.GONE: Sign("gone", "crit", "alert", "▲"),
    WorkerState.STOPPED: Sign("stopped", "mute", "stop", "■"),
}

GENERATOR_SIGNS: Final = {
    "RUNNING": Sign("running", "ok", "play", "▶"),
    "STARTED": Sign("starting", "info", "clock", "◷"),
    "STOPPED": Sign("stopped", "mute", "stop", "■"),
}

OPEN: Final = Sign("open", "ok", "check", "●")
PAUSED: Final = Sign("paused", "warn", "pause", "‖")
UNSERVED: Final = Sign("no worker", "crit", "alert", "▲")

PENDING: Final = Sign("pending", "mute", "circle", "○")
REFUSED: Final = Sign("refused", "crit", "cross", "✕")
PUBLISHED: Final = Sign("published", "ok", "check", "✓")

#: How grave a diagnosis is.
SEVERITY_SIGNS: Final = {
    "ok": Sign("OK", "ok", "check", "✓"),
    "info": Sign("info", "info", "info", "i"),
    "warning": Sign("warning", "warn", "alert", "!"),
    "critical": Sign("critical", "crit", "alert", "▲"),
}


def queue_sign(queue: Queue) -> Sign:
    return OPEN if queue.paused_at is None else PAUSED


def task_sign(task: Task, now: datetime) -> Sign:
    """The sign of ``task`` at ``now``, which is the database's clock."""
    if task.status == TaskStatus.RUNNING:
        if task.expires_at <= now or task.stalled_for(now):
            return STUCK
        return LATE if is_late(task, now) else RUNNING
    if task.status == TaskStatus.READY and task.scheduled_at > now:
        return RETRYING if task.attempts else SCHEDULED
    return TASK_SIGNS.get(TaskStatus(task.status), UNKNOWN)


def message_sign(message: OutboxMessage) -> Sign:
    """What became of a message of the outbox."""
    if message.published_at:
        return PUBLISHED
    return REFUSED if message.failures else PENDING
