"""Diagnosis of a task: one function for pages, admin, API and command line.

Every diagnosis has the same order: why (``headline``), who holds the task (``who``), until when
(``until``), what happens next (``next``), what an operator can do (``actions``).

    it waits      scheduled, backoff, queue_paused, no_worker, unknown_task, invalid_arguments,
                  key_held, saturated, due; where Celery workers alone would run it, no_relay,
                  unpublished, published
    it runs       running_ok, running_long, no_progress, late, holder_gone, cancel_pending, zombie
    it is stuck   expired_unclaimed, expired_holder_alive, no_recoverer, row_locked
    it ended      done, cancelled, exhausted, given_up
    it waits or runs  flapping (lost by worker after worker, and never completed), clock_skew
"""

from __future__ import annotations

from datetime import datetime

from leasing.diagnosis.base import Action, Diagnosis, is_skewed
from tasks.diagnosis.actions import CANCEL, DISCARD, RESCHEDULE, RESUME, RETRY, REVOKE
from tasks.diagnosis.context import DiagnosisContext, read_context
from tasks.diagnosis.ended import ended
from tasks.diagnosis.reasons import reasons_in
from tasks.diagnosis.running import expired, held, stalled
from tasks.diagnosis.unsteady import flapping, skewed
from tasks.diagnosis.waiting import Waiting, later, waiting
from tasks.models import Task
from tasks.querysets import TaskStatus

#: Diagnoses that ``flapping`` replaces if several workers have lost the task lately.
QUIET = frozenset(
    {"running_ok", "backoff", "due", "saturated", "key_held", "unpublished", "published"}
)


def diagnose(
    task: Task, now: datetime | None = None, context: DiagnosisContext | None = None
) -> Diagnosis:
    """Explain the state of ``task``.

    Args:
        task: The task.
        now: The moment, by the database's clock; that of ``context`` by default.
        context: The answer of ``read_context``: pass it to explain many tasks without further
            queries.
    """
    context = context or read_context([task])
    now = now or context.now
    if task.status in TaskStatus.ended():
        return ended(task, context)
    if is_skewed(now, task.acquired_at, task.renewed_at, task.created_at):
        return skewed(task, now)
    diagnose_state = _running if task.status == TaskStatus.RUNNING else _ready
    diagnosis = diagnose_state(task, now, context)
    if waiters := context.key_waiters.get(task.concurrency_key):
        number = "1 task waits" if waiters.value == 1 else f"{waiters} tasks wait"
        diagnosis.facts.append(("Concurrency key", f"{task.concurrency_key}: {number} for it"))
    losses = context.losses.get(task.pk, [])
    if losses and diagnosis.code in QUIET:
        return flapping(task, losses, diagnosis)
    return diagnosis


def explain(task: Task, now: datetime | None = None, *, fresh: bool = True) -> Diagnosis:
    """``diagnose`` one task. If it waits, a fact says how many tasks wait for the same reason.

    Args:
        task: The task.
        now: The moment, by the database's clock.
        fresh: False if the workers and what they hold may be those of another poll.
    """
    context = read_context([task], now, fresh=fresh)
    diagnosis = diagnose(task, context.now, context)
    if isinstance(diagnosis, Waiting):
        for reason in reasons_in(task.queue, context):
            if reason.diagnosis.headline == diagnosis.headline:
                diagnosis.facts.append(("In line", reason.sentence))
    return diagnosis


def _running(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    if task.expires_at <= now:
        return expired(task, now, context)
    if idle := task.stalled_for(now):
        return stalled(task, now, idle, context)
    return held(task, now, context)


def _ready(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    return later(task, now, context) if task.scheduled_at > now else waiting(task, now, context)


__all__ = [
    "CANCEL",
    "DISCARD",
    "RESCHEDULE",
    "RESUME",
    "RETRY",
    "REVOKE",
    "Action",
    "Diagnosis",
    "DiagnosisContext",
    "diagnose",
    "explain",
    "read_context",
]
