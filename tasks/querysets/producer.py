"""Verbs of producers: new rows, alone, in numbers, or after a commit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression

from leasing.db.dialects import after_commit
from leasing.runtime.events import during, happened
from tasks.notifier import (
    IN_STATEMENT_WINDOW,
    limiter,
    message_of,
    notify_now,
    notify_queues,
    takes_messages,
)
from tasks.payload import as_arguments, check_arguments, check_data
from tasks.producer import EnqueueOptions, ManyOptions
from tasks.querysets import bulk
from tasks.querysets.base import TaskRows
from tasks.querysets.columns import NewTask, NewTasks, new_task, new_tasks
from tasks.querysets.duplicates import store_unless_present
from tasks.querysets.sql import insert
from tasks.querysets.unique import OnDuplicate

if TYPE_CHECKING:
    from tasks.models import Task


#: Rows that one INSERT carries.
INSERT_BATCH = 500


def enqueue(rows: TaskRows, new: NewTask, on_duplicate: str) -> Task:
    """Store a task, as part of the caller's transaction."""
    with during("task.send", new.columns):
        task = _store(rows, new, on_duplicate)
        happened("task.sent", [task])
    return task


def enqueue_on_commit(
    rows: TaskRows,
    name_or_handler: str | Callable[..., Any],
    data: dict[str, Any] | None,
    using: str | None,
    **options: Unpack[EnqueueOptions],
) -> None:
    """Check everything now, and store the task once the transaction on ``using`` has committed."""
    new = new_task(rows, name_or_handler, copy.deepcopy(data), **options)
    mode = options.get("on_duplicate", OnDuplicate.SKIP.value)
    sending = during("task.send", new.columns)  # a part of what is done now

    def store() -> None:
        with sending:
            happened("task.sent", [_store(rows, new, mode)])

    transaction.on_commit(store, using=using or rows.db)


def enqueue_many(
    rows: TaskRows,
    name_or_handler: str | Callable[..., Any],
    data: Iterable[dict[str, Any] | None],
    **options: Unpack[ManyOptions],
) -> Sequence[Task]:
    """Store one task for each of ``data``, all or none."""
    new = new_tasks(rows, name_or_handler, **options)
    items = [as_arguments(each) for each in data]
    for each in items:
        check_arguments(new.handler.parameters, each)
    if not items:
        return []
    with during("task.send", new.columns):
        tasks = _store_many(rows, new, items)
        happened("tasks.sent", tasks)
    return tasks


def _store_many(rows: TaskRows, new: NewTasks, items: list[dict[str, Any]]) -> Sequence[Task]:
    connection = connections[rows.db]
    if insert.serves(rows.model, connection):
        stored = bulk.store(rows.model, connection, new, items)
    else:
        stored = _store_each(rows, new, items)
    notify_queues(rows.db, {new.columns["queue"]: new.columns["priority"]})
    rows._tell("task.enqueued", stored)
    return stored


def _store_each(rows: TaskRows, new: NewTasks, items: list[dict[str, Any]]) -> Sequence[Task]:
    items = [check_data(each) for each in items]
    tasks = [rows.model(**new.columns, task_data=each, **new.limit(each)) for each in items]
    with transaction.atomic(using=rows.db):
        rows._everything().bulk_create(tasks, batch_size=INSERT_BATCH)
    for task in tasks:
        _read_back_later(task)
    return tasks


def _store(rows: TaskRows, new: NewTask, on_duplicate: str) -> Task:
    columns = new.columns
    with_keys = "unique_key" in columns or "idempotency_key" in columns
    connection = connections[rows.db]
    if not with_keys and insert.serves(rows.model, connection):
        return _store_plain(rows, connection, new)
    rows, stored = rows.home(), True
    if with_keys:
        task, stored = store_unless_present(rows, new, on_duplicate)
    else:
        task = rows.model(**columns)
        task.save(using=rows.db, force_insert=True)
    if stored:
        _read_back_later(task)
        notify_queues(rows.db, {task.queue: task.priority})
        rows._tell("task.enqueued", [task])
    return task


def _store_plain(rows: TaskRows, connection: BaseDatabaseWrapper, new: NewTask) -> Task:
    model, using = rows.model, connection.alias
    queue, priority = new.columns["queue"], new.columns["priority"]
    alone = takes_messages(connection)
    if alone and limiter.is_due(using, queue, priority, IN_STATEMENT_WINDOW):
        key, moments = _store_notifying(rows, connection, new, message_of(queue, priority))
    else:
        key, moments = insert.insert(model, connection, new.columns, new.data)
        if alone:
            notify_now(using, queue, priority)
        else:
            notify_queues(using, {queue: priority})
    task = insert.instance(model, using, {**new.columns, "id": key, **moments})
    # Of the connection: to find it by the queryset takes as long as all that is told.
    after_commit(connection, partial(happened, "task.enqueued", [task]))
    return task


def _store_notifying(
    rows: TaskRows, connection: BaseDatabaseWrapper, new: NewTask, message: str
) -> insert.Inserted:
    try:
        inserted = insert.insert(rows.model, connection, new.columns, new.data, message)
    except BaseException as error:
        try:
            if not isinstance(error, DatabaseError):
                raise
            # It may be the message that was refused: PostgreSQL has room for so many.
            return insert.insert(rows.model, connection, new.columns, new.data)
        finally:
            # Others may have left the notification to this one, whatever becomes of its task.
            limiter.notify(connection.alias, message)
    limiter.notify_here(message)
    return inserted


def _read_back_later(task: Task) -> None:
    """Defer the moments that the database has computed: they are read when someone looks."""
    for name in ("scheduled_at", "unique_until"):
        if isinstance(task.__dict__.get(name), Expression):
            del task.__dict__[name]
