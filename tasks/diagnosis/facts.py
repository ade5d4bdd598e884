"""Facts that several diagnoses include."""

from __future__ import annotations

from datetime import datetime, timedelta

from leasing.humanize import left, span, stamp
from tasks.models import Task


def holder_facts(task: Task, now: datetime) -> list[tuple[str, str]]:
    """Return the holder, and since when and until when it holds the task."""
    return [
        ("Held by", task.holder),
        ("Since", stamped(task.acquired_at)),
        ("Last heartbeat", stamped(task.renewed_at or task.acquired_at)),
        ("Until", until(task, now)),
        *_progress_facts(task, now),
        *attempt_facts(task),
    ]


def until(task: Task, now: datetime) -> str:
    """Return in words when its lease ends or ended."""
    ahead = task.expires_at - now
    distance = f"in {left(ahead)}" if ahead > timedelta(0) else f"{span(-ahead)} ago"
    return f"{stamped(task.expires_at)}, {distance}"


def attempt_facts(task: Task) -> list[tuple[str, str]]:
    return [("Attempts", f"{task.attempts} of {task.max_attempts}")]


def stamped(moment: datetime | None) -> str:
    return stamp(moment) if moment else "never"


def _progress_facts(task: Task, now: datetime) -> list[tuple[str, str]]:
    if task.progress_timeout is None or task.progressed_at is None:
        return []
    silent, allowed = span(now - task.progressed_at), span(task.progress_timeout)
    return [("Last progress", f"{silent} ago (limit: {allowed})")]
