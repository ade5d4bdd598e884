"""Signs of tasks, attempts, queues, workers and the generator. See ``leasing.web.badges``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from leasing.web.badges import LATE, UNKNOWN, Badge, is_late
from tasks.models import AttemptOutcome, OutboxMessage, Queue, Task, TaskStatus, Worker, WorkerState

READY: Final = Badge("ready", "mute", "circle", "○")
SCHEDULED: Final = Badge("scheduled", "mute", "clock", "◷")
#: Scheduled after an attempt: one word for one state.
RETRYING: Final = Badge("scheduled", "warn", "retry", "↻")
RUNNING: Final = Badge("running", "info", "play", "▶")
STUCK: Final = Badge("stuck", "crit", "alert", "▲")
SUCCEEDED: Final = Badge("succeeded", "ok", "check", "✓")
FAILED: Final = Badge("failed", "crit", "cross", "✕")
CANCELLED: Final = Badge("cancelled", "mute", "slash", "⊘")

TASK_BADGES: Final = {
    TaskStatus.READY: READY,
    TaskStatus.RUNNING: RUNNING,
    TaskStatus.SUCCEEDED: SUCCEEDED,
    TaskStatus.FAILED: FAILED,
    TaskStatus.CANCELLED: CANCELLED,
}

ATTEMPT_BADGES: Final = {
    AttemptOutcome.FAILED: Badge("failed", "crit", "cross", "✕"),
    AttemptOutcome.LOST: Badge("lost", "warn", "alert", "▲"),
    AttemptOutcome.RETURNED: Badge("given back", "mute", "unlock", "◌"),
    AttemptOutcome.SNOOZED: Badge("postponed", "mute", "clock", "◷"),
    AttemptOutcome.CANCELLED: CANCELLED,
}

#: Badges of the events of a trace.
EVENT_BADGES: Final[Mapping[str, Badge]] = {
    **{outcome.value: badge for outcome, badge in ATTEMPT_BADGES.items()},
    "enqueued": Badge("enqueued", "mute", "circle", "○"),
    "claimed": Badge("claimed", "info", "play", "▶"),
    "renewed": Badge("renewed", "mute", "retry", "↻"),
    "progress": Badge("progress", "mute", "info", "i"),
    "step": Badge("step done", "ok", "check", "✓"),
    "refused": Badge("refused", "warn", "shield", "!"),
    "cancel_requested": Badge("asked to stop", "warn", "slash", "⊘"),
    "succeeded": SUCCEEDED,
    "ended": Badge("ended", "mute", "stop", "■"),
}

WORKER_BADGES: Final = {
    WorkerState.LIVE: Badge("live", "ok", "check", "●"),
    WorkerState.LATE: LATE,
    WorkerState.GONE: Badge("gone", "crit", "alert", "▲"),
    WorkerState.STOPPED: Badge("stopped", "mute", "stop", "■"),
}

#: Of a worker whose death its parent has seen.
DIED: Final = Badge("died", "crit", "cross", "✕")

GENERATOR_BADGES: Final = {
    "RUNNING": Badge("running", "ok", "play", "▶"),
    "STARTED": Badge("starting", "info", "clock", "◷"),
    "STOPPED": Badge("stopped", "mute", "stop", "■"),
}

OPEN: Final = Badge("open", "ok", "check", "●")
PAUSED: Final = Badge("paused", "warn", "pause", "‖")
UNSERVED: Final = Badge("no worker", "crit", "alert", "▲")

PENDING: Final = Badge("pending", "mute", "circle", "○")
REFUSED: Final = Badge("refused", "crit", "cross", "✕")
PUBLISHED: Final = Badge("published", "ok", "check", "✓")

#: Badges of diagnoses, by severity.
SEVERITY_BADGES: Final = {
    "ok": Badge("OK", "ok", "check", "✓"),
    "info": Badge("info", "info", "info", "i"),
    "warning": Badge("warning", "warn", "alert", "!"),
    "critical": Badge("critical", "crit", "alert", "▲"),
}


def badge_of_worker(worker: Worker) -> Badge:
    """Return the badge of a worker that was read ``with_state()``."""
    return DIED if worker.death else WORKER_BADGES[WorkerState(worker.state)]  # type: ignore[attr-defined]


def badge_of_queue(queue: Queue) -> Badge:
    return OPEN if queue.paused_at is None else PAUSED


def badge_of_task(task: Task, now: datetime) -> Badge:
    """The badge of ``task`` at ``now``, which is the database's clock."""
    if task.status == TaskStatus.RUNNING:
        if task.expires_at <= now or task.stalled_for(now):
            return STUCK
        return LATE if is_late(task, now) else RUNNING
    if task.status == TaskStatus.READY and task.scheduled_at > now:
        return RETRYING if task.attempts else SCHEDULED
    return TASK_BADGES.get(TaskStatus(task.status), UNKNOWN)


def badge_of_message(message: OutboxMessage) -> Badge:
    """Return the badge of a message of the outbox."""
    if message.published_at:
        return PUBLISHED
    return REFUSED if message.failures else PENDING
