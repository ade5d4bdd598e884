"""Ends of attempts, as their holder writes them: many in one short transaction, or one alone.

The verb for one task is the verb for many, given one. What the database refuses of many is tried
again one by one, so that none sinks its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DataError, IntegrityError
from django.db.models import F, Q

from leasing.db.deletion import unprotected
from leasing.db.dialects import atomic, lock
from leasing.querysets.claim import ending as leaving_blocks
from tasks import registry
from tasks.exceptions import NotSerializable, Snooze
from tasks.notifier import notify
from tasks.payload import OUTPUT, check_json, is_same_json
from tasks.querysets import compensation
from tasks.querysets.base import (
    CANCEL_REQUESTED,
    TaskRows,
    TaskStatus,
    attempt_model,
)
from tasks.querysets.failure import Failure, storable
from tasks.querysets.transitions import (
    by_task,
    completing,
    ending,
    refunding,
    said,
    starting,
    waiting,
)

if TYPE_CHECKING:
    from tasks.models import Task, TaskAttempt

Result = TypeVar("Result")
#: Locked tasks by their keys, each with what is to be stored of it.
Locked = dict[Any, tuple["Task", Result]]
#: Tasks that have ended, each with its event and the details.
TaskEvents = list[tuple["Task", str, dict[str, Any]]]
Refused = list[tuple["Task", Exception]]
#: The tasks that a verb has changed, and the others, each with its error.
Answer = tuple[list["Task"], Refused]

NOTHING: Mapping[int, Exception] = {}

#: The event of a failed attempt, by the state of its task afterwards.
FAILURES = {
    TaskStatus.READY: "task.attempt_failed",
    TaskStatus.FAILED: "task.failed",
    TaskStatus.CANCELLED: "task.cancelled",
}


def complete(rows: TaskRows, results: list[tuple[Task, Any]], *, unexpired: bool = False) -> Answer:
    """Complete each task with its output."""
    unfit = {id(task): error for task, output in results if (error := _refusal(output))}
    return _end(rows, results, "complete", partial(_complete, unexpired=unexpired), unfit)


def fail(
    rows: TaskRows, errors: list[tuple[Task, BaseException | str]], *, unexpired: bool = False
) -> Answer:
    """Fail each task's attempt with its error."""
    # Policies are asked before the transaction begins, which on SQLite is a lock already.
    failures = [(task, Failure.of(task, error)) for task, error in errors]
    return _end(rows, failures, "fail", partial(_fail, unexpired=unexpired))


def give_back(
    rows: TaskRows,
    tasks: list[Task],
    reason: str,
    delay: timedelta = timedelta(0),
    *,
    begun: bool = True,
) -> Answer:
    """Set each task ready again with its attempt uncounted, to start after ``delay``. Of attempts
    that had not ``begun`` there is no record."""
    of = attempt_model().of
    attempts = [(task, of(task, "returned", reason)) for task in tasks]
    like = {"outcome": "returned", "error": reason} if begun else None
    refund = partial(_refund, delay=delay, event="task.returned", like=like)
    given, refused = _end(rows, attempts, "give back", refund)
    if not delay:
        notify(rows.db, [task for task in given if task.status == TaskStatus.READY])
    return given, refused


def snooze(rows: TaskRows, task: Task, nap: Snooze) -> Answer:
    """Put ``task`` off, with its attempt uncounted."""
    attempts = [(task, attempt_model().of(task, "snoozed", storable(str(nap))))]
    refund = partial(_refund, delay=nap.delay, event="task.snoozed", like={"outcome": "snoozed"})
    return _end(rows, attempts, "snooze", refund)


def accept_cancel(rows: TaskRows, task: Task, text: str) -> Answer:
    """End ``task`` as cancelled."""
    attempts = [(task, attempt_model().of(task, "cancelled"))]
    return _end(rows, attempts, "cancel", partial(_cancel, text=text))


def alone(answer: Answer) -> Task:
    """The one task that was asked for. Raises what it was refused with."""
    served, refused = answer
    for _, error in refused:
        raise error
    return served[0]


def _end(
    rows: TaskRows,
    items: list[tuple[Task, Result]],
    verb: str,
    write: Callable[[TaskRows, Locked[Result]], TaskEvents],
    unfit: Mapping[int, Exception] = NOTHING,
) -> Answer:
    """``write`` what is to be stored of each task, but of the ``unfit``."""
    refused = dict(unfit)
    refused |= _end_together(
        rows, [item for item in items if id(item[0]) not in refused], verb, write
    )
    return (
        [task for task, _ in items if id(task) not in refused],
        [(task, refused[id(task)]) for task, _ in items if id(task) in refused],
    )


