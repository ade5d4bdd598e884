"""The trace of a task: every recorded event of its life, in one order.

The events are read from the task's row, its attempts and steps, and the audit; nothing is recorded
for the trace alone. So it has the number of renewals of the latest attempt only, the first refused
write of an attempt, the latest of several postponements or returns for one reason, and operators'
actions on this one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from leasing.humanize import plural
from leasing.models import AuditEntry
from tasks.models import Task, TaskAttempt, TaskStatus, TaskStep

#: The newest rows of each table that are read.
MAX_ROWS: Final = 1_000


@dataclass(frozen=True)
class Event:
    """An event in the life of a task, at a moment by the database's clock."""

    at: datetime
    #: enqueued, claimed, renewed, progress, step, an outcome of an attempt, refused, succeeded,
    #: cancel_requested, ended, or the action of an operator.
    event: str
    text: str = ""
    #: The attempt of the event, its holder and its fencing token, if it belongs to one.
    attempt: int | None = None
    holder: str = ""
    fencing_token: int | None = None


def read_trace(
    task: Task,
    *,
    with_actions: bool,
    attempts: Sequence[TaskAttempt] | None = None,
    limit: int = MAX_ROWS,
) -> list[Event]:
    """Return the events of ``task``, the oldest first.

    Args:
        task: The task.
        with_actions: True to include the actions of operators, for users who may see the audit.
        attempts: Its newest attempts, the latest first, if they were read.
        limit: The number of rows of each table that are read, the newest.
    """
    using = task._state.db
    if attempts is None:
        every = TaskAttempt.objects.using(using).filter(task_id=task.pk)
        attempts = list(every.defer("traceback").order_by("-pk")[:limit])
    steps = TaskStep.objects.using(using).filter(task_id=task.pk).defer("output").order_by("-pk")
    entries = list(AuditEntry.objects.using(using).about(task)[:limit]) if with_actions else []
    return trace(task, attempts[::-1], list(steps[:limit])[::-1], entries[::-1])


def trace(
    task: Task,
    attempts: Iterable[TaskAttempt],
    steps: Iterable[TaskStep] = (),
    entries: Iterable[AuditEntry] = (),
) -> list[Event]:
    """Return the events of ``task``, the oldest first. Its rows are in the order of their keys."""
    child = "" if task.parent_id is None else f", as a child of task:{task.parent_id}"
    events = [Event(task.created_at, "enqueued", f"in the queue {task.queue}{child}")]
    events += [Event(each.at, each.verb, _action(each)) for each in entries]
    latest, latest_end = None, task.created_at
    for each in attempts:
        claim = Event(each.started_at, "claimed", "", each.number, each.holder, each.fencing_token)
        if each.grant_id == task.grant_id:
            latest, latest_end = claim, each.ended_at
        error = each.error.partition("\n")[0]
        events += [claim, replace(claim, at=each.ended_at, event=each.outcome, text=error)]
        if each.refused_at:
            text = f"a late {each.refused_report}"
            events.append(replace(claim, at=each.refused_at, event="refused", text=text))
    # The row is the record of an attempt that runs, or has succeeded.
    if task.status in (TaskStatus.RUNNING, TaskStatus.SUCCEEDED) and task.acquired_at:
        term = (task.attempts, task.holder, task.fencing_token)
        latest = Event(task.acquired_at, "claimed", "", *term)
        events.append(latest)
    events += [Event(each.finished_at, "step", each.name) for each in steps]
    if latest and task.renewals and task.renewed_at:
        text = f"{plural(task.renewals, 'time')}, the latest here"
        events.append(replace(latest, at=task.renewed_at, event="renewed", text=text))
    if latest and task.progress is not None and task.progressed_at:
        text = _numbers(task.progress)
        events.append(replace(latest, at=task.progressed_at, event="progress", text=text))
    if task.cancel_requested_at and task.cancel_requested_at != task.processed_at:
        by = f"by {task.cancel_requested_by or 'an operator'}"
        events.append(Event(task.cancel_requested_at, "cancel_requested", by))
    if latest and task.status == TaskStatus.SUCCEEDED and task.processed_at:
        events.append(replace(latest, at=task.processed_at, event="succeeded"))
    elif task.processed_at:
        text = "failed for good" if task.status == TaskStatus.FAILED else task.last_error
        # The record of its last attempt is written after it, in the same transaction.
        events.append(Event(max(task.processed_at, latest_end), "ended", text))
    return _with_claims(sorted(events, key=lambda event: event.at))


def _with_claims(events: list[Event]) -> list[Event]:
    """Return ``events`` with the attempt of each step, which is the one claimed before it."""
    claim, attributed = None, []
    for each in events:
        if each.event == "claimed":
            claim = each
        elif each.event == "step" and claim is not None:
            each = replace(claim, at=each.at, event=each.event, text=each.text)
        attributed.append(each)
    return attributed


def _action(entry: AuditEntry) -> str:
    via = f" ({entry.via})" if entry.via else ""
    reason = f": {entry.reason}" if entry.reason else ""
    effect = ", which changed nothing" if entry.changed == 0 else ""
    return f"by {entry.by}{via}{reason}{effect}"


def _numbers(progress: object) -> str:
    """Return the numbers of a progress, which all users may see; the rest is payload."""
    values = progress if isinstance(progress, dict) else {}
    numbers = [
        str(values[key]) for key in ("done", "total") if type(values.get(key)) in (int, float)
    ]
    return " of ".join(numbers)
