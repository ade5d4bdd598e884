"""Deleting tasks that have ended: by an operator, and by age."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Q

from leasing.db.dialects import lock
from leasing.functions import DbNow, after
from tasks import signals
from tasks.querysets.base import TaskRows, TaskStatus

#: How many rows one transaction of a bulk verb takes.
BULK_BATCH = 500


class Discarding(TaskRows):
    """The end of tasks that have ended."""

    def ended(self) -> Discarding:
        """Tasks that nothing but an operator's retry brings back."""
        return self.filter(status__in=TaskStatus.ended())

    def discard(self, by: str = "") -> int:
        """Delete the tasks among these that have ended, with their attempts and steps, some
        hundred in a transaction. Returns how many."""
        rows, last, discarded = self.home(), 0, 0
        while True:
            with transaction.atomic(using=rows.db):
                found = lock(rows.ended().filter(pk__gt=last).order_by("pk"))
                tasks = list(found.only("name", "queue", "status")[:BULK_BATCH])
                discarded += rows._delete([task.pk for task in tasks])
            for task in tasks:
                rows._tell(signals.discarded, task, by=by)
            if len(tasks) < BULK_BATCH:
                return discarded
            last = tasks[-1].pk

    def prune(self, age: timedelta, limit: int = BULK_BATCH) -> int:
        """Delete up to ``limit`` of the tasks among these that ended ``age`` ago or longer, the
        longest ended first, in one transaction. Returns how many; call again while it is
        ``limit``.

        Rows that somebody has locked are passed over, so any number may prune at once. A task
        whose unique key is kept for a window stays until that is over.
        """
        rows = self.home()
        with transaction.atomic(using=rows.db):
            prunable = rows.prunable(age).order_by("processed_at", "pk")
            locked = lock(prunable, skip_locked=True).values_list("pk", flat=True)
            return rows._delete(list(locked[:limit]))

    def prunable(self, age: timedelta) -> Discarding:
        """Tasks that ended ``age`` ago or longer, and keep no unique key."""
        free = Q(unique_key=None) | Q(unique_until__lte=DbNow())
        return self.ended().filter(free, processed_at__lte=after(-age))

    def _delete(self, keys: list[int]) -> int:
        """Delete ``keys``, which this transaction has locked. (SQLite has no row locks; there
        another writer's change since they were read fails the transaction.)"""
        # With the key alone: what hangs on a task is deleted by set, and no payload is read.
        rows = self._everything().filter(pk__in=keys).only("pk")
        _, counts = rows.delete() if keys else (0, {})
        return counts.get(self.model._meta.label, 0)
