"""Cancelling: at once what waits, in two stages what runs.

A running task is asked: its holder hears of it with the next heartbeat and ends the work, or
completes it all the same. A task that was asked is never tried again: whatever would set it
ready (a failure, a stop, a recovery) ends it as cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Case, F, Q, TextField, Value, When

from leasing.db.dialects import lock
from leasing.functions import DbNow
from tasks.notifier import hurry
from tasks.querysets.base import CANCEL_REQUESTED, TaskStatus, closing
from tasks.querysets.ended import BULK_BATCH, Discarding

if TYPE_CHECKING:
    from tasks.models import Task


class Cancelling(Discarding):
    """Ending tasks because someone asked for it."""

    def cancel(self, by: str = "", reason: str = "") -> int:
        """Cancel these tasks in the name of ``by``: those that wait end at once, those that run
        are asked to, and end at their handler's next ``ctx.ensure()`` or await.

        Returns how many ended or were asked; ended ones, and those asked before, do not count.
        """
        rows, last, count = self.home()._of_one_table(), 0, 0
        concerned = rows.filter(
            Q(status=TaskStatus.READY) | Q(status=TaskStatus.RUNNING) & ~CANCEL_REQUESTED
        )
        while True:
            with transaction.atomic(using=rows.db):
                found = lock(concerned.filter(pk__gt=last).order_by("pk"))
                keys = list(found.values_list("pk", flat=True)[:BULK_BATCH])
                ended, asked = rows._cancel(keys, by, cancellation(by, reason))
            for task in ended:
                rows._tell_cancelled(task, reason=reason)
            hurry(rows.db, asked)
            count += len(ended) + len(asked)
            if len(keys) < BULK_BATCH:
                return count
            last = keys[-1]

    def _cancel(self, keys: list[int], by: str, text: str) -> tuple[list[Task], list[int]]:
        """End or ask those with these ``keys``, which are locked: the tasks that ended, and the
        keys of those that were asked."""
        mine = self._everything().filter(pk__in=keys)
        asking = {"cancel_requested_at": DbNow(), "cancel_requested_by": by, "last_error": text}
        waiting = list(mine.filter(status=TaskStatus.READY).values_list("pk", flat=True))
        running = mine.running().exclude(CANCEL_REQUESTED).order_by("pk")
        to_ask = list(running.values_list("pk", flat=True))
        mine.filter(pk__in=waiting, status=TaskStatus.READY).update(
            status=TaskStatus.CANCELLED, **asking, **closing()
        )
        asked = mine.filter(pk__in=to_ask).running()
        asked.update(**asking)
        ended = list(mine.filter(pk__in=waiting).cancelled().order_by("pk"))
        return ended, list(asked.filter(CANCEL_REQUESTED).values_list("pk", flat=True))


def cancellation(by: str, reason: str = "") -> str:
    """What the task and its attempt say of a cancellation."""
    return f"cancelled by {by or 'an operator'}" + (f": {reason}" if reason else "")


def said(text: str) -> Any:
    """What was said at the asking, or ``text`` where nobody asked."""
    asked = When(CANCEL_REQUESTED, then=F("last_error"))
    return Case(asked, default=Value(text), output_field=TextField())


def never_cancelled() -> dict[str, Any]:
    """The columns of a task that goes on although it was cancelled once."""
    return {"cancel_requested_at": None, "cancel_requested_by": ""}
