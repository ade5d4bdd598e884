"""The lists of leases: the named ones, and beside them those of every other leasable model.

No column of a lease that a heartbeat writes is in an index, so a state is searched for as any
other property is: among so many rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Count, Q

from leasing.leasables import listed, matching
from leasing.models import Leasable, Lease, LeaseState, leasable_models
from leasing.paging import COUNT_CAP, Capped, Cursor, Order, Page, capped_count, chunks_of, page_of

ALL: Final = "all"
#: The states in which a lease can be, one at a time.
STATES: Final = (LeaseState.ACTIVE, LeaseState.EXPIRED, LeaseState.RELEASED, LeaseState.FREE)
#: Beside the state: whether the latest grant was renewed.
RENEWED: Final = Q(renewals__gt=0)


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
    rows = _rows(model, wanted)
    if wanted["state"] == LeaseState.ACTIVE:
        rows = _held(model, rows)
    return Section(title, page_of(rows, cursor, order=_order(model), search=_search(wanted)))


def exported(wanted: Mapping[str, Any]) -> Iterator[Sequence[Leasable]]:
    """The leases of all models that are ``wanted``, some at a time."""
    for model in leasable_models():
        rows = _rows(model, wanted)
        if wanted["state"] == LeaseState.ACTIVE:
            rows = _held(model, rows)
        yield from chunks_of(rows, _order(model), _search(wanted))


def counts(wanted: Mapping[str, Any]) -> Counts:
    """Two queries for each model, of which each looks at COUNT_CAP rows at most."""
    found: dict[str, Capped] = {name: Capped(0) for name in (ALL, *STATES)}
    renewed = Capped(0)
    for model in leasable_models():
        seen = _rows(model, wanted)[: COUNT_CAP + 1].aggregate(
            **{state: Count("pk", filter=_in(wanted, state)) for state in (ALL, *STATES)},
            renewed=Count("pk", filter=_in(wanted, wanted["state"]) & RENEWED),
            looked_at=Count("pk"),
        )
        more = seen["looked_at"] > COUNT_CAP
        active = capped_count(_held(model, _rows(model, wanted)).filter(_in(wanted, "active")))
        own = {state: Capped(seen[state], more=more and state != ALL) for state in (ALL, *STATES)}
        found = {state: found[state] + each for state, each in (own | {"active": active}).items()}
        renewed += Capped(seen["renewed"], more=more)
    return Counts(found, renewed)


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
