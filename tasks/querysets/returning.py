"""Giving many tasks back in one short transaction: what a worker had claimed ahead."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import F

from leasing.db.deletion import unprotected
from tasks import signals
from tasks.notifier import ring
from tasks.querysets.base import TaskStatus, attempt_model, traced, waiting
from tasks.querysets.many import Batching, Refused, Tellings

if TYPE_CHECKING:
    from tasks.models import Task

#: What is asked for each: why.
Asked = list[tuple["Task", str]]


class Returning(Batching):
    """``give_back``, for many at once."""

    def give_back_many(self, tasks: list[Task], reason: str) -> tuple[list[Task], Refused]:
        """``give_back`` each of ``tasks`` at once and for the same ``reason``. Returns those that
        are ready again, and the others, each with its error (LeaseLost)."""
        rows = self.home()
        asked = [(task, reason) for task in tasks]
        given, refused = rows._end_many(asked, rows._give_back_all, rows.give_back)
        ring(rows.db, [task for task in given if task.status == TaskStatus.READY])
        return given, refused

    def _give_back_all(self, items: Asked) -> Tellings:
        reason = items[0][1]
        columns = {"attempts": F("attempts") - 1, **waiting(timedelta(0), spent=False)}
        given = [
            task
            for task, _ in self._lock_all(items).values()
            if self._of_grant(task).update(**columns, **traced(task))
        ]
        attempts = attempt_model()
        history = attempts._default_manager.using(self.db)
        alike = history.filter(outcome="returned", error=reason)
        unprotected(alike.filter(task_id__in=[task.pk for task in given]))._forget()
        history.bulk_create([attempts.of(task, "returned", reason) for task in given])
        self._read_back(given)
        return [(task, signals.returned, {"reason": reason}) for task in given]
