"""Facts that several diagnoses include."""

from __future__ import annotations

from datetime import datetime

from leasing.humanize import Moment, Sentence, span, stamp
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
    """Return in words when the lease of ``task`` ends or ended."""
    distance = Moment(task.expires_at, past="").words(now).strip()
    return f"{stamped(task.expires_at)}, {distance}"


def attempt_facts(task: Task) -> list[tuple[str, str]]:
    return [("Attempts", f"{task.attempts} of {task.max_attempts}")]


def stamped(moment: datetime | None) -> str:
    return stamp(moment) if moment else "never"


def progress_words(task: Task) -> str:
    """Return the progress of ``task`` as its handler reported it: "3 of 10"; "" for none."""
    done, total = progress_of(task)
    if done is None:
        return ""
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"


def progress_of(task: Task) -> tuple[float | None, float | None]:
    """Return the amount done, and the total, if the handler reported them as numbers."""
    progress = task.progress if isinstance(task.progress, dict) else {}
    done, total = (_number(progress.get(key)) for key in ("done", "total"))
    return done, total


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An int beyond the range of floats would raise in the arithmetic.
    return value if abs(value) < 1e15 else None


def _progress_facts(task: Task, now: datetime) -> list[tuple[str, str]]:
    if task.progress_timeout is None or task.progressed_at is None:
        return []
    limit = f" (limit: {span(task.progress_timeout)})"
    return [("Last progress", Sentence(now, Moment(task.progressed_at), limit))]
