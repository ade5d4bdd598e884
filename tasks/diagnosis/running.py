"""Diagnose running tasks, including those whose lease has expired."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from leasing.db.row_locks import RowLock
from leasing.diagnosis.base import Diagnosis
from leasing.humanize import Moment, Sentence, left, span
from leasing.web.badges import is_late
from tasks.conf import task_settings
from tasks.diagnosis.actions import CANCEL, REVOKE
from tasks.diagnosis.context import DiagnosisContext
from tasks.diagnosis.facts import holder_facts, until
from tasks.models import Task
from tasks.retry import longest_pause

START_ONE = "Start a worker (manage.py run_worker) or a recovery process (manage.py run_recovery)."


def held(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    """Diagnose a running task whose lease has not expired.

    Args:
        task: The task.
        now: The database's clock.
        context: The workers and their tasks.
    """
    heard = Moment(task.renewed_at or task.acquired_at or now)
    # A frozen worker locks rows too, but recovery passes its weaker locks.
    if (lock := context.locks.get(task.pk)) and context.is_live(task.holder):
        return _locked(task, now, lock)
    if context.is_replaced(task):
        headline = f"The process of {task.holder} that ran it has ended; a new one has its name."
        next_ = Sentence(now, "The task is recovered when its lease expires, ", _end(task), ".")
        return _diagnosed(task, now, "holder_gone", "warning", headline, next_)
    if not is_late(task, now):
        return _on_time(task, now, context)
    next_ = Sentence(now, "If no heartbeat arrives, the task is recovered ", _end(task), ".")
    was = (f"The last heartbeat of {task.holder} for this task was ", heard)
    if task.holder in context.workers:
        worker = ", although the worker was seen recently."
        if not context.is_live(task.holder):
            worker = ", and the worker itself is late."
        headline = Sentence(now, *was, worker)
        return _diagnosed(task, now, "late", "warning", headline, next_)
    headline = Sentence(now, *was, ", and it is not a worker that was seen recently.")
    return _diagnosed(task, now, "holder_gone", "warning", headline, next_)


def _on_time(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    if task.cancel_requested_at is None:
        return _without_progress(task, now) or _running(task, now, context)
    by = task.cancel_requested_by or "an operator"
    requested = Moment(task.cancel_requested_at)
    headline = Sentence(now, f"Still running: {by} requested cancellation ", requested, ".")
    next_ = (
        "The worker sees the request at its next heartbeat, the handler at its next ensure() or "
        "await. A handler that does neither may still complete the task. It is not retried."
    )
    diagnosis = _diagnosed(task, now, "cancel_pending", "info", headline, next_)
    return replace(diagnosis, actions=[REVOKE])


def _running(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    next_, use = "It ends when its handler returns.", context.usual.get(task.name)
    waits = (
        [" ", *context.lease_waits[task.holder].parts] if task.holder in context.lease_waits else []
    )
    if use is None or task.acquired_at is None:
        headline = Sentence(now, f"Running on {task.holder}. Heartbeats arrive on time.", *waits)
        return _diagnosed(task, now, "running_ok", "ok", headline, next_)
    ran = Moment(task.acquired_at, lasts=True)
    headline = Sentence(now, "Running for ", ran, f"; {use.usually}.", *waits)
    if not use.is_exceeded_by(now - task.acquired_at):
        return _diagnosed(task, now, "running_ok", "ok", headline, next_)
    next_ = (
        "It ends when its handler returns. If that hangs, cancel the task: a handler that never "
        "checks keeps its slot until its worker is restarted."
    )
    return _diagnosed(task, now, "running_long", "warning", headline, next_)


def _without_progress(task: Task, now: datetime) -> Diagnosis | None:
    """Diagnose a task without progress for half of its progress time-out; None for other tasks."""
    if not (task.progress_timeout and task.progressed_at):
        return None
    if now - task.progressed_at < task.progress_timeout / 2:
        return None
    then = f"starts again (attempt {task.attempts + 1} of {task.max_attempts})"
    if task.attempts >= task.max_attempts:
        then = "fails, since this is its last attempt"
    headline = Sentence(now, "No progress for ", Moment(task.progressed_at, lasts=True), ".")
    end = Moment(task.progressed_at + task.progress_timeout, past="due")
    next_ = Sentence(now, "Unless it reports some, the task is taken back ", end, f" and {then}.")
    return _diagnosed(task, now, "no_progress", "warning", headline, next_)


def stalled(task: Task, now: datetime, idle: timedelta, context: DiagnosisContext) -> Diagnosis:
    """Diagnose a task whose heartbeats arrive, but no progress for the time ``idle``. Further
    arguments are those of ``held``."""
    progressed = Moment(now - idle)
    says = f"Stalled: {task.holder} sends heartbeats, but its last sign of progress was "
    headline = Sentence(now, says, progressed, ".")
    if context.someone_sweeps:
        return _diagnosed(task, now, "zombie", "warning", headline, _after_the_sweep(task))
    next_ = f"This will not recover automatically: no worker runs recovery. {START_ONE}"
    return _diagnosed(task, now, "zombie", "critical", headline, next_)


def expired(task: Task, now: datetime, context: DiagnosisContext) -> Diagnosis:
    """Diagnose a running task whose lease has expired. Arguments are those of ``held``."""
    since = Moment(task.expires_at)
    if lock := context.locks.get(task.pk):
        return _locked(task, now, lock)
    if not context.someone_sweeps:
        because = ", and no worker is running that recovers tasks."
        headline = Sentence(now, f"The lease of {task.holder} expired ", since, because)
        next_ = f"This will not recover automatically. {START_ONE}"
        return _diagnosed(task, now, "no_recoverer", "critical", headline, next_)
    next_ = _after_the_sweep(task)
    if context.is_live(task.holder) and not context.is_replaced(task):
        says = f"{task.holder} is alive, but did not renew this task: its lease expired "
        headline = Sentence(now, says, since, ".")
        return _diagnosed(task, now, "expired_holder_alive", "warning", headline, next_)
    headline = Sentence(now, f"{task.holder} is gone: its lease expired ", since, ".")
    return _diagnosed(task, now, "expired_unclaimed", "warning", headline, next_)


def _locked(task: Task, now: datetime, lock: RowLock) -> Diagnosis:
    recovery = ": neither renewal nor recovery can proceed."
    headline = Sentence(now, "Its row is locked by ", *lock.parts, recovery)
    next_ = f"It goes on when that transaction ends. {lock.remedy}"
    return _diagnosed(task, now, "row_locked", "critical", headline, next_)


def _end(task: Task) -> Moment:
    return Moment(task.expires_at, past="due")


def _after_the_sweep(task: Task) -> str:
    pause = left(timedelta(seconds=longest_pause(task.attempts)))
    end = f"makes it ready again, to start after a random pause of at most {pause}"
    if task.attempts >= task.max_attempts:
        end = "sets it to failed, since this was its last attempt"
    if task.cancel_requested_at is not None:
        end = "cancels it, as requested"
    within = span(task_settings.SWEEP_EVERY)
    return f"The next recovery sweep (within {within}) {end}. After that a late result is refused."


def _diagnosed(
    task: Task, now: datetime, code: str, severity: str, headline: str, next_: str
) -> Diagnosis:
    is_over = task.expires_at <= now
    return Diagnosis(
        code,
        severity,
        headline,
        next_,
        who=f"Nobody: its lease has expired. {task.holder}, which held it, runs it still unless it "
        "has ended."
        if is_over
        else f"{task.holder}.",
        until=("Expired: " if is_over else "Unless renewed: ") + f"{until(task, now)}.",
        facts=holder_facts(task, now),
        actions=[REVOKE] if task.cancel_requested_at is not None else [REVOKE, CANCEL],
    )
