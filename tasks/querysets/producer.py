"""Verbs of producers: new rows, alone, in numbers, or after a commit.

The columns of a new task are what the caller says, then its handler, then the settings.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression

from leasing.db.dialects import in_transaction
from leasing.db.routing import database_of
from leasing.functions import after
from leasing.runtime.events import during, happened
from leasing.validation.names import check_name
from leasing.validation.values import check_moment
from tasks import registry
from tasks.bounds import COUNTS, PRIORITIES, check_between, check_delay, check_limit
from tasks.conf import task_settings
from tasks.notifier import (
    IN_STATEMENT_WINDOW,
    limiter,
    message_of,
    notify_now,
    notify_queues,
)
from tasks.payload import as_arguments, check_data, dumped_data
from tasks.producer import EnqueueOptions, ManyOptions, Parent
from tasks.querysets.base import COMPENSATION_KEYS, TaskRows
from tasks.querysets.duplicates import store_unless_present
from tasks.querysets.sql import insert
from tasks.querysets.unique import OnDuplicate, UniqueFor, lifetime
from tasks.registry import Handler, check_queue

if TYPE_CHECKING:
    from tasks.models import Task

#: Rows that one INSERT of Django's carries.
INSERT_BATCH = 500
#: The column of the moment that each interval leads to, from now on.
MOMENTS = {"delay": "scheduled_at", "window": "unique_until"}


_ON_DUPLICATE = tuple(OnDuplicate.values)


class NewTask(NamedTuple):
    """A task to be stored."""

    #: The columns that may differ from the model's defaults.
    columns: dict[str, Any]
    #: Those of MOMENTS that are given.
    intervals: dict[str, timedelta]
    #: ``task_data`` as JSON.
    data: str
    on_duplicate: str = OnDuplicate.SKIP.value

    @property
    def row_columns(self) -> dict[str, Any]:
        """Return the columns as a model instance takes them."""
        moments = {MOMENTS[name]: after(interval) for name, interval in self.intervals.items()}
        return self.columns | moments


class NewTasks(NamedTuple):
    """Tasks with ``columns`` and ``intervals`` in common, that have different data."""

    handler: Handler
    columns: dict[str, Any]
    intervals: dict[str, timedelta]
    #: True if each is limited by a key that its data makes; else ``columns`` have what limits them.
    limited_by_data: bool
    concurrency_limit: int | None

    def limit(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the concurrency columns of the task with ``data``, which make its key."""
        handler = self.handler
        try:
            key = handler.concurrency_key.format(**(handler.key_defaults | data))
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise ValueError(
                f"The arguments of {handler.name} do not fit its concurrency key"
                f" {handler.concurrency_key!r}: {error!r}"
            ) from error
        return _limited(handler, key, self.concurrency_limit)


class ProducerVerbs(TaskRows):
    """New tasks."""

    def enqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Task:
        """Store a task, as part of the caller's transaction if there is one.

        Args:
            name_or_handler: The name of the task, or its handler.
            data: The handler's keyword arguments.
            queue: The queue; the handler's by default.
            priority: A number from -32768 to 32767; higher goes first.
            scheduled_at: The earliest time at which it starts.
            delay: The same in seconds from now, by the database's clock.
            unique_key: A key that one task has at a time. Another enqueue with the key returns that
                task, with ``is_duplicate`` set, and stores nothing.
            unique_for: How long the task keeps that key: "waiting" (until its claim), "running"
                (until its first attempt ends), "finished", or a window in seconds.
            on_duplicate: The effect on a waiting task with that key: "skip" leaves it, "replace"
                gives it the arguments of this call, "keep_time" does so except for its time.
            idempotency_key: A key that returns the same task again, ended or not.
            max_attempts: The number of attempts; the handler's by default.
            timeout: Seconds that one attempt may run; the handler's by default.
            progress_timeout: Seconds without progress in one attempt; the handler's by default.
            concurrency_key: Tasks that share this key are limited together; the handler's by
                default. Used literally, without a template; empty: no key.
            concurrency_limit: The number of tasks of that key that run at a time; the handler's by
                default.
            parent: The task with which this one is cancelled: a Task, its key, or the context of
                its handler. A parent that has ended is never cancelled, so neither is this one.

        Raises UnknownTask, UnknownQueue, InvalidArguments (the handler does not take the data),
        NotSerializable, InvalidResource (a key), ValueError, PayloadMismatch (the idempotency key
        was used for another task or other data), KeyBusy (another transaction has locked the task
        that has the unique key).
        """
        return store(self, new_task(self, name_or_handler, data, **options))

    async def aenqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Task:
        """``enqueue``, for async code."""
        return await sync_to_async(self.enqueue)(name_or_handler, data, **options)

    def enqueue_on_commit(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        using: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> None:
        """Check the arguments now, and store the task once the caller's transaction has committed.

        Outside of a transaction the task is stored at once; after a rollback it is not stored. A
        delay counts from the commit.

        This is for transactions on another database than that of the tasks. In the same database
        use ``enqueue``: its task cannot get lost between the commit and the INSERT. Errors are
        those of ``enqueue``. PayloadMismatch and errors of the database are raised by the commit.

        Args:
            name_or_handler: The name of the task, or its handler.
            data: The handler's keyword arguments.
            using: The alias of the transaction's database; that of the tasks by default.
            options: The other arguments of ``enqueue``.
        """
        rows = self.home()
        new = new_task(rows, name_or_handler, copy.deepcopy(data), **options)
        block = during("task.send", new.columns)  # a part of what is done now
        transaction.on_commit(lambda: store(rows, new, block), using=using or rows.db)

    def enqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        **options: Unpack[ManyOptions],
    ) -> Sequence[Task]:
        """Store one task for each of ``data``, all or none. Arguments and errors are those of
        ``enqueue``; there are no unique and no idempotency keys.

        The sequence makes the instances when they are read.
        """
        rows = self.home()
        new = new_tasks(rows, name_or_handler, **options)
        items = [as_arguments(each, new.handler.parameters) for each in data]
        if not items:
            return []
        connection = connections[rows.db]
        with during("task.send", new.columns):
            if insert.serves(rows.model, connection):
                tasks = insert.many(rows.model, connection, new, items)
            else:
                tasks = _store_each(rows, new, items)
            notify_queues(rows.db, {new.columns["queue"]: new.columns["priority"]})
            rows._tell("task.enqueued", tasks)
            happened("tasks.sent", tasks)
        return tasks

    async def aenqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        **options: Unpack[ManyOptions],
    ) -> Sequence[Task]:
        """``enqueue_many``, for async code."""
        return await sync_to_async(self.enqueue_many)(name_or_handler, data, **options)


