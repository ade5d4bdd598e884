"""Cancelling: at once what waits, in two stages what runs.

A running task is asked: its holder hears of it with the next heartbeat and ends the work, or
completes it all the same. A task that was asked is never tried again: whatever would set it
ready (a failure, a stop, a recovery) ends it as cancelled.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Case, F, TextField, Value, When

from leasing.dialects import lock
from leasing.functions import DbNow
from tasks.bell import hurry
from tasks.querysets.base import CANCEL_REQUESTED, TaskStatus, closing
from tasks.querysets.ended import Discarding


class Cancelling(Discarding):
    """Ending tasks because someone asked for it."""

    def cancel(self, by: str = "", reason: str = "") -> int:
        """Cancel these tasks in the name of ``by``: those that wait end at once, those that run
        are asked to, and end at their handler's next ``ctx.ensure()`` or await.

        Returns how many ended or were asked; ended ones, and those asked before, do not count.
        """
        rows = self.home()
        text = cancellation(by, reason)
        asking = {"cancel_requested_at": DbNow(), "cancel_requested_by": by}
        with transaction.atomic(using=rows.db):
            keys = list(lock(rows.order_by("pk")).values_list("pk", flat=True))
            mine = rows._everything().filter(pk__in=keys)
            waiting = list(mine.filter(status=TaskStatus.READY).values_list("pk", flat=True))
            asked = mine.running().exclude(CANCEL_REQUESTED)
            running = list(asked.order_by("pk").values_list("pk", flat=True))
            ends = mine.filter(pk__in=waiting, status=TaskStatus.READY).update(
                status=TaskStatus.CANCELLED, last_error=text, **asking, **closing()
            )
            asks = mine.filter(pk__in=running).running().update(last_error=text, **asking)
            ended = list(mine.filter(pk__in=waiting).cancelled().order_by("pk"))
        for task in ended:
            rows._tell_cancelled(task, reason=reason)
        hurry(rows.db, running)
        return ends + asks


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
