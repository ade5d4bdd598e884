"""The list of recoveries: attempts that were taken from their holders, the newest first, each with
its task as it stands now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Q
from django.db.models.functions import Left

from tasks.dashboard import listing
from tasks.models import AttemptOutcome, TaskAttempt

#: Columns of an attempt that the list shows.
SHOWN: Final = (
    *("id", "task_id", "number", "holder", "started_at", "ended_at", "refused_at", "refused_verb"),
)


def recovered(wanted: Mapping[str, Any] = listing.NOTHING_WANTED) -> Any:
    """Return the attempts that were lost, of the task with the id that is ``wanted``, where it is:
    an index has them in this order, however many others failed."""
    rows = TaskAttempt.objects.using(listing.tasks().db).filter(outcome=AttemptOutcome.LOST)
    key = listing.id_of(wanted)
    return rows if key is None else rows.filter(task_id=key)


def listed(wanted: Mapping[str, Any]) -> Any:
    """Return the same with what the list shows, and no more."""
    task = (f"task__{column}" for column in listing.SHOWN)
    rows = recovered(wanted).select_related("task").only(*SHOWN, *task)
    return rows.annotate(error_start=Left("error", listing.ERROR_SHOWN))


def why(attempt: Any) -> str:
    """Return why ``attempt`` of the list was taken, as it reads after the name of its holder."""
    text: str = attempt.error_start
    return text.removeprefix(f"{attempt.holder} ")


def exported(wanted: Mapping[str, Any]) -> Any:
    """Return the same with what an export has."""
    task = ("task__name", "task__queue", "task__status", "task__attempts")
    return recovered(wanted).select_related("task").only(*SHOWN, "fencing_token", "error", *task)


def search_of(wanted: Mapping[str, Any]) -> Q | None:
    """Return the condition of the ``wanted`` filters except the id; None when there is none. The
    holder is that of the attempt, the others are columns of its task."""
    return listing.columns_search(wanted, of_task="task__")
