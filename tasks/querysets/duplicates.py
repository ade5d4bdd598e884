"""Enqueues that meet a task with the same key: counted, answered, or written into that task."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, connections, transaction
from django.db.models import Case, F, Q, When
from django.db.models.expressions import DatabaseDefault
from django.db.models.functions import Greatest

from leasing.db.dialects import after_commit, lock
from leasing.exceptions import PayloadMismatch
from leasing.functions import DbNow
from leasing.runtime.events import happened
from leasing.stores.rows import pause_shortly
from tasks import registry
from tasks.exceptions import KeyBusy
from tasks.notifier import notify
from tasks.payload import is_same_json
from tasks.querysets.base import TaskRows, TaskStatus, step_model
from tasks.querysets.claimed import is_traced
from tasks.querysets.sql import insert
from tasks.querysets.unique import OnDuplicate

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.producer import NewTask

#: Columns that a replacement overwrites, in addition to the number of attempts.
REPLACED = (
    "name",
    "kind",
    "task_data",
    "queue",
    "priority",
    "timeout",
    "progress_timeout",
    "concurrency_key",
    "concurrency_limit",
    "parent_id",
    "compensation",
)


#: Tries if the task that has the key ends in between.
TRIES = 3
#: Tries, some ten milliseconds each, to lock the row of the task that has the key: if the enqueue
#: needs the row, and if it only counts a duplicate.
LOOKS = 400
LOOKS_TO_COUNT = 10


def store_unless_present(rows: TaskRows, new: NewTask) -> tuple[Task, bool]:
    """Store a ``new`` task, or return the one that has its key; and whether it was stored.

    The unique columns decide which of two concurrent enqueues is stored: the second waits for the
    commit or rollback of the first.
    """
    for _ in range(TRIES):
        stored = _store_if_new(rows, new)
        if stored is not None:
            return stored, True
        # With the data as the row has it: names that are numbers, for one, are strings there.
        task = rows.model(**{**new.row_columns, "task_data": json.loads(new.data)})
        present = _same_enqueue(rows, task) or _with_unique_key(rows, task, new.on_duplicate)
        if present is not None:
            present.is_duplicate = True
            return present, False
        # It ended in between, or its window has ended: its key is free again.
    return _save_new(rows, new), True  # or raise the error that refuses it


def _store_if_new(rows: TaskRows, new: NewTask) -> Task | None:
    """Store the ``new`` task and return it; None if another task has its key. A plain INSERT would
    wait for a transaction that writes to that task, such as one of its handler."""
    connection = connections[rows.db]
    if insert.serves(rows.model, connection):
        stored: Task | None = insert.one(rows.model, connection, new, unless_present=True)
        return stored
    # Without row locks, the INSERT waits for any other writer in any case.
    if connection.features.has_select_for_update and _with_a_key_of(rows, new).exists():
        return None
    with suppress(IntegrityError):
        return _save_new(rows, new)
    return None


def _save_new(rows: TaskRows, new: NewTask) -> Task:
    task = rows.model(**new.row_columns)
    with transaction.atomic(using=rows.db):
        task.save(using=rows.db, force_insert=True)
    return task


def _with_a_key_of(rows: TaskRows, new: NewTask) -> TaskRows:
    has_key = [
        Q((key, new.columns[key]))
        for key in ("unique_key", "idempotency_key")
        if key in new.columns
    ]
    return rows._everything().filter(Q(*has_key, _connector=Q.OR))


def _same_enqueue(rows: TaskRows, task: Task) -> Task | None:
    """The task that was stored under the idempotency key. Raises PayloadMismatch."""
    if task.idempotency_key is None:
        return None
    present = rows._everything().filter(idempotency_key=task.idempotency_key).first()
    if present is not None and not (
        registry.present_name(present.name) == task.name
        and is_same_json(present.task_data, task.task_data)
    ):
        raise PayloadMismatch(task.idempotency_key)
    return present


def _with_unique_key(rows: TaskRows, task: Task, on_duplicate: str) -> Task | None:
    """The task that keeps the unique key, after ``on_duplicate`` was done with it."""
    if task.unique_key is None:
        return None
    is_over = Case(When(unique_until__lte=DbNow(), then=True), default=False)
    with_key = rows._everything().filter(unique_key=task.unique_key)
    present = with_key.annotate(window_is_over=is_over).first()
    if present is None:
        return None
    if present.window_is_over:  # type: ignore[attr-defined]
        # Freed here or by another enqueue, whose task may have the key by now: look again.
        _free_overdue(rows, task.unique_key)
        return None
    if on_duplicate != OnDuplicate.SKIP:
        replaced = _replace(rows, task, keep_time=on_duplicate == OnDuplicate.KEEP_TIME)
        if replaced is not None:
            return replaced
    _count_duplicate(rows, present)
    return present


def _free_overdue(rows: TaskRows, unique_key: str) -> None:
    """Take the key from a task whose window is over, whether it has ended or not."""
    overdue = rows._everything().filter(unique_key=unique_key, unique_until__lte=DbNow())
    with transaction.atomic(using=rows.db):
        _lock_soon(overdue, unique_key)
        overdue.update(unique_key=None)


def _replace(rows: TaskRows, task: Task, *, keep_time: bool) -> Task | None:
    """Make the waiting task with this unique key what ``task`` says; None when it does not
    wait. It keeps its attempts, and its key for as long as was said at first."""
    with transaction.atomic(using=rows.db):
        waiting = rows._everything().filter(unique_key=task.unique_key, status=TaskStatus.READY)
        present = _lock_soon(waiting, task.unique_key)
        if present is None or not waiting.update(**_replacing(task, keep_time)):
            return None
        if present.grants:  # what it did for the old data, in attempts that were refunded too
            step_model()._default_manager.using(rows.db).filter(task_id=present.pk).delete()
        present.refresh_from_db(using=rows.db)
    rows._tell("task.replaced", [present])
    notify(rows.db, [present])
    return present


def _replacing(task: Task, keep_time: bool) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(task, name) for name in REPLACED}
    if not keep_time:
        columns["scheduled_at"] = _start_of(task)
    if is_traced():
        columns["trace_context"] = task.trace_context
    return columns | {
        "max_attempts": Greatest(task.max_attempts, F("attempts") + 1),
        "progress": None,
        "progressed_at": None,
        "checkpoint": None,
        # What its client asked for is not stored any more; asked again it meets the unique key.
        "idempotency_key": None,
    }


def _count_duplicate(rows: TaskRows, task: Task) -> None:
    """Count what ``task`` turned away, once the caller's transaction has ended: the row of a
    running task stays free for its heartbeats meanwhile. Where somebody keeps it locked it is
    not counted: that is worth nobody's waiting."""

    def count() -> None:
        counted = rows._everything().filter(pk=task.pk)
        with suppress(KeyBusy), transaction.atomic(using=rows.db):
            _lock_soon(counted.only("pk"), task.unique_key, LOOKS_TO_COUNT)
            counted.update(duplicates=F("duplicates") + 1)
        happened("task.duplicate", [task])

    task.duplicates += 1
    after_commit(rows.db, count)


def _lock_soon(rows: TaskRows, unique_key: str | None, looks: int = LOOKS) -> Task | None:
    """The one of ``rows``, locked in the caller's transaction; None when there is none. Raises
    KeyBusy when another transaction keeps it locked."""
    for _ in range(looks):
        row = lock(rows, skip_locked=True).first()
        if row is not None or not rows.exists():
            return row
        pause_shortly()
    raise KeyBusy(unique_key)


def _start_of(task: Task) -> Any:
    """Return the start of an unsaved ``task``: a moment, or the expression of one."""
    start: Any = task.scheduled_at
    is_default = isinstance(start, DatabaseDefault)
    return start.expression if is_default else start
