"""Enqueuing: new rows, alone, in numbers, or after a commit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression

from leasing.db.dialects import after_commit
from tasks import signals
from tasks.notifier import BESIDE, message_of, ring_now, ring_queues, ringer, takes_messages
from tasks.payload import as_arguments, check_json
from tasks.querysets import bulk
from tasks.querysets.columns import (
    EnqueueOptions,
    ManyOptions,
    NewTask,
    NewTasks,
    new_task,
    new_tasks,
)
from tasks.querysets.present import Meeting
from tasks.querysets.sql import insert
from tasks.querysets.unique import OnDuplicate, UniqueFor
from tasks.runtime.tracepoints import points

if TYPE_CHECKING:
    from tasks.models import Task


#: How many rows one INSERT carries.
INSERT_BATCH = 500


class Enqueuing(Meeting):
    """What producers call."""

    def enqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        delay: float | timedelta | None = None,
        unique_key: str | None = None,
        unique_for: str | float | timedelta = UniqueFor.FINISHED.value,
        on_duplicate: str = OnDuplicate.SKIP.value,
        idempotency_key: str | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        progress_timeout: float | timedelta | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
    ) -> Task:
        """Store a task, as part of the caller's transaction if there is one.

        ``data`` are the handler's keyword arguments. Higher ``priority`` (-32768 to 32767) goes
        first; it is not started before ``scheduled_at``, or before ``delay`` (seconds) has
        passed on the database's clock. ``queue``, ``max_attempts``, ``timeout`` and
        ``progress_timeout`` (seconds, of one attempt), ``concurrency_key`` (text as it is; empty:
        none) and ``concurrency_limit`` default to the handler's.

        One task at a time has a ``unique_key``, for as long as ``unique_for`` says: "waiting"
        (until its claim), "running" (until its first attempt ends), "finished", or a window in
        seconds. An enqueue meanwhile returns that task, with ``is_duplicate`` set, and stores
        nothing; what becomes of the task while it still waits, ``on_duplicate`` says: "skip"
        leaves it, "replace" makes it what was asked for now, "keep_time" does so but for the
        time it is scheduled at.

        The same ``idempotency_key`` again returns the same task, ended or not.

        Raises UnknownTask, UnknownQueue, NotSerializable, InvalidResource (a key), ValueError,
        PayloadMismatch (the idempotency key was used for another task or other data), KeyBusy
        (another transaction keeps the row locked that is to be replaced, or to give its key up).
        """
        new = new_task(
            name_or_handler,
            data,
            queue=queue,
            priority=priority,
            scheduled_at=scheduled_at,
            delay=delay,
            unique_key=unique_key,
            unique_for=unique_for,
            on_duplicate=on_duplicate,
            idempotency_key=idempotency_key,
            max_attempts=max_attempts,
            timeout=timeout,
            progress_timeout=progress_timeout,
            concurrency_key=concurrency_key,
            concurrency_limit=concurrency_limit,
        )
        if points.tracer is not None:
            return points.tracer.sending(new.columns, partial(self._store, new, on_duplicate))()
        return self._store(new, on_duplicate)

    def enqueue_on_commit(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        using: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> None:
        """Check everything now, and store the task once the caller's transaction has committed;
        at once outside of one, and never if it is rolled back. A delay counts from the commit.

        For transactions on another database than the tasks': ``using`` is its alias (default:
        the tasks' own). In the same database ``enqueue`` is better: its task cannot get lost
        between the commit and the storing. Arguments and errors are those of ``enqueue``; what
        only the storing shows, PayloadMismatch and errors of the database, is raised to whoever
        commits.
        """
        rows = self.home()
        new = new_task(name_or_handler, copy.deepcopy(data), **options)
        mode = options.get("on_duplicate", OnDuplicate.SKIP.value)
        store: Callable[[], object] = partial(rows._store, new, mode)
        if points.tracer is not None:
            store = points.tracer.sending(new.columns, store)
        transaction.on_commit(store, using=using or rows.db)

    def enqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        **options: Unpack[ManyOptions],
    ) -> Sequence[Task]:
        """Store one task for each of ``data``, all or none. Arguments and errors are those of
        ``enqueue``; there are no unique and no idempotency keys.

        Instances of what was stored are made when they are looked at.
        """
        if unknown := options.keys() - ManyOptions.__optional_keys__:
            raise TypeError(f"enqueue_many takes no {', '.join(sorted(unknown))}.")
        rows = self.home()
        new = new_tasks(name_or_handler, **options)
        items = [as_arguments(each) for each in data]
        if not items:
            return []
        if points.tracer is not None:
            return points.tracer.sending(new.columns, partial(rows._store_many, new, items))()
        return rows._store_many(new, items)

    def _store_many(self, new: NewTasks, items: list[dict[str, Any]]) -> Sequence[Task]:
        connection = connections[self.db]
        if insert.serves(self.model, connection):
            stored = bulk.store(self.model, connection, new, items)
        else:
            stored = self._store_each(new, items)
        ring_queues(self.db, [new.columns["queue"]])
        self._announce(stored)
        return stored

    def _store_each(self, new: NewTasks, items: list[dict[str, Any]]) -> Sequence[Task]:
        for each in items:
            check_json(each, "data")
        tasks = [self.model(**new.columns, task_data=each, **new.limit(each)) for each in items]
        with transaction.atomic(using=self.db):
            self._everything().bulk_create(tasks, batch_size=INSERT_BATCH)
        for task in tasks:
            _read_back_later(task)
        return tasks

    def _store(self, new: NewTask, on_duplicate: str) -> Task:
        columns = new.columns
        with_keys = "unique_key" in columns or "idempotency_key" in columns
        connection = connections[self.db]
        if not with_keys and insert.serves(self.model, connection):
            return self._store_plain(connection, new)
        rows, stored = self.home(), True
        if with_keys:
            task, stored = rows._store_unless_present(new, on_duplicate)
        else:
            task = rows.model(**columns)
            task.save(using=rows.db, force_insert=True)
        if stored:
            _read_back_later(task)
            ring_queues(rows.db, [task.queue])
            rows._announce([task])
        return task

    def _store_plain(self, connection: BaseDatabaseWrapper, new: NewTask) -> Task:
        model, using, queue = self.model, connection.alias, new.columns["queue"]
        alone = takes_messages(connection)
        if alone and ringer.is_due(using, queue, BESIDE):
            key, moments = self._store_ringing(connection, new, message_of(queue))
        else:
            key, moments = insert.insert(model, connection, new.columns, new.data)
            if alone:
                ring_now(using, queue)
            else:
                ring_queues(using, [queue])
        task = insert.instance(model, using, {**new.columns, "id": key, **moments})
        self._announce([task])
        return task

    def _store_ringing(
        self, connection: BaseDatabaseWrapper, new: NewTask, message: str
    ) -> insert.Inserted:
        try:
            inserted = insert.insert(self.model, connection, new.columns, new.data, message)
        except BaseException as error:
            try:
                if not isinstance(error, DatabaseError):
                    raise
                # It may be the message that was refused: PostgreSQL has room for so many.
                return insert.insert(self.model, connection, new.columns, new.data)
            finally:
                # Others may have left the ringing to this one, whatever becomes of its task.
                ringer.tell(connection.alias, message)
        ringer.tell_here(message)
        return inserted

    def _announce(self, tasks: Sequence[Task]) -> None:
        if signals.enqueued.has_receivers(self.model):
            for task in tasks:
                self._tell(signals.enqueued, task)
        elif signals.enqueued.is_noted:
            after_commit(self.db, lambda: signals.enqueued.note(tasks))


def _read_back_later(task: Task) -> None:
    """Let the moments that the database has computed be read when someone looks at them."""
    for name in ("scheduled_at", "unique_until"):
        if isinstance(task.__dict__.get(name), Expression):
            del task.__dict__[name]
