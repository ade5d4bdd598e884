"""Tasks that somebody holds, or held until a deadline passed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import left, span
from leasing.web.badges import is_late
from tasks.diagnosis.actions import CANCEL, REVOKE
from tasks.diagnosis.facts import holder_facts, until
from tasks.diagnosis.surroundings import Surroundings
from tasks.models import Task

START_ONE = "start a worker (manage.py run_worker), or a controller (manage.py run_recovery)."


def held(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    """It runs, and its deadline lies ahead."""
    silent = now - (task.renewed_at or task.acquired_at or now)
    if not is_late(task, now):
        return _on_time(task, now)
    next_ = f"If no heartbeat comes within {left(task.expires_at - now)}, it is recovered."
    if task.holder in around.workers:
        headline = f"{task.holder} was seen a moment ago, but its last heartbeat for this was "
        headline += f"{span(silent)} ago."
        if not around.is_live(task.holder):
            headline = (
                f"{task.holder} has sent no heartbeat for {span(silent)}, and its sign of life is "
                "missing too."
            )
        return _told(task, now, "late", "warning", headline, next_)
    headline = (
        f"{task.holder} has sent no heartbeat for {span(silent)}, and is no worker that was "
        "seen lately."
    )
    return _told(task, now, "holder_gone", "warning", headline, next_)


def _on_time(task: Task, now: datetime) -> Diagnosis:
    if task.cancel_requested_at is None:
        headline = f"{task.holder} is working on it, and its heartbeats arrive."
        next_ = "It ends when its handler returns."
        return _told(task, now, "running_ok", "ok", headline, next_)
    by = task.cancel_requested_by or "An operator"
    wait = span(now - task.cancel_requested_at)
    headline = f"{by} asked {wait} ago for it to be cancelled, and it still runs."
    next_ = (
        "Its holder hears of it with the next heartbeat, its handler at its next ensure() or "
        "await. A handler that does neither may complete it; it is not tried again."
    )
    found = _told(task, now, "cancel_pending", "info", headline, next_)
    return replace(found, actions=[REVOKE])


def stalled(task: Task, now: datetime, idle: timedelta, around: Surroundings) -> Diagnosis:
    """Its heartbeats arrive, and nothing else."""
    headline = f"{task.holder}'s heartbeats arrive, but nothing has moved for {span(idle)}."
    if around.someone_sweeps:
        return _told(task, now, "zombie", "warning", headline, _after_the_sweep(task))
    next_ = f"No worker runs that would take it from its holder: {START_ONE}"
    return _told(task, now, "zombie", "critical", headline, next_)


def expired(task: Task, now: datetime, around: Surroundings) -> Diagnosis:
    """Its deadline has passed."""
    since = span(now - task.expires_at)
    if not around.someone_sweeps:
        headline = (
            f"{task.holder} let its lease expire {since} ago, and no worker runs that would "
            "recover the task."
        )
        next_ = f"This will not heal by itself: {START_ONE}"
        return _told(task, now, "no_recoverer", "critical", headline, next_)
    next_ = _after_the_sweep(task)
    if around.is_live(task.holder):
        headline = (
            f"{task.holder} is alive, but did not renew this task: its lease expired {since} ago."
        )
        return _told(task, now, "expired_holder_alive", "warning", headline, next_)
    headline = f"{task.holder} is gone: its lease expired {since} ago."
    return _told(task, now, "expired_unclaimed", "warning", headline, next_)


def _after_the_sweep(task: Task) -> str:
    end = "dead: it was its last attempt" if task.attempts >= task.max_attempts else "ready again"
    if task.cancel_requested_at is not None:
        end = "cancelled, as someone asked"
    return (
        f"The next sweep, about a second away, makes it {end}. After that a late result is refused."
    )


def _told(
    task: Task, now: datetime, code: str, severity: str, headline: str, next_: str
) -> Diagnosis:
    is_over = task.expires_at <= now
    return Diagnosis(
        code,
        severity,
        headline,
        next_,
        who=f"Nobody any more; {task.holder} did." if is_over else f"{task.holder}.",
        until=("It was until " if is_over else "Unless it is renewed: ") + f"{until(task, now)}.",
        facts=holder_facts(task, now),
        actions=[REVOKE] if task.cancel_requested_at is not None else [REVOKE, CANCEL],
    )
