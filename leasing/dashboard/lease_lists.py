"""The lists of leases: the named ones, and beside them those of every other leasable model.

No column of a lease that a heartbeat writes is in an index, so a state is searched for as any
other property is: among so many rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db.models import Count, Q

from leasing.leasables import is_large, listed, matching
from leasing.models import Leasable, Lease, LeaseState, leasable_models
from leasing.web.cursors import Order
from leasing.web.paging import (
    COUNT_CAP,
    Capped,
    Cursor,
    Page,
    Tallies,
    capped_count,
    chunks_of,
    glance_at,
    page_of,
)
from leasing.web.polling import LEASE_READ

ALL: Final = "all"
#: The states in which a lease can be, one at a time.
STATES: Final = (LeaseState.ACTIVE, LeaseState.EXPIRED, LeaseState.RELEASED, LeaseState.FREE)
#: Beside the state: whether the latest grant was renewed.
RENEWED: Final = Q(renewals__gt=0)
RENEWED_ONES: Final = "renewed"

#: What polls of this process share.
tallies: Tallies[dict[str, Capped]] = Tallies(lambda counts: list(counts.values()), 1)


@dataclass(frozen=True)
class Section:
    """The leases of one model, a page of them."""

    title: str
    page: Page[Any]


@dataclass(frozen=True)
class Counts:
    """How many leases of all models there are in each state ("all" too), and how many of the
    wanted state were renewed."""

    states: Mapping[str, Capped]
    renewed: Capped


def section(model: type[Leasable], wanted: Mapping[str, Any], cursor: Cursor | None) -> Section:
    """The leases of ``model`` that are ``wanted``. Raises InvalidCursor."""
    title = "Named leases" if model is Lease else str(model._meta.verbose_name_plural).capitalize()
    rows = _shown(model, wanted)
    return Section(title, page_of(rows, cursor, order=_order(model), search=_search(wanted)))


def seen(model: type[Leasable], wanted: Mapping[str, Any], cursor: Cursor | None) -> object:
    """What tells whether ``section`` would bring others than before. Raises InvalidCursor."""
    key = None if wanted["q"] else (model, wanted["state"])
    rows, search = partial(_shown, model, wanted), _search(wanted)
    return glance_at(rows, _columns(model), cursor, _order(model), search, key)


def exported(wanted: Mapping[str, Any]) -> Iterator[Sequence[Leasable]]:
    """The leases of all models that are ``wanted``, some at a time."""
    for model in leasable_models():
        yield from chunks_of(_listed(model, wanted), _order(model), _search(wanted))


def counts(wanted: Mapping[str, Any], *, anew: bool = True) -> Counts:
    """Two queries for each model, of which each looks at COUNT_CAP rows at most. Unless ``anew``,
    some may be a little old: see ``counts.Tallies``."""
    asked = tuple(wanted[name] for name in ("state", "q", "renewed"))
    own: dict[Any, Any] = {}
    for model in leasable_models():
        for read in (_looked_at, _active):
            key = (read, model)
            own[key] = ((*key, asked), partial(read, model, wanted))
    read_of = tallies.get(own, anew=anew)
    found: dict[str, Capped] = {name: Capped(0) for name in (RENEWED_ONES, ALL, *STATES)}
    for model in leasable_models():
        # The active ones are counted apart: among many others they may not have been looked at.
        both = read_of[_looked_at, model] | read_of[_active, model]
        found = {name: found[name] + each for name, each in both.items()}
    renewed = found.pop(RENEWED_ONES)
    return Counts(found, renewed)


def _looked_at(model: type[Leasable], wanted: Mapping[str, Any]) -> dict[str, Capped]:
    """How many of the first rows of ``model`` are in each state."""
    seen = _rows(model, wanted)[: COUNT_CAP + 1].aggregate(
        **{state: Count("pk", filter=_in(wanted, state)) for state in (ALL, *STATES)},
        **{RENEWED_ONES: Count("pk", filter=_in(wanted, wanted["state"]) & RENEWED)},
        looked_at=Count("pk"),
    )
    more = seen.pop("looked_at") > COUNT_CAP
    return {name: Capped(count, more=more and name != ALL) for name, count in seen.items()}


def _active(model: type[Leasable], wanted: Mapping[str, Any]) -> dict[str, Capped]:
    """How many rows of ``model`` are held now."""
    held = _held(model, _rows(model, wanted)).filter(_in(wanted, LeaseState.ACTIVE))
    return {LeaseState.ACTIVE.value: capped_count(held)}


def _listed(model: type[Leasable], wanted: Mapping[str, Any]) -> Any:
    """The leases of ``model`` among which the wanted ones are."""
    rows = _rows(model, wanted)
    return _held(model, rows) if wanted["state"] == LeaseState.ACTIVE else rows


def _shown(model: type[Leasable], wanted: Mapping[str, Any]) -> Any:
    """``_listed``, with what a list shows."""
    return _listed(model, wanted).only(*_columns(model))


def _columns(model: type[Leasable]) -> tuple[str, ...]:
    """What a list of leases of ``model`` shows, and what tells how each stands."""
    told = model.leases_told_by
    if told is None:
        return tuple(field.name for field in model._meta.concrete_fields if not is_large(field))
    return tuple(sorted({model._meta.pk.name, "holder", "acquired_at", *LEASE_READ, *told}))


def _rows(model: type[Leasable], wanted: Mapping[str, Any]) -> Any:
    """The leases of ``model`` with the name that is wanted, which an index finds."""
    rows = listed(model)
    return (rows.filter(matching(model, wanted["q"])) if wanted["q"] else rows).with_state()


def _held(model: type[Leasable], rows: Any) -> Any:
    """Those of ``rows`` among which the active ones are: a model with a state of its own has an
    index on it."""
    return rows if model is Lease else rows.holding()


def _order(model: type[Leasable]) -> Order:
    return Order(model.leases_listed_by)


def _search(wanted: Mapping[str, Any]) -> Q | None:
    is_narrow = wanted["state"] != ALL or wanted["renewed"]
    return _in(wanted, wanted["state"]) if is_narrow else None


def _in(wanted: Mapping[str, Any], state: str) -> Q:
    """What is wanted in ``state``."""
    demand = Q() if state == ALL else Q(state=state)
    return demand & RENEWED if wanted["renewed"] else demand
