"""The list of recoveries: lost attempts, the newest first, each with its task as it stands now."""

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


def recovered(filters: Mapping[str, Any] = listing.NO_FILTERS) -> Any:
    """Return the lost attempts, or those of the task that the filters name by its id. An index has
    them in this order, however many others failed."""
    rows = TaskAttempt.objects.using(listing.tasks().db).filter(outcome=AttemptOutcome.LOST)
    key = listing.id_of(filters)
    return rows if key is None else rows.filter(task_id=key)


def listed(filters: Mapping[str, Any]) -> Any:
    """Return the lost attempts with the columns that the list shows."""
    task = (f"task__{column}" for column in listing.SHOWN)
    rows = recovered(filters).select_related("task").only(*SHOWN, *task)
    return rows.annotate(error_start=Left("error", listing.ERROR_SHOWN))


def why(attempt: Any) -> str:
    """Return why ``attempt`` of the list was lost, as it reads after the name of its holder."""
    text: str = attempt.error_start
    return text.removeprefix(f"{attempt.holder} ")


def exported(filters: Mapping[str, Any]) -> Any:
    """Return the lost attempts with the columns of an export."""
    task = ("task__name", "task__queue", "task__status", "task__attempts")
    return recovered(filters).select_related("task").only(*SHOWN, "fencing_token", "error", *task)


def search_of(filters: Mapping[str, Any]) -> Q | None:
    """Return the condition of the filters except the id; None if none is set. The holder is that of
    the attempt, the others are columns of its task."""
    return listing.columns_search(filters, of_task="task__")
