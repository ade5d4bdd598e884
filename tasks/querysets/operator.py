"""Verbs of operators: on whatever a queryset has, some hundred rows in a transaction.

Cancelling ends at once what waits, and in two stages what runs. A running task is asked: its
holder hears of it with the next heartbeat and ends the work, or completes it all the same. A task
that was asked is never tried again: whatever would set it ready (a failure, a stop, a recovery)
ends it as cancelled. Children are cancelled with what is ended or asked, and theirs with them; what
had ended is not touched, nor are its children.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest

from leasing.db.deletion import delete_batch, delete_up_to, unprotected
from leasing.db.dialects import atomic, lock
from leasing.functions import DbNow
from leasing.validation.values import check_moment
from tasks.bounds import PRIORITIES, check_between
from tasks.notifier import notify, notify_holders
from tasks.querysets.base import CANCEL_REQUESTED, TaskRows, TaskStatus, step_model
from tasks.querysets.recovery import REVOKED, take_from_holders
from tasks.querysets.transitions import cancellation, closing, known_kind, with_parent
from tasks.querysets.unique import key_once_retried
from tasks.registry import check_queue

if TYPE_CHECKING:
    from tasks.models import Task

Written = TypeVar("Written")

#: Rows that one transaction of a bulk verb takes.
BULK_BATCH = 500
OPEN = (TaskStatus.READY, TaskStatus.RUNNING)


class OperatorVerbs(TaskRows):
    """On whatever a queryset has."""

    def cancel(self, by: str = "", reason: str = "") -> int:
        """Cancel these tasks in the name of ``by``. Waiting ones end at once. Running ones are
        asked to stop, and end at their handler's next ``ctx.ensure()`` or await.

        Returns how many ended or were asked now, not those that had ended or were asked before.

        If the caller dies in between, recovery goes on: the invariant ``left_behind``.
        """
        rows, count = self.home()._of_one_table(), 0
        levels = deque([(rows, reason)])
        while levels:
            level, why = levels.popleft()
            write = partial(_cancel, rows, by=by, text=cancellation(by, why))
            for ended, asked in _batch_by_batch(level.filter(status__in=OPEN), write):
                for task in ended:
                    rows._tell_cancelled(task, reason=why)
                notify_holders(rows.db, asked)
                if reached := [*(task.pk for task in ended), *asked]:
                    levels.append(
                        (rows._everything().filter(parent__in=reached), with_parent(reason))
                    )
                    count += len(reached)
        return count

    async def acancel(self, by: str = "", reason: str = "") -> int:
        """``cancel``, for async code."""
        return await sync_to_async(self.cancel)(by, reason)

    def retry(self, by: str = "") -> int:
        """Make failed and cancelled tasks ready again, with one more attempt if all were used.
        Returns how many.

        Each transaction has some hundred; if a later one fails, the earlier ones stay committed. A
        task whose unique key another task has by now stays as it is.
        """
        rows = self.home()
        over = Q(status__in=[TaskStatus.FAILED, TaskStatus.CANCELLED])
        over &= ~rows.is_without_its_key() & ~rows.is_bound_by_compensation()
        columns = {
            "status": TaskStatus.READY,
            "scheduled_at": DbNow(),
            "processed_at": None,
            "unique_key": key_once_retried(),
            "max_attempts": Greatest(F("max_attempts"), F("attempts") + 1),
            # It was asked to stop in a life that is over.
            "cancel_requested_at": None,
            "cancel_requested_by": "",
            "checkpoint": Case(When(rows.is_undone(), then=Value(None)), default=F("checkpoint")),
        }
        return _make_ready(rows, over, columns, "task.retried", by, _forget_undone, _cut_off)

    async def aretry(self, by: str = "") -> int:
        """``retry``, for async code."""
        return await sync_to_async(self.retry)(by)

    def reschedule(
        self,
        *,
        queue: str | None = None,
        scheduled_at: datetime | None = None,
        priority: int | None = None,
        by: str = "",
    ) -> int:
        """Move waiting tasks to another queue, time or priority, some hundred per transaction.
        Returns how many.

        Args:
            queue: The new queue; None: unchanged.
            scheduled_at: The new time; None: unchanged.
            priority: The new priority; None: unchanged.
            by: The operator.

        Raises UnknownQueue; ValueError when none is given, the time has no zone, or the priority is
        out of bounds.
        """
        columns: dict[str, Any] = {}
        if queue is not None:
            # A message that is under way is for workers of the old one.
            columns |= {"queue": check_queue(queue), "published_at": None}
        if scheduled_at is not None:
            columns["scheduled_at"] = check_moment(scheduled_at, "scheduled_at")
        if priority is not None:
            columns["priority"] = check_between(priority, *PRIORITIES, "priority")
        if not columns:
            raise ValueError("Give a queue, a time, or a priority.")
        return _make_ready(self.home(), Q(status=TaskStatus.READY), columns, "task.rescheduled", by)

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take running tasks from their holders, as recovery would, without waiting for the
        deadline. They may start again at once. What a holder has done is not undone; its late
        result is refused."""
        text = f"{REVOKED}{by or 'an operator'}" + (f": {reason}" if reason else "")
        return take_from_holders(
            self.home(), TaskRows.running, None, lambda task: text, "revoked", backs_off=False
        )

    def discard(self, by: str = "") -> int:
        """Delete those of these tasks that have ended, with their attempts and steps, some hundred
        per transaction. Returns how many. A task that a row of another app protects stays."""
        rows, last, discarded = self.home()._of_one_table(), 0, 0
        ended = unprotected(rows.erasable()).only("name", "queue", "status").order_by("pk")
        delete = partial(_delete, rows)
        while True:
            left = ended.filter(pk__gt=last)
            count, tasks = delete_batch(left, BULK_BATCH, delete, skip_locked=False)
            rows._tell(
                "task.discarded", tasks if count == len(tasks) else _gone(rows, tasks), by=by
            )
            discarded += count
            if len(tasks) < BULK_BATCH:
                return discarded
            last = tasks[-1].pk

    def prune(self, age: timedelta, limit: int = BULK_BATCH) -> int:
        """Delete up to ``limit`` of these tasks that ended ``age`` ago or earlier, the oldest
        first, in one transaction. Returns how many; call again while it is ``limit``.

        Locked rows are skipped, so any number of processes may prune at a time. A task whose unique
        key is kept for a window stays until the window ends. A task that a row of another app
        protects stays as long as that row does.
        """
        rows = self.home()
        prunable = unprotected(rows.prunable(age)).only("pk").order_by("processed_at", "pk")
        return delete_up_to(prunable, limit, partial(_delete, rows))


