"""Deleting tasks that have ended: by an operator, and by age."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import Q

from leasing.db.deletion import delete_batch, delete_up_to, unprotected
from leasing.functions import DbNow, after
from tasks import signals
from tasks.querysets.base import TaskRows, TaskStatus

if TYPE_CHECKING:
    from tasks.models import Task

#: How many rows one transaction of a bulk verb takes.
BULK_BATCH = 500


class Discarding(TaskRows):
    """The end of tasks that have ended."""

    def ended(self) -> Discarding:
        """Tasks that nothing but an operator's retry brings back."""
        return self.filter(status__in=TaskStatus.ended())

    def discard(self, by: str = "") -> int:
        """Delete the tasks among these that have ended, with their attempts and steps, some
        hundred in a transaction. Returns how many. What a row of another app protects stays."""
        rows, last, discarded = self.home()._of_one_table(), 0, 0
        told = unprotected(rows.ended()).only("name", "queue", "status").order_by("pk")
        while True:
            left = told.filter(pk__gt=last)
            count, tasks = delete_batch(left, BULK_BATCH, rows._delete, skip_locked=False)
            for task in tasks if count == len(tasks) else rows._gone(tasks):
                rows._tell(signals.discarded, task, by=by)
            discarded += count
            if len(tasks) < BULK_BATCH:
                return discarded
            last = tasks[-1].pk

    def _gone(self, tasks: list[Task]) -> list[Task]:
        """Those of ``tasks`` that are there no more."""
        there = self._everything().filter(pk__in=[task.pk for task in tasks])
        keys = set(there.values_list("pk", flat=True))
        return [task for task in tasks if task.pk not in keys]

    def prune(self, age: timedelta, limit: int = BULK_BATCH) -> int:
        """Delete up to ``limit`` of the tasks among these that ended ``age`` ago or longer, the
        longest ended first, in one transaction. Returns how many; call again while it is
        ``limit``.

        Rows that somebody has locked are passed over, so any number may prune at once. A task
        whose unique key is kept for a window stays until that is over, and one that a row of
        another app protects for as long as it does.
        """
        rows = self.home()
        prunable = unprotected(rows.prunable(age)).only("pk").order_by("processed_at", "pk")
        return delete_up_to(prunable, limit, rows._delete)

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
