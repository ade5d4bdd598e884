"""Select the tasks of a bulk action: the ticked ones, or all that match a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict

from leasing.dashboard.operator_actions import MAX_SELECTED, Keys, Selection, keys_of
from leasing.web.cursors import Cursor
from leasing.web.paging import page_of
from tasks.dashboard import listing
from tasks.dashboard.forms import TaskFilter
from tasks.models import Task

#: Pages of a list that a selection by filter reads at most.
MAX_PAGES = 4


@dataclass(frozen=True)
class TaskSelection(Selection):
    """Tasks, and how they were selected."""

    #: The filter that selected them; None: they were ticked.
    by_filter: Mapping[str, str] | None = None
    #: The filter of the list in which they were ticked.
    ticked_in: Mapping[str, str] = field(default_factory=dict)

    @property
    def list_query(self) -> str:
        """The query string of the list, for another hidden field."""
        return urlencode(self.ticked_in if self.by_filter is None else self.by_filter)


def select(parameters: QueryDict, *, sees_payload: bool = False) -> TaskSelection:
    """Return the tasks that were ticked in a list or, with ``scope=all``, those that match its
    filter.

    Args:
        parameters: The query of the request.
        sees_payload: True if the user may search payloads, as in the list.
    """
    form = TaskFilter(parameters)
    list_filter = filter_parameters(parameters)
    if parameters.get("scope") == "all":
        if not form.is_valid():
            return TaskSelection({}, ticked_in=list_filter)
        keys, more = _matching_keys(form.cleaned_data, sees_payload)
        return TaskSelection(_with_grants(keys), more, by_filter=list_filter)
    ticked = [int(key) for key in parameters.getlist("task") if _is_key(key)][:MAX_SELECTED]
    return TaskSelection(_with_grants(ticked), ticked_in=list_filter)


def confirmed(form_data: QueryDict) -> TaskSelection:
    """Return the selection that the confirmation page sends back; an empty one if it is forged."""
    keys: Keys = {}
    with suppress(ValueError):
        keys = keys_of(Task, form_data.get("picked", ""))
    list_filter = filter_parameters(QueryDict(form_data.get("asked", "")))
    if form_data.get("scope") == "all":
        return TaskSelection(keys, by_filter=list_filter)
    return TaskSelection(keys, ticked_in=list_filter)


def filter_parameters(
    parameters: Mapping[str, Any], names: Sequence[str] = ("state", *listing.FILTERS)
) -> dict[str, str]:
    """Return the filter of a list as in its address, without the cursor."""
    texts = {name: str(parameters.get(name, "")) for name in names}
    return {name: text for name, text in texts.items() if text.strip()}


def _matching_keys(filters: Mapping[str, Any], sees_payload: bool) -> tuple[list[int], bool]:
    """Return the keys of up to MAX_SELECTED tasks from the top of the list, and True if there may
    be more."""
    state = listing.STATES[filters["state"]]
    search = listing.search_of(filters, sees_payload=sees_payload)
    rows = listing.listed(state.name, filters).only("pk", *filter(None, [state.order.column]))
    keys: list[int] = []
    cursor = None
    for _ in range(MAX_PAGES):
        shown = page_of(rows, cursor, MAX_SELECTED - len(keys), state.order, search)
        keys += [task.pk for task in shown.rows]
        if not shown.older:
            return keys, False
        if len(keys) >= MAX_SELECTED:
            break
        cursor = Cursor.decode(shown.older)
    return keys, True


def _with_grants(keys: list[int]) -> dict[int, int | None]:
    grants = dict(listing.tasks().filter(pk__in=keys).values_list("pk", "grants"))
    return {key: grants.get(key) for key in keys}


def _is_key(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
