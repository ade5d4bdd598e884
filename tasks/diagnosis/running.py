"""Diagnose running tasks, including those whose lease has expired."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import left, span
from leasing.web.badges import is_late
from tasks.conf import task_settings
from tasks.diagnosis.actions import CANCEL, REVOKE
from tasks.diagnosis.facts import holder_facts, until
from tasks.diagnosis.surroundings import Surroundings
from tasks.models import Task
from tasks.retry import longest_pause

START_ONE = "Start a worker (manage.py run_worker) or a recovery process (manage.py run_recovery)."


def held(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    """Diagnose a running task whose lease has not expired.

    Args:
        task: The task.
        now: The database's clock.
        around: The workers and what they hold.
    """
    silent = now - (task.renewed_at or task.acquired_at or now)
    if around.is_replaced(task):
        headline = f"The process of {task.holder} that ran it has ended; a new one has its name."
        next_ = f"The task is recovered when its lease expires, in {left(task.expires_at - now)}."
        return _diagnosed(task, now, "holder_gone", "warning", headline, next_)
    if not is_late(task, now):
        return _on_time(task, now)
    next_ = f"If no heartbeat arrives within {left(task.expires_at - now)}, the task is recovered."
    if task.holder in around.workers:
        headline = f"{task.holder} was seen recently, but its last heartbeat for this task was "
        headline += f"{span(silent)} ago."
        if not around.is_live(task.holder):
            headline = (
                f"{task.holder} has sent no heartbeat for this task for {span(silent)}, and the "
                "worker itself is late."
            )
        return _diagnosed(task, now, "late", "warning", headline, next_)
    headline = (
        f"{task.holder} has sent no heartbeat for {span(silent)} and is not a worker that was "
        "seen recently."
    )
    return _diagnosed(task, now, "holder_gone", "warning", headline, next_)


def _on_time(task: Task, now: datetime) -> Diagnosis:
    if task.cancel_requested_at is None:
        headline = f"Running on {task.holder}. Heartbeats arrive on time."
        next_ = "It ends when its handler returns."
        return _diagnosed(task, now, "running_ok", "ok", headline, next_)
    by = task.cancel_requested_by or "an operator"
    wait = span(now - task.cancel_requested_at)
    headline = f"Still running: {by} requested cancellation {wait} ago."
    next_ = (
        "The worker sees the request at its next heartbeat, the handler at its next ensure() or "
        "await. A handler that does neither may still complete the task. It is not retried."
    )
    found = _diagnosed(task, now, "cancel_pending", "info", headline, next_)
    return replace(found, actions=[REVOKE])


def stalled(task: Task, now: datetime, idle: timedelta, around: Surroundings) -> Diagnosis:
    """Diagnose a task whose heartbeats arrive, but no progress for the time ``idle``. Further
    arguments are those of ``held``."""
    headline = (
        f"Stalled: {task.holder} sends heartbeats but has reported no progress for {span(idle)}."
    )
    if around.someone_sweeps:
        return _diagnosed(task, now, "zombie", "warning", headline, _after_the_sweep(task))
    next_ = f"This will not recover automatically: no worker runs recovery. {START_ONE}"
    return _diagnosed(task, now, "zombie", "critical", headline, next_)


def expired(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    """Diagnose a running task whose lease has expired. Arguments are those of ``held``."""
    since = span(now - task.expires_at)
    if not around.someone_sweeps:
        headline = (
            f"The lease of {task.holder} expired {since} ago, and no worker is running that "
            "recovers tasks."
        )
        next_ = f"This will not recover automatically. {START_ONE}"
        return _diagnosed(task, now, "no_recoverer", "critical", headline, next_)
    next_ = _after_the_sweep(task)
    if around.is_live(task.holder) and not around.is_replaced(task):
        headline = (
            f"{task.holder} is alive, but did not renew this task: its lease expired {since} ago."
        )
        return _diagnosed(task, now, "expired_holder_alive", "warning", headline, next_)
    headline = f"{task.holder} is gone: its lease expired {since} ago."
    return _diagnosed(task, now, "expired_unclaimed", "warning", headline, next_)


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
        who=f"Nobody. Last holder: {task.holder}." if is_over else f"{task.holder}.",
        until=("Expired: " if is_over else "Unless renewed: ") + f"{until(task, now)}.",
        facts=holder_facts(task, now),
        actions=[REVOKE] if task.cancel_requested_at is not None else [REVOKE, CANCEL],
    )
