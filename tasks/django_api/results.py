"""Rows of tasks, read as the results of ``django.tasks``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from django.db.models import F, QuerySet

from tasks import models
from tasks.django_api.compat import AnyResult, AnyTask, TaskError, TaskResultStatus
from tasks.models import AttemptOutcome, TaskStatus
from tasks.querysets.claimed import ClaimedTask

#: The source of a result: a task, or the known part of one without reading its row.
Row: TypeAlias = models.Task | ClaimedTask

STATUS = {
    TaskStatus.READY.value: TaskResultStatus.READY,
    TaskStatus.RUNNING.value: TaskResultStatus.RUNNING,
    TaskStatus.SUCCEEDED.value: TaskResultStatus.SUCCESSFUL,
    TaskStatus.FAILED.value: TaskResultStatus.FAILED,
    TaskStatus.CANCELLED.value: TaskResultStatus.FAILED,
}

#: The attempts that count: those that were given back or snoozed were refunded.
SPENT = (AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.CANCELLED)

#: Names in place of an exception, for attempts that ended without one of their own.
EXCEPTIONS = {
    AttemptOutcome.FAILED.value: "tasks.exceptions.TaskError",
    AttemptOutcome.LOST.value: "leasing.exceptions.LeaseLost",
    AttemptOutcome.CANCELLED.value: "tasks.exceptions.TaskCancelled",
}


# Results are compared and hashed as the base does it, whichever way that is in its release.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatabaseTaskResult(AnyResult):  # type: ignore[misc] # the stubs' is not frozen
    """A result with the row that it was read from, ``db_result``."""

    row: Row = field(compare=False, repr=False)

    @property
    def db_result(self) -> models.Task:
        return self.row if isinstance(self.row, models.Task) else self.row.task


class PastAttempt(NamedTuple):
    """The part of a result about an attempt that failed."""

    outcome: str
    holder: str
    error: str
    exception: str
    traceback: str


def fetch(rows: QuerySet[models.Task], pk: int) -> tuple[models.Task, list[PastAttempt]] | None:
    """The task ``pk`` of ``rows`` and its past attempts, by one query; None if there is none."""
    columns = {f"attempt_{name}": F(f"attempt_set__{name}") for name in PastAttempt._fields}
    found = list(rows.filter(pk=pk).annotate(**columns).order_by("attempt_set__id"))
    if not found:
        return None
    attempts = [PastAttempt(*(getattr(row, name) for name in columns)) for row in found]
    return found[0], [attempt for attempt in attempts if attempt.outcome]


def is_first(row: Row) -> bool:
    """Return True if no attempt of ``row`` that counts came before this one, so that there is no
    history."""
    return row.attempts == 1 and row.status in (TaskStatus.RUNNING, TaskStatus.SUCCEEDED)


def history(row: Row) -> list[PastAttempt]:
    """The past attempts of ``row``: a query, unless this is its first."""
    if is_first(row):
        return []
    using = row._state.db if isinstance(row, models.Task) else row.using
    attempts = models.TaskAttempt.objects.using(using).filter(task_id=row.pk)
    return [PastAttempt(*each) for each in attempts.values_list(*PastAttempt._fields)]


def result_of(declared: AnyTask, row: Row, attempts: Sequence[PastAttempt]) -> DatabaseTaskResult:
    """Return the result of a task.

    Args:
        declared: The task of Django's API that its handler runs.
        row: The row of the task.
        attempts: Its attempts that did not succeed, the oldest first.
    """
    data = row.task_data
    alias = data.get("backend", declared.backend)
    run_after = data.get("run_after")
    spent = [attempt for attempt in attempts if attempt.outcome in SPENT]
    result = DatabaseTaskResult(
        row=row,
        task=_as_stored(
            declared,
            priority=row.priority,
            queue_name=row.queue,
            backend=alias,
            run_after=datetime.fromisoformat(run_after) if run_after else None,
        ),
        id=str(row.pk),
        status=STATUS[row.status],
        enqueued_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.processed_at,
        last_attempted_at=row.acquired_at,
        args=data.get("args", []),
        kwargs=data.get("kwargs", {}),
        backend=alias,
        errors=[*_errors(row, spent)],
        worker_ids=_worker_ids(row, spent),
    )
    object.__setattr__(result, "_return_value", row.task_output)
    return result


def _as_stored(declared: AnyTask, **changes: Any) -> AnyTask:
    """``declared``, or a copy of it where ``changes`` are any. That is not validated: what was
    enqueued under yesterday's settings can be read under today's."""
    if all(getattr(declared, name) == value for name, value in changes.items()):
        return declared
    kind: Any = type(declared)
    copied: AnyTask = object.__new__(kind)
    for name in _names_of(kind):
        value = changes[name] if name in changes else getattr(declared, name)
        object.__setattr__(copied, name, value)
    return copied


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _worker_ids(row: Row, spent: Sequence[PastAttempt]) -> list[str]:
    """Return the workers of its attempts, in order; a running attempt and a successful one have no
    record."""
    now = [row.holder] if row.status in (TaskStatus.RUNNING, TaskStatus.SUCCEEDED) else []
    return [*(attempt.holder for attempt in spent), *now]


def _errors(row: Row, spent: Sequence[PastAttempt]) -> Iterable[TaskError]:
    for attempt in spent:
        yield TaskError(
            exception_class_path=attempt.exception or EXCEPTIONS[attempt.outcome],
            traceback=attempt.traceback or attempt.error,
        )
    last = spent[-1].outcome if spent else None
    if (
        isinstance(row, models.Task)
        and row.status == TaskStatus.CANCELLED
        and last != AttemptOutcome.CANCELLED
    ):
        # It was cancelled while it waited.
        yield TaskError(
            exception_class_path=EXCEPTIONS[AttemptOutcome.CANCELLED.value],
            traceback=row.last_error,
        )
