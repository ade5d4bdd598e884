"""Grants that stand in rows of the database, for holds and the keeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Unpack

from django.apps import apps
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from leasing.conf import leasing_settings
from leasing.db.dialects import (
    hang_up,
    in_transaction,
    limit_silence,
    limit_waiting,
    patience,
    use_private_connection,
)
from leasing.exceptions import LeaseLost
from leasing.holding import Hold, Term
from leasing.holding.keeper import keeper
from leasing.runtime.aio import drive
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened, subscribe
from leasing.runtime.notes import NOTE_LIMIT
from leasing.store import HoldOptions, Incumbent, Renewals, Store
from leasing.validation.terms import Terms

#: For how many times its ttl a holder may say nothing to the server within its proof. Its term is
#: over by then, but successors wait for its lock: it may have been stopped.
SILENCE = 2.0

#: The connections of the keeper's thread, by database.
_lines: dict[str, BaseDatabaseWrapper] = {}


@dataclass(frozen=True, slots=True)
class RowStore:
    """Keeps grants that stand in rows of ``model``: what a Hold and the keeper work with."""

    #: A ``Leasable``, which stands in a layer above.
    model: type[Any]
    using: str

    def open(self) -> None:
        """Give this thread a connection of its own."""
        use_private_connection(self.using, patience())
        _lines[self.using] = connections[self.using]

    def abort(self) -> None:
        _abort(self.using)

    def close(self) -> None:
        """Drop this thread's connection: the next query makes a new one."""
        connections[self.using].close()

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        try:
            renewals: Renewals = self._rows().renew_many(grants, timeout)
            return renewals
        except Error:
            # A connection that failed once is not trusted with the next renewal.
            if not connections[self.using].in_atomic_block:
                self.close()
            raise

    def release(self, term: Term) -> None:
        self._rows().release(term.held_row)

    def release_rows(self, rows: Iterable[Any]) -> dict[Any, LeaseLost]:
        """Release the grants of these ``rows``. Returns how those were lost that were, by their
        keys."""
        lost: dict[Any, LeaseLost] = self._rows().release_many(rows)
        return lost

    def lost(self, term: Term, reason: str) -> None:
        happened("lease.lost", [term.held_row], reason=reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Arguments are those of ``Store.refused``."""
        happened("lease.refused", [row], verb=verb, reason=reason)

    # Leases on names

    @classmethod
    def from_settings(cls) -> RowStore:
        """Return the store of named leases, for an entry of STORES. It has no options."""
        return cls(apps.get_model("leasing", "Lease"), leasing_settings.DATABASE)

    def hold(self, resource: str, **options: Unpack[HoldOptions]) -> Hold:
        """See ``leasing.store.NamedStore``: it is ``Lease.objects.hold``."""
        hold: Hold = self._rows().hold(resource, **options)
        return hold

    def acquire(self, resource: str, terms: Terms) -> Term:
        """See ``leasing.store.NamedStore``."""
        return term_of(drive(self._rows().acquiring_named(resource, terms, 0)), self)

    def revoke(self, resource: str, reason: str = "", by: str = "") -> bool:
        """See ``leasing.store.NamedStore``."""
        return bool(self._rows().filter(resource=resource).revoke(reason, by))

    def current(self, resource: str) -> Incumbent | None:
        """See ``leasing.store.NamedStore``."""
        row = self._rows().filter(resource=resource).active().first()
        return None if row is None else Incumbent(row.holder, row.fencing_token, row.expires_at)

    # In one transaction with the user's data

    @contextmanager
    def proving(self, row: Any) -> Iterator[None]:
        rows = self._rows().home()
        is_ours = not connections[self.using].in_atomic_block
        with transaction.atomic(using=self.using):
            if is_ours:
                limit_silence(self.using, SILENCE * row.ttl.total_seconds())
            rows.prove(row)
            yield
            rows.prove(row)

    def _rows(self) -> Any:
        return self.model._kept_rows(self.using)


@cache
def row_store(model: type[Any], using: str) -> RowStore:
    """The store of the rows of ``model``: one for all holds on them."""
    return RowStore(model, using)


def _abort(using: str) -> None:
    """Cut the connection of the keeper's thread."""
    if using in _lines:
        hang_up(_lines[using])


def _write_bounded(using: str, write: Callable[[], object]) -> None:
    """Write without waiting long for locks: the thread that does so has renewals to do."""
    _lines[using] = connections[using]
    with transaction.atomic(using=using):
        limit_waiting(using, NOTE_LIMIT)
        write()


def term_of(row: Any, store: Store | None = None) -> Term:
    """Return the term of ``row``, which was just granted by ``store``."""
    return Term(
        row.pk,
        row.grant_id,
        row.fencing_token,
        row.holder,
        row.lease_resource,
        row.ttl.total_seconds(),
        (row.expires_at - row.now).total_seconds(),
        row.expires_at,
        row.sent_at,
        row,
        store,
    )


def write_apart(using: str, write: Callable[[], object]) -> None:
    """Write a note so that a rollback by the caller does not erase it."""
    if in_transaction(using):
        keeper.soon(partial(_write_bounded, using, write), partial(_abort, using))
    else:
        write()


# The ledger of what no statement of a verb records


def _record_lost(rows: Sequence[Any], *, reason: str) -> None:
    for row in rows:
        if (kept := _kept(row)) is not None:
            # Never from here: this thread tells every loss of this process, and the database that
            # was silent about the renewal may be as silent about the note.
            note = partial(kept.record, "lost", row, reason=reason)
            keeper.soon(partial(_write_bounded, kept.db, note), partial(_abort, kept.db))


def _record_refused(rows: Sequence[Any], *, verb: str, reason: str) -> None:
    for row in rows:
        if (kept := _kept(row)) is not None:
            write_apart(kept.db, partial(kept.note_refused, row, verb, reason))


def _kept(row: Any) -> Any:
    """Return the queryset of the rows in the database that has ``row``; None: none has it."""
    is_stored = isinstance(row, Model) and row._state.db is not None
    return type(row)._kept_rows().home(row) if is_stored else None


subscribe({"lease.lost": _record_lost}, log.log_failed)
# Where the database refuses the note, the holder is to know that.
subscribe({"lease.refused": _record_refused}, None)
