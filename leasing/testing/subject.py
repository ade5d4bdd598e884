"""One thing that can be leased, in any store: what ``leasing.testing`` works on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.apps import apps

from leasing.conf import leasing_settings
from leasing.db.routing import database_of
from leasing.holding import Term
from leasing.models import Leasable, Lease, LeaseEvent
from leasing.querysets import LeasableQuerySet, LeaseState
from leasing.runtime.aio import drive
from leasing.stores.memory import Key, MemoryStore, key_of, memory
from leasing.stores.rows import RowStore
from leasing.validation.terms import Terms

#: A hold, a row that can be leased, or the name of a resource.
What = Term | Leasable | str


class RowSubject:
    """A row of the database.

    Args:
        rows: The queryset of its model.
        key: The filter that finds the row.
        resource: The resource that is leased.
    """

    def __init__(self, rows: Any, key: dict[str, Any], resource: str) -> None:
        self.resource = resource
        self._rows: LeasableQuerySet[Any] = rows.home()
        self._key = key

    def look(self) -> Any:
        """Return the row as it stands, with ``now``; None when there is none."""
        return self._rows.filter(**self._key).with_state().first()

    def change(self, columns: dict[str, Any]) -> None:
        """Write ``columns`` to the row."""
        self._rows.filter(**self._key).update(**columns)

    def revoke(self, reason: str, by: str) -> bool:
        """Take it from its holder. Return True if there was one."""
        return bool(self._rows.filter(**self._key).revoke(reason, by))

    def acquire(self, terms: Terms) -> tuple[Any, Callable[[], object]]:
        """Return the row, granted under ``terms``, and what gives it back."""
        row = drive(self._rows.acquiring(self.resource, terms, 0, *self._key.items()))
        return row, partial(self._rows.release, row)

    def events(self) -> list[LeaseEvent]:
        """Return its events, oldest first."""
        events = LeaseEvent.objects.using(self._rows.db).filter(resource=self.resource)
        return list(events.order_by("id"))


class MemorySubject:
    """A row in the memory of this process: see ``RowSubject``.

    Args:
        store: The store that has it.
        key: Its key there, which ends with the resource.
        blank: Makes a row of that resource, not yet granted.
    """

    def __init__(self, store: MemoryStore, key: Key, blank: Callable[[], Any]) -> None:
        self.resource = key[1]
        self._store = store
        self._key = key
        self._blank = blank

    def look(self) -> Any:
        return self._store.look(self._key)

    def change(self, columns: dict[str, Any]) -> None:
        self._store.change(self._key, columns)

    def revoke(self, reason: str, by: str) -> bool:
        return self._store.revoke_row(self._key, reason, by)

    def acquire(self, terms: Terms) -> tuple[Any, Callable[[], object]]:
        grant = self._store.acquire_row(self._blank(), terms)
        return grant.row, partial(self._store.release, grant)

    def events(self) -> list[LeaseEvent]:
        return [event for event in self._store.events if event.resource == self.resource]


#: One lease, in any store.
Subject = RowSubject | MemorySubject


def subject_of(what: What) -> Subject:
    """Return the subject of the lease on ``what``. Raises TypeError for an object that cannot be
    leased."""
    if isinstance(what, Term):
        return _subject_of_term(what)
    if isinstance(what, str):
        key: dict[str, Any] = {"resource": what}
        rows: Any = Lease.objects.all()
    elif isinstance(what, Lease):
        key, rows = {"resource": what.resource}, Lease.objects.using(database_of(what))
    elif isinstance(what, Leasable):
        key, rows = {"pk": what.pk}, type(what).lease_rows(database_of(what))
    else:
        raise TypeError(f"Expected the term of a hold, a leasable row or a name, not {what!r}.")
    if not leasing_settings.ENABLED:
        blank = partial(rows.model, **key)
        return MemorySubject(memory, key_of(blank()), blank)
    resource = what if isinstance(what, str) else what.lease_resource
    return RowSubject(rows, key, resource)


def _subject_of_term(term: Term) -> Subject:
    if isinstance(term.store, RowStore):
        rows = term.store.model.lease_rows(term.store.using)
        return RowSubject(rows, {"pk": term.key}, term.resource)
    if isinstance(term.store, MemoryStore):
        model: Any = apps.get_model(term.key[0])
        return MemorySubject(term.store, term.key, model)
    raise TypeError(
        f"Tests cannot access {term.store!r}. Hold the lease in_memory(), or ask the store itself."
    )


def situation(row: Any) -> str:
    """Return the holder of ``row``, or how its lease ended, in words."""
    if row is None or not row.grants:
        return "it was never held"
    who, until = row.holder, row.expires_at.isoformat(" ", "milliseconds")
    match row.lease_state(row.now):
        case LeaseState.ACTIVE:
            return f"{who} holds it until {until}"
        case LeaseState.RELEASED:
            return f"{who} released it or was revoked at {until}"
        case _:
            return f"the lease of {who} expired at {until}"