def _cancel(rows: TaskRows, keys: list[int], *, by: str, text: str) -> tuple[list[Task], list[int]]:
    """End or ask those with these ``keys``, which are locked: the tasks that ended, and the
    keys of those that were asked."""
    mine = rows._everything().filter(pk__in=keys)
    asking = {"cancel_requested_at": DbNow(), "cancel_requested_by": by, "last_error": text}
    running = mine.running().exclude(CANCEL_REQUESTED).order_by("pk")
    to_ask = list(running.values_list("pk", flat=True))
    waiting = mine.filter(status=TaskStatus.READY)
    waiting.update(status=TaskStatus.CANCELLED, **asking, **closing())
    asked = mine.filter(pk__in=to_ask).running()
    asked.update(**asking)
    return list(mine.cancelled().order_by("pk")), list(asked.values_list("pk", flat=True))


def _forget_undone(chosen: TaskRows) -> None:
    """Delete the steps of those that were undone. All compensations stay locked, so that nobody
    retries one at the same time."""
    undoing = chosen._everything().filter(compensation="", parent__in=chosen.values("pk"))
    list(lock(undoing.order_by("pk")).values_list("pk"))
    steps = step_model()._default_manager.using(chosen.db)
    steps.filter(task__in=chosen.filter(chosen.is_undone()).values("pk")).delete()


