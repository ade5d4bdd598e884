"""The attempts of a task on a time axis, with the waits between them.

Pure functions of the row and its attempts: nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tasks.models import Task, TaskAttempt, TaskStatus


@dataclass(frozen=True)
class AttemptSpan:
    """An attempt, or a wait."""

    kind: str
    began_at: datetime
    #: None: it goes on.
    ended_at: datetime | None = None
    #: Of a wait: until when it was, or is, not due.
    due_at: datetime | None = None
    # Of an attempt:
    number: int = 0
    holder: str = ""
    fencing_token: int = 0
    #: running, overdue (its deadline has passed), succeeded, failed, lost, returned, snoozed,
    #: cancelled.
    outcome: str = ""
    #: The moment at which a late write of it was refused, and the name of that.
    refused_at: datetime | None = None
    refused_report: str = ""


@dataclass(frozen=True)
class Timeline:
    """Attempts and waits, the oldest first, without gaps."""

    spans: list[AttemptSpan]
    now: datetime
    #: True if there were attempts before these.
    has_more: bool = False

    @property
    def attempts(self) -> list[AttemptSpan]:
        return [span for span in self.spans if span.kind == "attempt"]


def timeline(
    task: Task, now: datetime, attempts: Iterable[TaskAttempt], *, has_more: bool = False
) -> Timeline:
    """Return the spans of one task.

    Args:
        task: The task.
        now: The database's clock.
        attempts: Its attempts that did not succeed, the newest first.
        has_more: True if there are older attempts.
    """
    spans = [_attempt(each) for each in reversed(list(attempts))]
    if _is_own_record(task):
        spans.append(_latest(task, now))
    filled: list[AttemptSpan] = []
    # What came before the attempts that were read nobody knows here.
    last = None if has_more else task.created_at
    for span in spans:
        if last is not None and span.began_at > last:
            filled.append(AttemptSpan("wait", last, span.began_at))
        filled.append(span)
        last = span.ended_at
    return Timeline(_with_last_wait(filled, task, last), now, has_more)


def _is_own_record(task: Task) -> bool:
    """Return True if the row itself is the record of its latest attempt: it runs, or succeeded."""
    return task.status in (TaskStatus.RUNNING, TaskStatus.SUCCEEDED)


def _attempt(attempt: TaskAttempt) -> AttemptSpan:
    return AttemptSpan(
        "attempt",
        attempt.started_at,
        attempt.ended_at,
        number=attempt.number,
        holder=attempt.holder,
        fencing_token=attempt.fencing_token,
        outcome=attempt.outcome,
        refused_at=attempt.refused_at,
        refused_report=attempt.refused_report,
    )


def _latest(task: Task, now: datetime) -> AttemptSpan:
    assert task.acquired_at is not None
    is_over = task.status == TaskStatus.SUCCEEDED
    running = "running" if task.expires_at > now else "overdue"
    return AttemptSpan(
        "attempt",
        task.acquired_at,
        task.processed_at if is_over else None,
        number=task.attempts,
        holder=task.holder,
        fencing_token=task.fencing_token,
        outcome="succeeded" if is_over else running,
    )


def _with_last_wait(
    spans: list[AttemptSpan], task: Task, last: datetime | None
) -> list[AttemptSpan]:
    """``spans``, and the wait that goes on, or that was ended by a cancellation."""
    if task.status == TaskStatus.READY and last is not None:
        return [*spans, AttemptSpan("wait", last, due_at=task.scheduled_at)]
    ended_at = task.processed_at
    if task.status == TaskStatus.CANCELLED and last is not None and ended_at and ended_at > last:
        return [*spans, AttemptSpan("wait", last, ended_at, due_at=task.scheduled_at)]
    return spans
