"""The lists of leases: the named ones, then those of every other leasable model.

No column of a lease that a heartbeat writes is in an index, so a state is searched for as any
other property is: among REACH rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from django.db.models import Exists, Q

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_scalars
from leasing.models import Leasable, Lease, LeaseState, OnceKey, leasable_models
from leasing.models.kinds import is_large, listed, matching
from leasing.stores import InvalidStore, stores
from leasing.stores.rows import RowStore
from leasing.web.counts import Capped, Tally, count_together
from leasing.web.cursors import Cursor, Order
from leasing.web.fingerprint import LEASE_COLUMNS
from leasing.web.paging import PAGE_SIZE, Page, chunks_of, page_of

ALL: Final = "all"
#: The states in which a lease can be, one at a time.
STATES: Final = (LeaseState.ACTIVE, LeaseState.EXPIRED, LeaseState.RELEASED, LeaseState.FREE)
#: A condition in addition to the state: the latest grant was renewed.
RENEWED: Final = Q(renewals__gt=0)
RENEWED_ONES: Final = "renewed"
#: The leases that workers hold for their own services: an application's come before them.
INTERNAL: Final[Mapping[type[Leasable], Q]] = {
    Lease: Q(resource__startswith="leasing_tasks."),
    OnceKey: Q(key__startswith="leasing_tasks:"),
}
_INTERNAL_NAMES: Final = ("leasing_tasks.", "once:leasing_tasks:")


@dataclass(frozen=True)
class Section:
    """The leases of one model, a page of them."""

    title: str
    page: Page[Any]
    note: str = ""


def other_stores() -> list[str]:
    """Return the aliases of the stores whose leases are no rows, as far as the settings tell."""
    found = []
    with suppress(InvalidStore):  # leasing.E031 says why
        for alias in stores:
            with suppress(InvalidStore):
                if issubclass(stores.kind_of(alias), RowStore):
                    continue
            found.append(alias)
    return found


def is_internal(row: Leasable) -> bool:
    """Return True if workers hold the lease of ``row`` for their own services."""
    return type(row) in INTERNAL and row.lease_resource.startswith(_INTERNAL_NAMES)


def sections(wanted: Mapping[str, Any], cursor: Cursor | None) -> list[Section]:
    """Return the leases that are ``wanted``: of every model that has any, and named ones; on the
    first page also the internal ones, at the end. Raises InvalidCursor."""
    models = tuple(leasable_models())
    using = leasing_settings.DATABASE
    # One statement, and not one for each model that nobody leases.
    found = query_scalars(Lease, using, models, lambda: dict(chain(*map(_any_of, models))))
    labels = {name.partition(" ")[0] for name, is_any in found.items() if is_any}
    if cursor:
        labels.add(cursor.model)
    shown = [model for model in models if model is Lease or model._meta.label_lower in labels]
    pages = [section(model, wanted, cursor) for model in shown]
    return pages if cursor else [*pages, _internal(shown, wanted)]


def _internal(models: Sequence[type[Leasable]], wanted: Mapping[str, Any]) -> Section:
    rows: list[Leasable] = []
    for model in filter(INTERNAL.get, models):
        found = _listed(model, wanted).filter(INTERNAL[model], _search(wanted) or Q())
        rows += found.only(*_columns(model)).order_by("-pk")[:PAGE_SIZE]
    note = "held by workers for their own services"
    return Section("Internal leases", Page(rows), note)


def _any_of(model: type[Leasable]) -> Iterator[tuple[str, Exists]]:
    for number, rows in enumerate(_parts(model, listed(model).order_by())):
        yield f"{model._meta.label_lower} {number}", Exists(rows)


def _parts(model: type[Leasable], rows: Any) -> list[Any]:
    return [rows.filter(part) for part in model.listing.parts or (Q(),)]


def section(model: type[Leasable], wanted: Mapping[str, Any], cursor: Cursor | None) -> Section:
    """Return one page of the leases of a model. Raises InvalidCursor.

    Args:
        model: The model; ``Lease`` for named leases.
        wanted: The cleaned fields of the page's filter form.
        cursor: The beginning of the page; None: the first page.
    """
    title = "Named leases" if model is Lease else str(model._meta.verbose_name_plural).capitalize()
    rows = _listed(model, wanted).only(*_columns(model))
    if model in INTERNAL:
        rows = rows.exclude(INTERNAL[model])
    return Section(title, page_of(rows, cursor, order=_order(model), search=_search(wanted)))


def exported(wanted: Mapping[str, Any]) -> Iterator[Sequence[Leasable]]:
    """The leases of all models that are ``wanted``, some at a time."""
    for model in leasable_models():
        yield from chunks_of(_listed(model, wanted), _order(model), _search(wanted))


def counts(wanted: Mapping[str, Any]) -> tuple[dict[str, Capped], Capped]:
    """Return the number of leases of all models that are ``wanted``, in each state ("all" too), and
    of those in the wanted state that were renewed. One statement counts them."""
    tallies: dict[Any, Tally] = {}
    states = {
        **{state: _in(wanted, state) for state in (ALL, *STATES) if state != LeaseState.ACTIVE},
        RENEWED_ONES: _in(wanted, wanted["state"]) & RENEWED,
    }
    for model in leasable_models():
        for number, rows in enumerate(_parts(model, _rows(model, wanted))):
            tallies[model, number] = Tally(rows, states)
        # The active ones are counted apart: among many others they may not have been looked at.
        held = _held(model, _rows(model, wanted)).filter(_in(wanted, LeaseState.ACTIVE))
        tallies[model, "held"] = Tally(held, {LeaseState.ACTIVE: Q()})
    read = count_together(tallies)
    found: dict[str, Capped] = {name: Capped(0) for name in (RENEWED_ONES, ALL, *STATES)}
    for counted in read.values():
        found |= {name: found[name] + each for name, each in counted.items()}
    renewed = found.pop(RENEWED_ONES)
    return found, renewed


def _listed(model: type[Leasable], wanted: Mapping[str, Any]) -> Any:
    """The leases of ``model`` among which the wanted ones are."""
    rows = _rows(model, wanted)
    return _held(model, rows) if wanted["state"] == LeaseState.ACTIVE else rows


def _columns(model: type[Leasable]) -> tuple[str, ...]:
    """Return the columns that a list of leases of ``model`` shows or derives the state from."""
    if (named_by := model.listing.named_by) is None:
        return tuple(field.name for field in model._meta.concrete_fields if not is_large(field))
    return tuple(sorted({model._meta.pk.name, "holder", "acquired_at", *LEASE_COLUMNS, *named_by}))


def _rows(model: type[Leasable], wanted: Mapping[str, Any]) -> Any:
    """The leases of ``model`` with the name that is wanted, which an index finds."""
    rows = listed(model)
    return (rows.filter(matching(model, wanted["q"])) if wanted["q"] else rows).with_state()


def _held(model: type[Leasable], rows: Any) -> Any:
    """Return the part of ``rows`` that has the active ones: a model with a state of its own has an
    index on it."""
    return rows if model is Lease else rows.holding()


def _order(model: type[Leasable]) -> Order:
    return Order(model.listing.by, parts=model.listing.parts)


def _search(wanted: Mapping[str, Any]) -> Q | None:
    is_narrow = wanted["state"] != ALL or wanted["renewed"]
    return _in(wanted, wanted["state"]) if is_narrow else None


def _in(wanted: Mapping[str, Any], state: str) -> Q:
    """Return the condition of ``wanted`` in ``state``."""
    demand = Q() if state == ALL else Q(state=state)
    return demand & RENEWED if wanted["renewed"] else demand
