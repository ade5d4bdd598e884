"""The lists of tasks: their states, their order, their filters and counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q, TextField
from django.db.models.functions import Cast, Left
from django.http import Http404

from leasing.humanize import span
from leasing.web.cache import shared
from leasing.web.counts import (
    CAPPED_SHARED_FOR,
    COUNT_CAP,
    SEARCH_CAP,
    Capped,
    Tally,
    count_together,
)
from leasing.web.cursors import NEWEST_FIRST, Order
from leasing.web.fingerprint import LEASE_COLUMNS
from leasing.web.masking import masked
from leasing.web.paging import Search, condition_of
from tasks import registry
from tasks.conf import retention
from tasks.dashboard.exports import readable
from tasks.models import Task, TaskStatus

#: Columns that a list never loads.
LARGE: Final = ("task_data", "task_output", "last_error", "progress", "checkpoint")
#: Columns that a list shows or derives a task's state from. A poll reads them every two seconds.
SHOWN: Final = (
    *("id", "name", "queue", "status", "scheduled_at", "processed_at", "attempts", "max_attempts"),
    *("holder", "acquired_at", "progressed_at", "progress_timeout", "compensation"),
    *sorted(LEASE_COLUMNS),
)
#: Characters of an error that a list shows.
ERROR_SHOWN: Final = 200
#: Characters of the JSON of a payload that a list reads: a longer payload is neither shown in
#: lists nor searched, since the half of a JSON text cannot be masked.
PAYLOAD_READ: Final = 2000
PAYLOAD_START: Final = Left(Cast("task_data", TextField()), PAYLOAD_READ + 1)
#: Children that the page of a task lists.
CHILDREN_SHOWN: Final = 10
#: Filters of a list, by their names in its address; ``q`` is an id, or the beginning of a name
#: or a part of the payload. ``TaskSearch`` adds "holders", the names of the workers that "holder"
#: means.
FILTERS: Final = ("q", "name", "queue", "key", "holder", "since", "until")
NO_FILTERS: Final = {**dict.fromkeys(FILTERS, ""), "holders": ()}

SOONEST_FIRST: Final = Order("scheduled_at", descending=False)
LATEST_ENDED_FIRST: Final = Order("processed_at")


@dataclass(frozen=True)
class StateList:
    """A list of tasks by their state. Its order is that of an index."""

    name: str
    label: str
    order: Order = NEWEST_FIRST
    #: The order of the list, in words.
    sorted: str = "newest first"


def _waiting(name: str, label: str) -> StateList:
    return StateList(name, label, SOONEST_FIRST, "next to start first")


def _ended(name: str, label: str) -> StateList:
    return StateList(name, label, LATEST_ENDED_FIRST, "last ended first")


_STATES = (
    StateList("all", "All"),
    StateList("stuck", "Stuck"),
    StateList("running", "Running"),
    _waiting("ready", "Ready"),
    _waiting("scheduled", "Scheduled"),
    _waiting("retrying", "Retrying"),
    _ended("failed", "Failed"),
    _ended("succeeded", "Succeeded"),
    _ended("cancelled", "Cancelled"),
)
STATES: Final[Mapping[str, StateList]] = {state.name: state for state in _STATES}


def moment_of(task: Task, now: datetime) -> tuple[str, datetime | None]:
    """Return the moment that matters most in the state that ``task`` is in at ``now``, and the word
    for it."""
    match task.status:
        case TaskStatus.RUNNING:
            if task.expires_at > now:
                return "running since", task.acquired_at
            return "expired", task.expires_at
        case TaskStatus.READY:
            return "due", task.scheduled_at
        case _:
            return "ended", task.processed_at


def tasks() -> Any:
    """Every task, in the database of leases."""
    return Task.objects.home()


def find(rows: Any, pk: int) -> Task:
    """Return the task ``pk`` of ``rows``. Raises Http404 that says for how long tasks are kept."""
    task: Task | None = rows.filter(pk=pk).first()
    if task is None:
        raise Http404(
            f"There is no task:{pk}. It ended and was deleted, or it never existed. "
            f"{_retention_sentence()}"
        )
    return task


def children_of(task: Task) -> list[Task]:
    """Return the newest CHILDREN_SHOWN children of ``task``, with one more if there are others."""
    rows = tasks().filter(parent=task.pk).only(*SHOWN).order_by("-pk")
    return list(rows[: CHILDREN_SHOWN + 1])


def _retention_sentence() -> str:
    states: dict[timedelta | None, list[str]] = {}
    for state, age in retention().items():
        states.setdefault(age, []).append(state)
    parts = [
        f"{' and '.join(names)} tasks are kept {f'for {span(age)}' if age else 'without limit'}"
        for age, names in states.items()
    ]
    return f"{', '.join(parts).capitalize()}."


def in_state(state: str, rows: Any = None) -> Any:
    """Return the tasks of the list ``state``: those of ``rows``, or of all tasks."""
    rows = tasks() if rows is None else rows
    match state:
        case "all":
            return rows
        case "stuck":
            return rows.lapsed()
        case "retrying":
            # Also after a holder that was gone; a task given back has spent no attempt.
            # ``started_at`` is implied, but the index has only rows that have it.
            return rows.filter(status=TaskStatus.READY, started_at__isnull=False, attempts__gt=0)
        case "succeeded" | "failed" | "cancelled":
            # ``processed_at`` is implied, but the index has only rows that have it.
            return rows.filter(status=state, processed_at__isnull=False)
        case _:
            return getattr(rows, state)()


def listed(state: str, filters: Mapping[str, Any], *, sees_payload: bool = False) -> Any:
    """Return the tasks of the list ``state`` with the columns that it shows; only the one with the
    id that the filters name, if they name one. The payload is not even read for users who may not
    see it."""
    rows = _by_id(in_state(state), filters).only(*SHOWN)
    if sees_payload:
        rows = rows.annotate(payload_start=PAYLOAD_START)
    if state in ("failed", "retrying"):
        rows = rows.annotate(error_start=Left("last_error", ERROR_SHOWN))
    return rows


def diagnosed(filters: Mapping[str, Any]) -> Any:
    """Return the stuck tasks, or the one that the filters name, with the columns of a diagnosis."""
    return _by_id(in_state("stuck"), filters).defer(*LARGE)


def exported(state: str, filters: Mapping[str, Any], user: Any) -> Any:
    """Return the tasks of a list, for an export.

    Args:
        state: The name of the list.
        filters: The cleaned fields of the page's filter form.
        user: The user, who gets the columns that this user may see.
    """
    return readable(_by_id(in_state(state), filters), user)


def search_of(filters: Mapping[str, Any], *, sees_payload: bool = False) -> Search | None:
    """Return the search of a list by the FILTERS except the id; None if none is set.

    Args:
        filters: The cleaned fields of the page's filter form.
        sees_payload: True if ``q`` is searched for in the payloads too: as the user sees them,
            who could otherwise spell out a masked secret letter by letter. SQL cannot mask, so
            the payloads in reach of the page are read.
    """
    text = filters["q"] if id_of(filters) is None else ""
    if not (text and sees_payload):
        return columns_search(filters)
    others = columns_search({**filters, "q": ""}) or Q()

    def search(rows: Any) -> Q:
        folded = text.casefold()
        payloads = rows.values_list("pk", PAYLOAD_START)
        matching = [pk for pk, start in payloads if folded in short_payload(start).casefold()]
        return others & (Q(name__startswith=text) | Q(pk__in=matching))

    return search


def short_payload(start: str) -> str:
    """Return the short form of the arguments whose JSON is ``start``, as a list reads it; "…" where
    that is only a part of them."""
    return "…" if len(start) > PAYLOAD_READ else short_form(json.loads(start))


def short_form(arguments: Any) -> str:
    """Return ``arguments`` as lists show and search them, ``customer=hooli, lines=[1, 2]``, secrets
    masked."""
    shown = masked(arguments)
    if not isinstance(shown, dict):  # a row that was written past enqueue: its task fails
        return _as_text(shown)
    return ", ".join(f"{name}={_as_text(value)}" for name, value in shown.items())


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def columns_search(filters: Mapping[str, Any], of_task: str = "") -> Q | None:
    """Return the condition of the FILTERS except the id; None if none is set.

    ``of_task`` is put before the columns of a task, for rows that have a task and a holder.
    """
    lookups = {
        "name__startswith": filters["q"] if id_of(filters) is None else "",
        "name__in": registry.all_names(filters["name"]) if filters["name"] else (),
        "queue": filters["queue"],
        "concurrency_key": filters["key"],
        "created_at__gte": filters["since"],
        "created_at__lt": filters["until"],
    }
    conditions = [Q(**{of_task + name: value}) for name, value in lookups.items() if value]
    if filters["holders"]:
        conditions.append(Q(holder__in=filters["holders"]))
    return Q(*conditions) if conditions else None


def counts(filters: Mapping[str, Any], *, sees_payload: bool = False) -> dict[str, Capped]:
    """Count the tasks of each of STATES that match the filters: one statement, and one for each
    state whose payloads are searched."""
    tallies = {name: tally(name, filters, sees_payload=sees_payload) for name in STATES}
    counted = count_together(tallies)
    return {state: counts["matching"] for state, counts in counted.items()}


def tally(
    state: str, filters: Mapping[str, Any] = NO_FILTERS, *, sees_payload: bool = False
) -> Tally:
    """Return the tally of the tasks in the list ``state`` that match the filters ("matching")."""
    rows = _by_id(in_state(state), filters).order_by(*STATES[state].order.by)
    search = search_of(filters, sees_payload=sees_payload)
    cap = COUNT_CAP if search is None else SEARCH_CAP
    return Tally(rows, {"matching": condition_of(search, rows, cap + 1) or Q()}, cap)


def count_of(*states: str, fresh: bool) -> Capped:
    """Return the number of tasks in the lists ``states``, by one statement. Unless ``fresh``, a
    count that stopped at its cap may be one that another poll made within the last minute."""

    def count() -> Capped:
        counted = count_together({state: tally(state) for state in states})
        return sum((counts["matching"] for counts in counted.values()), Capped(0))

    return shared(
        ("count", states),
        count,
        fresh=fresh,
        seconds=lambda count: CAPPED_SHARED_FOR if count.is_capped else 0.0,
    )


def _by_id(rows: Any, filters: Mapping[str, Any]) -> Any:
    key = id_of(filters)
    return rows if key is None else rows.filter(pk=key)


def id_of(filters: Mapping[str, Any]) -> int | None:
    """Return the id that the filter ``q`` names: "17" or "task:17"; None if it names none."""
    number = filters["q"].removeprefix("task:").removeprefix("#")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 20 else None