# The columns of a new task


def new_task(
    rows: TaskRows,
    name_or_handler: str | Callable[..., Any],
    data: dict[str, Any] | None,
    *,
    unique_key: str | None = None,
    unique_for: str | float | timedelta = UniqueFor.FINISHED.value,
    on_duplicate: str = OnDuplicate.SKIP.value,
    idempotency_key: str | None = None,
    **options: Unpack[ManyOptions],
) -> NewTask:
    """Return the row that ``enqueue`` stores for its arguments, checked; see there."""
    new = new_tasks(rows, name_or_handler, **options)
    checked, text = dumped_data(data, new.handler.parameters)
    columns, intervals = new.columns, new.intervals
    columns["task_data"] = checked
    if new.limited_by_data:
        columns |= new.limit(checked)
    if on_duplicate not in _ON_DUPLICATE:
        raise ValueError(f"on_duplicate must be one of {', '.join(_ON_DUPLICATE)}.")
    if unique_key is not None:
        columns["unique_key"] = columns["enqueued_key"] = check_name(unique_key, "unique key")
        columns["unique_for"], window = lifetime(unique_for)
        if window is not None:
            intervals["window"] = window
    elif on_duplicate != OnDuplicate.SKIP or unique_for != UniqueFor.FINISHED:
        raise ValueError("unique_for and on_duplicate need a unique_key.")
    if idempotency_key is not None:
        if on_duplicate != OnDuplicate.SKIP:
            # Sent again it would meet no row of its own, and so replace once more.
            raise ValueError("An idempotency_key requires on_duplicate='skip'.")
        columns["idempotency_key"] = check_name(idempotency_key, "idempotency key")
        if idempotency_key.startswith(COMPENSATION_KEYS):
            raise ValueError(
                f"Idempotency keys that begin with {COMPENSATION_KEYS!r} are reserved for"
                f" compensations: {idempotency_key!r}."
            )
    return NewTask(columns, intervals, text, on_duplicate)


def new_tasks(
    rows: TaskRows,
    name_or_handler: str | Callable[..., Any],
    *,
    queue: str | None = None,
    priority: int = 0,
    scheduled_at: datetime | None = None,
    delay: float | timedelta | None = None,
    max_attempts: int | None = None,
    timeout: float | timedelta | None = None,
    progress_timeout: float | timedelta | None = None,
    concurrency_key: str | None = None,
    concurrency_limit: int | None = None,
    parent: Parent | None = None,
) -> NewTasks:
    """Return what tasks with these options have in common, checked."""
    handler = registry.find(name_or_handler)
    columns = {
        "name": handler.name,
        "kind": handler.kind.number,
        "queue": check_queue(queue or handler.queue),
        "priority": 0 if priority == 0 else check_between(priority, *PRIORITIES, "priority"),
        "max_attempts": (
            handler.max_attempts or task_settings.MAX_ATTEMPTS
            if max_attempts is None
            else check_between(max_attempts, *COUNTS, "max_attempts")
        ),
        "timeout": handler.timeout if timeout is None else check_limit(timeout, "The timeout"),
        "progress_timeout": (
            handler.progress_timeout
            if progress_timeout is None
            else check_limit(progress_timeout, "The progress_timeout")
        ),
    }
    intervals: dict[str, timedelta] = {}
    if delay is not None:
        if scheduled_at is not None:
            raise ValueError("Give scheduled_at or delay, not both.")
        intervals["delay"] = check_delay(delay, "The delay")
    elif scheduled_at is not None:
        columns["scheduled_at"] = check_moment(scheduled_at, "scheduled_at")
    if handler.compensate is not None:
        columns["compensation"] = handler.compensate
    if parent is not None:
        columns["parent_id"] = _parent_key(rows, parent)
    if concurrency_limit is not None:
        check_between(concurrency_limit, *COUNTS, "concurrency_limit")
    limited_by_data = concurrency_key is None and handler.concurrency_key != ""
    if concurrency_key or concurrency_limit is not None and not limited_by_data:
        columns |= _limited(handler, concurrency_key, concurrency_limit)
    return NewTasks(handler, columns, intervals, limited_by_data, concurrency_limit)