def _end_together(
    rows: TaskRows,
    items: list[tuple[Task, Result]],
    verb: str,
    write: Callable[[TaskRows, Locked[Result]], TaskEvents],
) -> dict[int, Exception]:
    """``write`` in a transaction, and tell of it. Returns the errors of refused tasks, by the
    ``id()`` of the task."""
    if not items:
        return {}
    reported: TaskEvents = []
    failure: Exception | None = None
    with leaving_blocks(rows.db, [task for task, _ in items]) as standing:
        try:
            with atomic(rows.db):
                reported = write(rows, _lock(rows, items))
        except (DataError, IntegrityError) as error:
            failure = error
        ended = {id(task) for task, _, _ in reported}
        left = [item for item in items if id(item[0]) not in ended]
        standing += [task for task, _ in left]
    for task, event, details in reported:
        if task.status == TaskStatus.CANCELLED:
            rows._tell_cancelled(task)
        else:
            rows._tell(event, [task], **details)
    refused: dict[int, Exception] = {}
    for item in left:
        if failure is not None and len(items) > 1:
            refused |= _end_together(rows, [item], verb, write)
        else:
            refused[id(item[0])] = failure or rows._refuse(item[0], verb)
    return refused


def _lock(rows: TaskRows, items: list[tuple[Task, Result]]) -> Locked[Result]:
    """Lock the rows, in the order of their keys, and return the items whose grant stands. Of one
    alone the update that follows says so."""
    if len(items) == 1:
        rows._lock(items[0][0])
        return {items[0][0].pk: items[0]}
    # Of one attempt named twice the first counts; of two attempts that which the row is in.
    first = {(task.pk, task.grant_id): (task, result) for task, result in reversed(items)}
    found = lock(_of_grants(rows, [task for task, _ in first.values()]).order_by("pk"))
    grants = found.values_list("pk", "grant_id")
    return {grant[0]: first[grant] for grant in grants if grant in first}


def _of_grants(rows: TaskRows, tasks: list[Task], *, unexpired: bool = False) -> TaskRows:
    """Return the part of ``tasks`` that runs under its grant."""
    if len(tasks) == 1:
        held = rows._of_grant(tasks[0])
    else:
        mine = Q(pk__in=[t.pk for t in tasks], grant_id__in=[t.grant_id for t in tasks])
        held = rows._everything().filter(mine).holding()
    return held.unexpired() if unexpired else held


def _written(
    rows: TaskRows, locked: Locked[Result], count: int, is_so: Callable[[Task, Result], bool]
) -> list[tuple[Task, Result]]:
    """Read the tasks back, of which ``count`` were updated. Returns those that are as their holder
    wrote them: fewer than were locked only where a deadline had passed, or where there are no row
    locks and somebody came between."""
    if not count:
        return []
    everyone = count == len(locked)
    found = {row.pk: row for row in rows._everything().filter(pk__in=list(locked))}
    written = []
    for key, (task, result) in locked.items():
        row = found.get(key)
        if row is not None and (everyone or _ended_by(row, task) and is_so(row, result)):
            for field in row._meta.concrete_fields:
                setattr(task, field.attname, getattr(row, field.attname))
            written.append((task, result))
    return written


def _ended_by(row: Task, task: Task) -> bool:
    """Return True if the attempt that has ended in ``row`` is that of ``task``."""
    return row.grant_id == task.grant_id and row.released_at is not None


def _complete(rows: TaskRows, locked: Locked[Any], *, unexpired: bool) -> TaskEvents:
    outputs = {key: output for key, (_, output) in locked.items()}
    mine = _of_grants(rows, _tasks(locked), unexpired=unexpired)
    count = mine.update(**by_task("task_output", outputs, locked), **completing())

    def is_so(row: Task, output: Any) -> bool:
        return row.status == TaskStatus.SUCCEEDED and is_same_json(row.task_output, output)

    return [(task, "task.completed", {}) for task, _ in _written(rows, locked, count, is_so)]