def _cut_off(ready: TaskRows) -> None:
    """Take those that an operator retries from parents that are stopped, with which recovery would
    cancel them again. One whose parent was retried with it, or before, stays its child."""
    ready.filter(parent__in=ready._everything().stopped().values("pk")).update(parent=None)


def _make_ready(
    rows: TaskRows,
    demand: Q,
    columns: dict[str, Any],
    event: str,
    by: str,
    first: Callable[[TaskRows], object] = lambda chosen: None,
    then: Callable[[TaskRows], object] = lambda ready: None,
) -> int:
    """Update those among ``rows`` that meet ``demand``: ``first`` is called with them while they
    are locked, and ``then`` with those that are ready."""
    rows, changed = rows._of_one_table(), 0

    def write(keys: list[int]) -> tuple[int, list[Task]]:
        first(rows._everything().filter(pk__in=keys))
        done = _write_ready(rows, keys, demand, columns)
        ready = rows._everything().filter(pk__in=keys, status=TaskStatus.READY)
        if done:
            then(ready)
        return done, list(ready.order_by("pk")) if done else []

    for done, tasks in _batch_by_batch(rows.filter(demand), write):
        if tasks:
            rows._tell(event, tasks, by=by)
        notify(rows.db, tasks)
        changed += done
    return changed


def _write_ready(rows: TaskRows, keys: list[int], demand: Q, columns: dict[str, Any]) -> int:
    # With the condition again: not every database has row locks.
    chosen = rows._everything().filter(demand, pk__in=keys)
    try:
        with transaction.atomic(using=rows.db):
            return chosen.update(kind=known_kind(), **columns)
    except IntegrityError:
        if len(keys) <= 1:
            return 0  # its key was taken just before
    # Two of them have one key: each on its own, and the second not.
    return sum(_write_ready(rows, [key], demand, columns) for key in keys)


def _batch_by_batch(rows: TaskRows, write: Callable[[list[int]], Written]) -> Iterator[Written]:
    """``write`` to ``rows``, which are locked, some hundred in a transaction: a hundred thousand
    failed tasks must not keep everybody else from their rows for as long as they take."""
    last = 0
    while True:
        with atomic(rows.db):
            found = lock(rows.filter(pk__gt=last).order_by("pk"))
            keys = list(found.values_list("pk", flat=True)[:BULK_BATCH])
            written = write(keys)
        yield written
        if len(keys) < BULK_BATCH:
            return
        last = keys[-1]


def _gone(rows: TaskRows, tasks: list[Task]) -> list[Task]:
    """Return the part of ``tasks`` whose rows are gone."""
    there = rows._everything().filter(pk__in=[task.pk for task in tasks])
    keys = set(there.values_list("pk", flat=True))
    return [task for task in tasks if task.pk not in keys]


def _delete(rows: TaskRows, keys: list[int]) -> int:
    """Delete ``keys``, which this transaction has locked. (SQLite has no row locks; there
    another writer's change since they were read fails the transaction.) A parent stays while others
    have a child of it locked: to wait for them would deadlock with one that deletes the child's
    row, and the parent of a row that is deleted here."""
    everything = rows._everything()
    children = everything.filter(parent__in=keys)
    everything.filter(pk__in=lock(children, skip_locked=True).values("pk")).update(parent=None)
    busy = set(children.values_list("parent_id", flat=True))
    keys = [key for key in keys if key not in busy]
    # With the key alone: what hangs on a task is deleted by set, and no payload is read.
    gone = everything.filter(pk__in=keys).only("pk")
    _, counts = gone.delete() if keys else (0, {})
    return counts.get(rows.model._meta.label, 0)
