"""Ends of attempts, as their holder writes them: many in one short transaction, or one alone.

The rows are locked in the order of their keys. Then conditional updates write them: one update for
all completions, and one for each other end; the count of an update says whether it was refused. If
the database refuses a write of many tasks, each task is tried again alone, so that no task affects
the others. On PostgreSQL, one statement stores all completions of a worker, and one statement gives
back all tasks that the worker has not begun: ``tasks.querysets.sql.ends``.

The verb for one task calls the verb for many tasks with that one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import DataError, IntegrityError, transaction
from django.db.models import F

from leasing.db import sql
from leasing.db.deletion import unprotected
from leasing.db.dialects import atomic, in_transaction, lock
from leasing.functions import after
from leasing.holding.claim import ending as leaving_blocks
from tasks import registry
from tasks.exceptions import NotSerializable, Snooze
from tasks.notifier import notify
from tasks.payload import OUTPUT, check_json, dumped_json
from tasks.querysets import compensation
from tasks.querysets.base import TaskRows, TaskStatus, attempt_model
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.failure import described, pause_after, storable
from tasks.querysets.sql import ends as one_statement
from tasks.querysets.transitions import ByKey, cancellation, ending, over, traced
from tasks.querysets.unique import key_in_retry

if TYPE_CHECKING:
    from tasks.models import Task, TaskAttempt

#: Maximum number of characters of all outputs in one statement.
LARGEST = 16_000_000

Refused = list[tuple["Task", Exception]]
#: The tasks that a verb has changed, and the others, each with its error.
EndResult = tuple[list["Task"], Refused]
ClaimedRefused = list[tuple[ClaimedTask, Exception]]


@dataclass
class Ending:
    """The end of an attempt, before it is stored."""

    task: Task
    #: Returns the columns to write, from the locked row of the task. Endings that share a function
    #: have the same columns, and one update writes all of them.
    columns: Callable[[Task], dict[str, Any]]
    #: The record of the attempt; None: no record is stored. It replaces earlier records of the task
    #: that have the outcome, and perhaps the error, in ``like``.
    attempt: TaskAttempt | None = None
    like: dict[str, str] | None = None
    #: The name of the event, unless the task ends as failed or cancelled, and the reason.
    event: str = ""
    reason: str = ""
    raised: BaseException | None = None
    #: Further columns, whose values differ between tasks.
    own: dict[str, Any] = field(default_factory=dict)


class EndVerbs(TaskRows):
    """Ends of attempts."""

    def complete(self, task: Task, output: Any = None, *, unexpired: bool = False) -> Task:
        """Store ``output`` and end the task as succeeded, as part of the caller's transaction if
        there is one.

        Args:
            task: The task, as its holder has it.
            output: Any JSON.
            unexpired: True to require also that the deadline has not passed.

        Raises LeaseLost when this grant no longer holds the task (the output is dropped, and the
        attempt records the refusal), NotSerializable.
        """
        return only(_complete(self.home(task), [(task, output)], unexpired=unexpired))

    def complete_many(self, results: Iterable[tuple[Task, Any]]) -> EndResult:
        """``complete`` each task with its output, from pairs of both. Returns the completed tasks,
        and the others, each with its error (LeaseLost, NotSerializable, DataError)."""
        return _complete(self.home(), list(results))

    def complete_claimed(self, results: Iterable[tuple[ClaimedTask, Any]]) -> ClaimedRefused:
        """``complete_many`` for workers: on PostgreSQL it reads nothing back. Returns the tasks
        that are not completed, each with its error."""
        rows, results = self.home(), list(results)
        done = _complete_at_once(rows, results) if sql.serves(rows.db) else []
        if done:
            rows._tell("task.completed", done)
        ended = set(map(id, done))
        left = [result for result in results if id(result[0]) not in ended]
        if not left:
            return []
        claimed = {id(each.task): each for each, _ in left}
        _, refused = _complete(rows, [(each.task, output) for each, output in left])
        return [(claimed[id(task)], error) for task, error in refused]

    def fail(self, task: Task, error: BaseException | str, *, unexpired: bool = False) -> Task:
        """End this attempt as failed, and retry the task after a pause or fail it.

        The retry policy of its handler decides about the pause, or TASK_QUEUE["BACKOFF"] if this
        process does not know the handler. The task has failed when its attempts are used up, the
        error is a GiveUp, or the policy gives up. Raises LeaseLost.

        Args:
            task: The task, as its holder has it.
            error: The error; a policy gets text as a TaskError.
            unexpired: True to require also that the deadline has not passed.
        """
        return only(_fail(self.home(task), [(task, error)], unexpired=unexpired))

    def fail_many(self, failures: Iterable[tuple[Task, BaseException | str]]) -> EndResult:
        """``fail`` each task with its error, from pairs of both. Returns the tasks whose attempt is
        ended, and the others, each with its error (LeaseLost)."""
        return _fail(self.home(), failures)

    def give_back(
        self, task: Task, reason: str, *, delay: timedelta = timedelta(0), begun: bool = True
    ) -> Task:
        """Make a running task ready again without spending the attempt. Raises LeaseLost.

        If several attempts are given back for the same reason, the history keeps the latest, so
        that a task that is given back every minute does not fill it.

        Args:
            task: The task, as its holder has it.
            reason: The reason, for the history.
            delay: The time until it may start again.
            begun: False if its handler was never called: the history does not mention it.
        """
        return only(_give_back(self.home(task), [task], reason, delay, begun=begun))

    def give_back_many(self, tasks: list[Task], reason: str, *, begun: bool = True) -> EndResult:
        """``give_back`` each of ``tasks`` for the same ``reason``. Returns those that are ready
        again, and the others, each with its error (LeaseLost)."""
        return _give_back(self.home(), tasks, reason, begun=begun)

    def release_unstarted(self, claimed: Sequence[ClaimedTask], reason: str) -> ClaimedRefused:
        """``give_back_many`` for workers, of tasks whose handler was never called: on PostgreSQL it
        reads nothing back. Returns the refused ones, each with its error."""
        rows = self.home()
        released: list[ClaimedTask] = []
        if sql.serves(rows.db):
            # Of two attempts of one task, only the later: the returned keys do not say which it is.
            alike = {each.id: each for each in claimed if not _kind_of(each)}
            keys = one_statement.release_unstarted(rows.db, [*alike.values()]) if alike else set()
            released = [each for key, each in alike.items() if key in keys]
            notify(rows.db, released)
            if released:
                rows._tell("task.returned", released, reason=reason)
        done = set(map(id, released))
        left = {id(each.task): each for each in claimed if id(each) not in done}
        tasks = [each.task for each in left.values()]
        _, refused = _give_back(rows, tasks, reason, begun=False)
        return [(left[id(task)], error) for task, error in refused]

    def snooze(self, task: Task, delay: float | timedelta, reason: str = "") -> Task:
        """Postpone a running task, as its handler requested, without spending the attempt.
        Checkpoint and steps stay. The history keeps the latest snooze. Raises LeaseLost, ValueError
        (the delay).

        Args:
            task: The task, as its holder has it.
            delay: Seconds, or a timedelta, until it is tried again.
            reason: The reason, for the history.
        """
        nap = Snooze(delay, reason)
        attempt = attempt_model().of(task, "snoozed", storable(str(nap)))
        like = {"outcome": "snoozed"}
        return only(_refund(self.home(task), [(task, attempt)], "snooze", nap.delay, like))

    def accept_cancel(self, task: Task, by: str = "") -> Task:
        """End a running task as cancelled, after its holder has stopped at the request of ``by``.
        Raises LeaseLost."""
        attempt = attempt_model().of(task, "cancelled")

        def columns(row: Task) -> dict[str, Any]:
            attempt.error = row.last_error if row.cancel_requested_at else cancellation(by)
            shared = {"last_error": attempt.error, **traced(task)}
            return {"status": TaskStatus.CANCELLED, **shared, **ending()}

        return only(_end(self.home(task), [Ending(task, columns, attempt)], "cancel"))

    def release(self, row: Task) -> Task:
        """``give_back`` the task."""
        return self.give_back(row, "released by its holder")


def only(result: EndResult) -> Task:
    """Return the one task. Raises the error that it was refused with."""
    served, refused = result
    for _, error in refused:
        raise error
    return served[0]


def _complete(
    rows: TaskRows, results: list[tuple[Task, Any]], *, unexpired: bool = False
) -> EndResult:
    endings: list[Ending] = []
    unfit: Refused = []
    # Of a task that is named twice the first output counts.
    first = {id(result[0]): result for result in reversed(results)}
    for task, output in reversed(first.values()):
        try:
            own = {"task_output": check_json(output, OUTPUT)}
        except NotSerializable as error:
            unfit.append((task, error))
        else:
            endings.append(Ending(task, _succeeded, event="task.completed", own=own))
    completed, refused = _end(rows, endings, "complete", unexpired)
    return completed, [*unfit, *refused]


def _fail(
    rows: TaskRows,
    failures: Iterable[tuple[Task, BaseException | str]],
    *,
    unexpired: bool = False,
) -> EndResult:
    endings = []
    for task, error in failures:
        # The policy decides before the transaction begins: on SQLite, a transaction is a lock.
        delay, (text, *trace) = pause_after(task, error), described(error)
        shared = {"last_error": text, **traced(task), **_kind_of(task)}
        columns = partial(_unsuccessful, shared=shared, delay=delay, spent=True)
        attempt = attempt_model().of(task, "failed", text, *trace)
        raised = error if isinstance(error, BaseException) else None
        event = "task.attempt_failed"
        endings.append(Ending(task, columns, attempt, event=event, reason=text, raised=raised))
    return _end(rows, endings, "fail", unexpired)


def _give_back(
    rows: TaskRows,
    tasks: list[Task],
    reason: str,
    delay: timedelta = timedelta(0),
    *,
    begun: bool = True,
) -> EndResult:
    of = attempt_model().of
    attempts = [(task, of(task, "returned", reason)) for task in tasks]
    like = {"outcome": "returned", "error": reason} if begun else None
    returned, refused = _refund(rows, attempts, "give back", delay, like)
    if not delay:
        notify(rows.db, [task for task in returned if task.status == TaskStatus.READY])
    return returned, refused


def _refund(
    rows: TaskRows,
    attempts: list[tuple[Task, TaskAttempt]],
    verb: str,
    delay: timedelta,
    like: dict[str, str] | None,
) -> EndResult:
    """Make the tasks ready after ``delay``, without counting the attempts. The record of an attempt
    replaces earlier records that match ``like``; None: no record is stored."""
    event = "task.snoozed" if verb == "snooze" else "task.returned"
    endings = []
    for task, attempt in attempts:
        shared = {"attempts": F("attempts") - 1, **traced(task), **_kind_of(task)}
        columns = partial(_unsuccessful, shared=shared, delay=delay)
        record = attempt if like else None
        endings.append(Ending(task, columns, record, like, event=event, reason=attempt.error))
    return _end(rows, endings, verb)


# Columns to write to a locked row


def _succeeded(row: Task) -> dict[str, Any]:
    return {"status": TaskStatus.SUCCEEDED, **ending()}


def _unsuccessful(
    row: Task, shared: dict[str, Any], delay: timedelta | None, *, spent: bool = False
) -> dict[str, Any]:
    """Return the columns of a task that is tried again after ``delay``. The task is cancelled
    instead if that was requested, and fails if ``delay`` is None, or if this attempt is ``spent``
    and was the last. All three have the ``shared`` columns."""
    if row.cancel_requested_at is not None:
        return {"status": TaskStatus.CANCELLED, **shared, **ending()}
    if delay is None or spent and row.attempts >= row.max_attempts:
        return {"status": TaskStatus.FAILED, **shared, **ending()}
    moved = {"scheduled_at": after(delay)} if delay else {}
    freed = {"unique_key": key_in_retry()} if spent else {}
    return {"status": TaskStatus.READY, **moved, **freed, **over(), **shared}


def _kind_of(task: Task | ClaimedTask) -> dict[str, int]:
    """Return the column ``kind`` if the handler in this process may have another kind than the row:
    the next claim selects the task by its kind."""
    handler = registry.get(task.name)
    known = task.kind if isinstance(task, ClaimedTask) else task.__dict__.get("kind")
    if handler is None or handler.kind.number == known:
        return {}
    return {"kind": handler.kind.number}


# Storing


def _end(
    rows: TaskRows,
    endings: list[Ending],
    verb: str,
    unexpired: bool = False,
) -> EndResult:
    refused = _end_together(rows, endings, verb, unexpired)
    tasks = [each.task for each in endings]
    return (
        [task for task in tasks if id(task) not in refused],
        [(task, refused[id(task)]) for task in tasks if id(task) in refused],
    )


def _end_together(
    rows: TaskRows, endings: list[Ending], verb: str, unexpired: bool
) -> dict[int, Exception]:
    """Store ``endings`` in a transaction, and publish their events. Returns the errors of refused
    tasks, by the ``id()`` of the task."""
    if not endings:
        return {}
    stored: list[Ending] = []
    failure: Exception | None = None
    with leaving_blocks(rows.db, [each.task for each in endings]) as standing:
        try:
            with atomic(rows.db):
                stored = _store(rows, endings, unexpired)
        except (DataError, IntegrityError) as error:
            failure = error
        ended = {id(each.task) for each in stored}
        left = [each for each in endings if id(each.task) not in ended]
        standing += [each.task for each in left]
    for each in stored:
        _tell(rows, each)
    if failure is not None and len(endings) > 1:
        alone = [_end_together(rows, [each], verb, unexpired) for each in left]
        return {key: error for refused in alone for key, error in refused.items()}
    return {id(each.task): failure or rows._refuse(each.task, verb) for each in left}


def _store(rows: TaskRows, endings: list[Ending], unexpired: bool) -> list[Ending]:
    """Store those ``endings`` whose grants still hold their tasks, and return them. The tasks then
    have the values of their rows."""
    # If an attempt is named twice, its first ending counts; of two attempts of a task, the one that
    # the row is in counts.
    first = {(each.task.pk, each.task.grant_id): each for each in reversed(endings)}
    keys, grants = zip(*first, strict=True)
    mine = rows._everything().filter(pk__in=keys, grant_id__in=grants).holding().order_by("pk")
    judged = ("grant_id", "attempts", "max_attempts", "cancel_requested_at", "last_error")
    locked = {row.pk: row for row in lock(mine.only("pk", *judged))}
    together = defaultdict(list)
    for key, row in locked.items():
        if each := first.get((key, row.grant_id)):
            together[each.columns].append(each)
    stored = []
    for columns, alike in together.items():
        row = locked[alike[0].task.pk]
        # With all conditions again: not every database has row locks.
        keys, grants = zip(*[(each.task.pk, each.task.grant_id) for each in alike], strict=True)
        is_same: dict[str, Any] = {"pk__in": keys, "grant_id__in": grants}
        if len(alike) == 1:  # many are completed whether their cancellation was requested or not
            is_same["cancel_requested_at__isnull"] = row.cancel_requested_at is None
        still = rows._everything().filter(**is_same).holding()
        own = {name: _each_its_own(name, alike) for name in alike[0].own}
        written = (still.unexpired() if unexpired else still).update(**columns(row), **own)
        if written == len(alike):
            stored += alike
        elif len(alike) > 1:
            raise IntegrityError("Some of these tasks have changed: each is tried alone.")
    _read_back(rows, [each.task for each in stored])
    for each in stored:
        each.task.raised = each.raised
    tasks = [each.task for each in stored]
    attempts = attempt_model()._default_manager.using(rows.db)
    if stored and (like := stored[0].like):  # the same for all endings of one verb
        unprotected(attempts.filter(task__in=tasks, **like))._forget()
    attempts.bulk_create([each.attempt for each in stored if each.attempt is not None])
    compensation.store(rows, tasks)
    return stored


def _each_its_own(column: str, alike: list[Ending]) -> Any:
    """Return the value that one update sets ``column`` to, where each of ``alike`` has its own."""
    one, values = alike[0].own[column], {each.task.pk: each.own[column] for each in alike}
    if all(each is one for each in values.values()):
        return one
    written: Any = alike[0].task._meta.get_field(column)
    return ByKey(values, written)


def _read_back(rows: TaskRows, tasks: list[Task]) -> None:
    found = rows._everything().in_bulk([task.pk for task in tasks]) if tasks else {}
    for task in tasks:
        for column in task._meta.concrete_fields:
            setattr(task, column.attname, getattr(found[task.pk], column.attname))


def _tell(rows: TaskRows, ended: Ending) -> None:
    task = ended.task
    if task.status == TaskStatus.CANCELLED:
        rows._tell_cancelled(task)
    elif task.status == TaskStatus.FAILED:
        rows._tell("task.failed", [task], error=task.last_error)
    elif task.status == TaskStatus.SUCCEEDED:
        rows._tell(ended.event, [task])
    elif ended.event == "task.attempt_failed":
        rows._tell(ended.event, [task], error=ended.reason)
    else:
        rows._tell(ended.event, [task], reason=ended.reason)


# In one statement


def _complete_at_once(rows: TaskRows, results: list[tuple[ClaimedTask, Any]]) -> list[ClaimedTask]:
    """Complete the tasks that their grants still hold, and return those; none if an output is
    refused, or all outputs together are too large for one statement."""
    by_id: dict[int, tuple[ClaimedTask, Any]] = {}
    for result in results:
        by_id.setdefault(result[0].id, result)
    by_id = {key: by_id[key] for key in sorted(by_id)}
    outputs = [output for _, output in by_id.values()]
    try:
        # To encode all outputs together takes half as long as one by one, and seldom fails.
        text = dumped_json(outputs, OUTPUT)
        if len(text) > LARGEST:
            return []
        # Within the caller's transaction, a savepoint confines an error of the statement.
        with transaction.atomic(rows.db) if in_transaction(rows.db) else nullcontext():
            done = one_statement.complete(rows.db, [each for each, _ in by_id.values()], text)
    except (NotSerializable, DataError, IntegrityError):
        return []
    for key, at in done.items():
        claimed, output = by_id[key]
        claimed.ended_with = output, at
    return [by_id[key][0] for key in done]