def _fail(rows: TaskRows, locked: Locked[Failure], *, unexpired: bool) -> TaskEvents:
    failures = {key: failure for key, (_, failure) in locked.items()}
    mine = _of_grants(rows, _tasks(locked), unexpired=unexpired)
    count = _write_failures(mine, failures) if failures else 0

    def is_so(row: Task, failure: Failure) -> bool:
        return row.status in FAILURES and row.last_error == failure.text

    failed = _written(rows, locked, count, is_so)
    _note(rows, [failure.attempt for _, failure in failed])
    compensation.store(rows, [task for task, _ in failed])
    for task, failure in failed:
        task.raised = failure.raised
    return [
        (task, FAILURES[TaskStatus(task.status)], {"error": failure.text})
        for task, failure in failed
    ]


def _write_failures(mine: TaskRows, failures: dict[Any, Failure]) -> int:
    """End the attempts of these locked rows, those that end alike by one statement. Returns
    how many it were."""
    texts = {key: each.text for key, each in failures.items()}
    tasks = [each.task for each in failures.values()]
    said = {**by_task("last_error", texts, failures), **_traces(tasks), **_kinds(tasks)}
    cancelled = mine.filter(CANCEL_REQUESTED).update(
        status=TaskStatus.CANCELLED, **said, **ending()
    )
    delays = {key: each.delay for key, each in failures.items() if each.delay is not None}
    again = 0
    if delays:
        starts = {key: delay for key, delay in delays.items() if delay}
        left = mine.filter(pk__in=list(delays), attempts__lt=F("max_attempts"))
        again = left.update(**said, **waiting(timedelta(0)), **starting(starts, delays))
    failed = 0
    if cancelled + again < len(failures):
        failed = mine.update(status=TaskStatus.FAILED, **said, **ending())
    return cancelled + again + failed


def _refund(
    rows: TaskRows,
    locked: Locked[TaskAttempt],
    *,
    delay: timedelta,
    event: str,
    like: dict[str, str] | None,
) -> TaskEvents:
    """Set the tasks ready in ``delay`` with their attempts uncounted, and put the records of these
    in place of those ``like`` them; None: store no records."""
    tasks = _tasks(locked)
    columns = {**refunding(delay), **_traces(tasks)}
    count = _of_grants(rows, tasks).update(**columns, **_kinds(tasks))
    waits = (TaskStatus.READY, TaskStatus.CANCELLED)
    given = _written(rows, locked, count, lambda row, _: row.status in waits)
    if like is not None:
        alike = attempt_model()._default_manager.using(rows.db).filter(**like)
        unprotected(alike.filter(task_id__in=[task.pk for task, _ in given]))._forget()
        _note(rows, [attempt for _, attempt in given])
    return [(task, event, {"reason": attempt.error}) for task, attempt in given]


def _cancel(rows: TaskRows, locked: Locked[TaskAttempt], *, text: str) -> TaskEvents:
    tasks = _tasks(locked)
    columns = {"status": TaskStatus.CANCELLED, "last_error": said(text), **ending()}
    count = _of_grants(rows, tasks).update(**columns, **_traces(tasks))
    ended = _written(rows, locked, count, lambda row, _: row.status == TaskStatus.CANCELLED)
    for task, attempt in ended:
        attempt.error = task.last_error
    _note(rows, [attempt for _, attempt in ended])
    return [(task, "task.cancelled", {}) for task, _ in ended]


def _note(rows: TaskRows, attempts: list[TaskAttempt]) -> None:
    attempt_model()._default_manager.using(rows.db).bulk_create(attempts)


def _traces(tasks: list[Task]) -> dict[str, Any]:
    """The columns of the traces that next attempts go on from."""
    traces = {task.pk: task.traced for task in tasks if task.traced}
    return by_task("trace_context", traces, tasks)


def _kinds(tasks: list[Task]) -> dict[str, Any]:
    """The column of the kinds of their handlers here, where the rows have others: by it they are
    claimed again."""
    kinds: dict[int, int] = {}
    for task in tasks:
        handler = registry.get(task.name)
        if handler is not None and handler.kind.number != task.__dict__.get("kind"):
            kinds[task.pk] = handler.kind.number
    return by_task("kind", kinds, tasks)


def _tasks(locked: Locked[Any]) -> list[Task]:
    return [task for task, _ in locked.values()]


def _refusal(output: Any) -> NotSerializable | None:
    try:
        check_json(output, OUTPUT)
    except NotSerializable as error:
        return error
    return None