def _limited(handler: Handler, key: str | None, limit: int | None) -> dict[str, Any]:
    """Return the concurrency columns of a task with this ``key``, if any."""
    if key:
        return {
            "concurrency_key": check_name(key, "concurrency key"),
            "concurrency_limit": limit or handler.concurrency_limit or 1,
        }
    if limit is not None:
        raise ValueError("A concurrency_limit needs a concurrency_key.")
    return {}


def _parent_key(rows: TaskRows, parent: Parent) -> int:
    """Return the key of ``parent``, a task, a key or a context. Raises ValueError if it isn't
    stored, or not where the child is going to be."""
    if isinstance(parent, int):
        return check_between(parent, 1, 2**63 - 1, "parent's key")
    task: Any = getattr(parent, "task", parent)
    if task.pk is None:
        raise ValueError("The parent is not stored: enqueue it before its children.")
    if (using := database_of(task)) != rows.db:
        raise ValueError(f"{task} is in the database {using!r}, and its child in {rows.db!r}.")
    key: int = task.pk
    return key


# Storing


def store(
    rows: TaskRows, new: NewTask, block: AbstractContextManager[object] | None = None
) -> Task:
    """Store the ``new`` task, as part of the caller's transaction, in the ``block`` that follows it
    or one of its own."""
    connection, columns = connections[rows.db], new.columns
    using, queue, priority = connection.alias, columns["queue"], columns["priority"]
    # Asked once, of the connection: to find it by the queryset takes as long as all that is told.
    is_kept = not in_transaction(connection)
    is_new, notified = True, False
    with block or during("task.send", columns):
        if "unique_key" in columns or "idempotency_key" in columns:
            task, is_new = store_unless_present(rows.home(), new)
            _read_back_later(task)
        elif not insert.serves(rows.model, connection):
            task = rows.model(**new.row_columns)
            task.save(using=using, force_insert=True)
            _read_back_later(task)
        elif (
            # In a block the message would be heard late, and others would have relied on it
            # meanwhile.
            not connection.in_atomic_block
            and limiter.is_due(using, queue, priority, IN_STATEMENT_WINDOW)
        ):
            task, notified = _store_notifying(rows.model, connection, new), True
        else:
            task = insert.one(rows.model, connection, new)

        def announce() -> None:
            if not notified:
                notify_now(using, queue, priority)
            happened("task.enqueued", [task])

        if is_new and is_kept:
            announce()
        elif is_new:
            transaction.on_commit(announce, using=using, robust=True)
        happened("task.sent", [task])
    return task


def _store_notifying(model: type[Task], connection: BaseDatabaseWrapper, new: NewTask) -> Task:
    """Store a task without a key, and notify the workers by the same statement."""
    using, message = connection.alias, message_of(new.columns["queue"], new.columns["priority"])
    try:
        task: Task = insert.one(model, connection, new, message)
    except BaseException as error:
        try:
            if not isinstance(error, DatabaseError):
                raise
            # It may be the message that was refused: PostgreSQL has room for so many.
            task = insert.one(model, connection, new)
        finally:
            # Others may have left the notification to this one, whatever becomes of its task.
            limiter.notify(using, message)
    else:
        limiter.notify_here(message)
    return task


def _store_each(rows: TaskRows, new: NewTasks, items: list[dict[str, Any]]) -> Sequence[Task]:
    tasks = []
    for each in map(check_data, items):
        limit = new.limit(each) if new.limited_by_data else {}
        row = NewTask({**new.columns, "task_data": each, **limit}, new.intervals, "")
        tasks.append(rows.model(**row.row_columns))
    with transaction.atomic(using=rows.db):
        rows._everything().bulk_create(tasks, batch_size=INSERT_BATCH)
    for task in tasks:
        _read_back_later(task)
    return tasks


def _read_back_later(task: Task) -> None:
    """Defer the moments that the database has computed: they are read when someone looks."""
    for name in MOMENTS.values():
        if isinstance(task.__dict__.get(name), Expression):
            del task.__dict__[name]
