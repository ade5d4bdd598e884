"""Enqueuing: new rows, and the ones that unique keys turn away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils.timezone import is_naive

from leasing.dialects import after_commit
from leasing.names import check_name
from tasks import registry, signals
from tasks.bell import ring
from tasks.conf import task_settings
from tasks.payload import check_data
from tasks.querysets.base import TaskRows, check_between, check_queue

if TYPE_CHECKING:
    from tasks.models import Task


#: How many rows one INSERT carries.
INSERT_BATCH = 500


class Enqueuing(TaskRows):
    """What producers call."""

    #: How often to try to enqueue while the task that has the unique key comes and goes.
    TRIES = 3

    def enqueue(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
    ) -> Task:
        """Store a task, as part of the caller's transaction if there is one.

        ``data`` are the handler's keyword arguments. Higher ``priority`` (-32768 to 32767) goes
        first; it is not started before ``scheduled_at``. While a task with the same
        ``unique_key`` has not ended, that task is returned and nothing is stored.

        Raises UnknownTask, UnknownQueue, NotSerializable, InvalidResource (the key), ValueError.
        """
        rows = self.home()
        task = rows._build(
            name_or_handler,
            data,
            queue=queue,
            priority=priority,
            scheduled_at=scheduled_at,
            unique_key=unique_key,
            max_attempts=max_attempts,
        )
        if unique_key is not None:
            return rows._enqueue_unless_present(task)
        task.save(using=rows.db, force_insert=True)
        rows._announce([task])
        return task

    def enqueue_many(
        self,
        name_or_handler: str | Callable[..., Any],
        data: Iterable[dict[str, Any] | None],
        *,
        queue: str | None = None,
        priority: int = 0,
        scheduled_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> list[Task]:
        """Store one task for each of ``data``, all or none. See ``enqueue``."""
        rows = self.home()
        tasks = [
            rows._build(
                name_or_handler,
                each,
                queue=queue,
                priority=priority,
                scheduled_at=scheduled_at,
                max_attempts=max_attempts,
            )
            for each in data
        ]
        with transaction.atomic(using=rows.db):
            rows._everything().bulk_create(tasks, batch_size=INSERT_BATCH)
        rows._announce(tasks)
        return tasks

    def _build(
        self,
        name_or_handler: str | Callable[..., Any],
        data: dict[str, Any] | None,
        *,
        queue: str | None,
        priority: int,
        scheduled_at: datetime | None,
        max_attempts: int | None,
        unique_key: str | None = None,
    ) -> Task:
        handler = registry.find(name_or_handler)
        if max_attempts is None:
            max_attempts = handler.max_attempts or task_settings.MAX_ATTEMPTS
        fields: dict[str, Any] = {}
        if scheduled_at is not None:
            if is_naive(scheduled_at):
                raise ValueError("scheduled_at must have a time zone.")
            fields["scheduled_at"] = scheduled_at
        if unique_key is not None:
            fields["unique_key"] = check_name(unique_key, "unique key")
        return self.model(
            name=handler.name,
            queue=check_queue(queue or handler.queue),
            task_data=check_data(data),
            priority=check_between(priority, -32768, 32767, "priority"),
            max_attempts=check_between(max_attempts, 1, 32767, "max_attempts"),
            **fields,
        )

    def _enqueue_unless_present(self, task: Task) -> Task:
        """Store ``task``, or count it as a duplicate of the one that has its key."""
        for _ in range(self.TRIES):
            try:
                with transaction.atomic(using=self.db):
                    task.save(using=self.db, force_insert=True)
            except IntegrityError as error:
                refused = error
            else:
                self._announce([task])
                return task
            present = self._everything().filter(unique_key=task.unique_key).first()
            if present is not None:
                self._count_duplicate(present)
                return present
            # It ended in between, and its key is free again.
        raise refused

    def _count_duplicate(self, task: Task) -> None:
        """Count what ``task`` turned away, once the caller's transaction has ended: the row of a
        running task stays free for its heartbeats meanwhile."""

        def count() -> None:
            self._everything().filter(pk=task.pk).update(duplicates=F("duplicates") + 1)
            signals.send(signals.duplicate, task)

        task.is_duplicate = True
        task.duplicates += 1
        after_commit(self.db, count)

    def _announce(self, tasks: Sequence[Task]) -> None:
        ring(self.db, tasks)
        if signals.enqueued.has_listeners(self.model):
            for task in tasks:
                self._tell(signals.enqueued, task)
