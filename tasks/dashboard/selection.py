"""Select the tasks of a bulk action: those that were ticked, or all that match a filter."""

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

#: Parts of a list that a search for them looks through.
STRETCHES = 4


@dataclass(frozen=True)
class Picked(Selection):
    """Tasks, and where they were picked."""

    #: The filter that picked them; None for those that were ticked.
    wanted: Mapping[str, str] | None = None
    #: The list that they were ticked in.
    back: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The filter or the list, for another hidden field."""
        return urlencode(self.back if self.wanted is None else self.wanted)


def pick(asked: QueryDict, *, sees_payload: bool = False) -> Picked:
    """Return the tasks that were ticked in a list or, with ``scope=all``, those that match its
    filter, as the list shows them to a user who ``sees_payload``."""
    form = TaskFilter(asked)
    back = asked_for(asked)
    if asked.get("scope") == "all":
        if not form.is_valid():
            return Picked({}, back=back)
        keys, more = _let_by(form.cleaned_data, sees_payload)
        return Picked(_granted(keys), more, wanted=back)
    ticked = [int(key) for key in asked.getlist("task") if _is_key(key)][:MAX_SELECTED]
    return Picked(_granted(ticked), back=back)


def picked_before(sent: QueryDict) -> Picked:
    """Return the selection of ``pick``, as the page that asks sends it; nothing where it is
    forged."""
    keys: Keys = {}
    with suppress(ValueError):
        keys = keys_of(Task, sent.get("picked", ""))
    asked = asked_for(QueryDict(sent.get("asked", "")))
    return Picked(keys, wanted=asked) if sent.get("scope") == "all" else Picked(keys, back=asked)


def asked_for(
    given: Mapping[str, Any], names: Sequence[str] = ("state", *listing.FILTERS)
) -> dict[str, str]:
    """Return the filter of a list, as in its address; without the cursor."""
    asked = {name: str(given.get(name, "")) for name in names}
    return {name: text for name, text in asked.items() if text.strip()}


def _let_by(wanted: Mapping[str, Any], sees_payload: bool) -> tuple[list[int], bool]:
    """Keys of up to MAX_SELECTED tasks from the top of the list, and whether there may be more."""
    state = listing.STATES[wanted["state"]]
    search = listing.search_of(wanted, sees_payload=sees_payload)
    rows = listing.listed(state.name, wanted).only("pk", *filter(None, [state.order.column]))
    keys: list[int] = []
    cursor = None
    for _ in range(STRETCHES):
        shown = page_of(rows, cursor, MAX_SELECTED - len(keys), state.order, search)
        keys += [task.pk for task in shown.rows]
        if not shown.older:
            return keys, False
        if len(keys) >= MAX_SELECTED:
            break
        cursor = Cursor.decode(shown.older)
    return keys, True


def _granted(keys: list[int]) -> dict[int, int | None]:
    found = dict(listing.tasks().filter(pk__in=keys).values_list("pk", "grants"))
    return {key: found.get(key) for key in keys}


def _is_key(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
