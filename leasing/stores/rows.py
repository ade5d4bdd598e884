"""Grants that stand in rows of the database: the verbs of holders, for holds and the keeper too.

The verbs require of the row, in addition to its key:

    acquire   released, or the deadline has passed (for rows never granted it always has)
    renew     this grant, not released, the deadline not passed
    release   this grant, not released, the deadline not passed

PostgreSQL gets one statement for each (``leasing.db.sql``), where the model's conditions have SQL;
what that does not do, for the row is locked or its term has ended, the portable form
(``leasing.stores.portable``) does, which waits for the lock and finds out why.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import Any, ClassVar, Unpack

from django.apps import apps
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from leasing.conf import Wait, leasing_settings
from leasing.db import sql
from leasing.db.dialects import (
    after_commit,
    durable,
    hang_up,
    in_transaction,
    limit_silence,
    limit_waiting,
    patience,
    refuse_transaction,
    use_private_connection,
)
from leasing.db.sql import Statements
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.holding import Hold, Term
from leasing.holding import claim as claims
from leasing.holding.claim import Claim
from leasing.holding.keeper import NOTE_LIMIT, keeper
from leasing.runtime.aio import Steps, Undoable, drive
from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log
from leasing.runtime.events import during, followers, happened, subscribe
from leasing.store import HoldOptions, Incumbent, Renewals, Store
from leasing.stores import portable
from leasing.validation.terms import Terms
from leasing.waiting.notifier import notify, taking

#: For how many times its ttl a holder may say nothing to the server within its proof. Its term is
#: over by then, but successors wait for its lock: it may have been stopped.
SILENCE = 2.0
#: Tries of an acquisition while a row is free and another process is about to acquire it.
TRIES = 3
NOTHING: AbstractContextManager[Any] = nullcontext()

#: The connections of the keeper's thread, by database.
_lines: dict[str, BaseDatabaseWrapper] = {}


@dataclass(frozen=True)
class RowStore:
    """Keeps grants that stand in rows of ``model``: what a Hold and the keeper work with."""

    #: A ``Leasable``, which stands in a layer above.
    model: type[Any]
    using: str
    #: The class of querysets whose conditions and columns the verbs take.
    kind: type[Any]
    #: See ``leasing.store.Store``.
    is_metered: ClassVar[bool] = False

    @cached_property
    def _statements(self) -> Statements:
        return Statements(self.kind, self.model, self.using)

    def rows(self) -> Any:
        """Return every row, as a queryset."""
        return self.kind(self.model, using=self.using)

    # Acquire

    def acquiring(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        key: tuple[str, Any],
        stopping: threading.Event | None = None,
        rows: Any = None,
    ) -> Steps[Any]:
        """The steps that acquire a row, for a driver, and wait for it between tries.

        Args:
            resource: The name of its resource.
            terms: The terms of the grant.
            wait: Seconds to wait for the current holder; None: for ever.
            key: A unique column, and its value.
            stopping: An event that ends the waiting with LeaseTimeout.
            rows: The rows of which it is to be one; None: it may be any.
        """
        # A request that may be sent again keeps what it won: the one that repeats it finds it.
        undo = self.release_row if terms.request_id is None else _keep
        attempt = Undoable(partial(self.attempt, resource, terms, key, rows), undo)
        # What can be stopped may wait for days, and is a campaign.
        is_campaign = stopping is not None
        mark_wanted = None
        if self.kind.tells_waiters:
            mark_wanted = partial(self._mark_wanted, resource, "" if is_campaign else terms.holder)
        about = {"model": self.model, "resource": resource, "is_campaign": is_campaign}
        began_at = clock()
        try:
            row = yield from taking(
                self.using, resource, wait, attempt, mark_wanted=mark_wanted, stopping=stopping
            )
        except BaseException as error:
            happened("lease.asked", error=error, seconds=clock() - began_at, **about)
            raise
        happened("lease.asked", [row], error=None, seconds=clock() - began_at, **about)
        return row

    def holding(self, *asked: Any) -> Steps[Term]:
        """Return the steps of ``acquiring`` for a hold."""
        return term_of((yield from self.acquiring(*asked)), self)

    def attempt(self, resource: str, terms: Terms, key: tuple[str, Any], rows: Any = None) -> Any:
        """Acquire now. Arguments are those of ``acquiring``. Raises LeaseHeld; LeaseLost when the
        row is gone."""
        for number in range(TRIES):
            granted = self._statements.grant(terms, sql.ONE, *key, rows)
            if granted is None:
                with durable(self.using):
                    among = self.rows() if rows is None else rows
                    granted = portable.grant(among, terms, 1, **dict([key]))
            if granted:
                return self._told(granted)[0]
            current = (self.rows() if rows is None else rows).judge(resource, terms, key)
            if current is not None:
                return current
            if number:
                pause_shortly()
        raise LeaseHeld(resource)

    def claim(self, terms: Terms, limit: int, rows: Any) -> Claim[Any]:
        """Grant up to ``limit`` available rows in one transaction.

        Args:
            terms: The terms of the grants.
            limit: The number of rows, at most.
            rows: The rows, in their order; None: all, in the order of their keys.
        """
        if rows is not None and not rows.ordered:
            rows = rows.order_by("pk")
        granted = self._statements.grant(terms, sql.FIRST, "pk", limit, rows)
        if granted is None:
            rows = self.rows().order_by("pk") if rows is None else rows
            with durable(self.using):
                granted = portable.grant(rows, terms, limit)
        return Claim(self._told(granted), self)

    def grant_all(self, terms: Terms, column: str, names: list[str]) -> Claim[Any]:
        """Grant the rows whose ``column`` is one of ``names``, or none. Returns them sorted by
        ``column``. Raises LeaseHeld."""
        for number in range(TRIES):
            granted = self._statements.grant(terms, sql.ALL, column, names)
            if granted is None:
                granted = self._grant_all(terms, column, names)
            if len(granted) == len(names):
                granted.sort(key=attrgetter(column))
                return Claim(self._told(granted), self)
            self.rows().judge_all(names, terms)
            if number:
                pause_shortly()
        raise LeaseHeld(", ".join(names))

    def _grant_all(self, terms: Terms, column: str, names: list[str]) -> list[Any]:
        named = self.rows().filter(**{f"{column}__in": names}).order_by(column)
        with durable(self.using):
            granted = portable.grant(named, terms, None)
            if len(granted) == len(names):
                return granted
            transaction.set_rollback(True, using=self.using)
        return []

    def _told(self, granted: list[Any]) -> list[Any]:
        """Signal what was ``granted``, and return it."""
        if self.kind.is_told:
            alike: dict[str, list[Any]] = {}
            for row in granted:
                is_first = row.previous_expired_at is None
                alike.setdefault("acquired" if is_first else "taken_over", []).append(row)
            for kind, rows in alike.items():
                happened(f"lease.{kind}", rows)
        return granted

    def _mark_wanted(self, resource: str, by: str) -> None:
        self.rows().mark_wanted(resource, by)

    # Renew

    def renew_row(self, row: Any) -> None:
        """Renew the grant of ``row``, and update the instance. Raises LeaseLost,
        LeaseInTransaction."""
        if not self._statements.renew_one(row):
            rows = self.rows()
            if not portable.renew(rows, row):
                raise rows._refuse(row, self.kind.renewing)
        happened("lease.renewed", [row])

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        try:
            return self.renew_many(grants, timeout)
        except Error:
            # A connection that failed once is not trusted with the next renewal.
            if not connections[self.using].in_atomic_block:
                self.close()
            raise

    def renew_many(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        """Renew the rows whose key and grant are in ``grants``, in one transaction.

        Rows that someone else has locked are skipped and are not in the answer: try them again. No
        statement runs longer than ``timeout`` seconds.

        Raises LeaseInTransaction inside an atomic block: after a rollback the holders would trust a
        renewal that was not stored.
        """
        refuse_transaction(self.using)
        renewed = self._statements.renew(grants, timeout)
        if renewed is None:
            renewed = portable.renew_many(self.rows(), grants, timeout)
        mine = [row for row in renewed if row.grant_id == grants[row.pk]]
        answer = Renewals({row.pk: row.renewal_now() for row in mine})
        missed = {key: grants[key] for key in grants if key not in answer.renewed}
        if missed:
            answer.lost = self.rows().why_lost(missed)
        return answer

    # Release

    def release(self, term: Term) -> None:
        row = term.held_row
        if self.kind.release is self.kind.plain_release:
            self.release_row(row)
        else:
            self.rows().release(row)

    def release_row(self, row: Any) -> None:
        """Release ``row``, and update the instance. A second release of the same grant changes
        nothing. Raises LeaseLost."""
        leaving = claims.ending(self.using, [row]) if claims.blocks else NOTHING
        followed = during("lease.release", row) if followers else NOTHING
        connection = connections[self.using]
        with followed, leaving:
            if freed := self._statements.release(connection, {row.pk: row}):
                after_commit(connection, partial(self._freed, freed))
                return
            rows = self.rows()
            if portable.release(rows, row):
                if self.kind.is_told:
                    after_commit(self.using, partial(happened, "lease.released", [row]))
            elif not rows.was_released_by_holder(row):
                raise rows._refuse(row, "release")

    def release_rows(self, rows: Iterable[Any]) -> dict[Any, LeaseLost]:
        """Release the grants of ``rows``, on PostgreSQL in one statement. Returns how those were
        lost that were, by their keys; all others are released."""
        pk = self.model._meta.pk
        key = attrgetter(pk.attname)
        # A row that the caller has made may have a number as text; the database answers a number.
        left = {pk.to_python(key(row)): row for row in rows}
        release = self.release_row
        if self.kind.release is not self.kind.plain_release:
            release = self.rows().release
        elif left:
            with claims.ending(self.using, left.values()) as standing:
                connection = connections[self.using]
                freed = self._statements.release(connection, left)
                after_commit(connection, partial(self._freed, freed))
                for row in freed:
                    del left[key(row)]
                standing += left.values()
        losses = {}
        for row in left.values():
            try:
                release(row)
            except LeaseLost as loss:
                losses[row.pk] = loss
        return losses

    def _freed(self, rows: list[Any]) -> None:
        if self.kind.tells_waiters:
            for row in rows:
                notify(self.using, row.lease_resource)
        if self.kind.is_told:
            happened("lease.released", rows)

    def term(self, row: Any) -> Term:
        """Return the term of ``row``, which was just granted."""
        return term_of(row, self)

    # For the keeper

    def open(self) -> None:
        """Give this thread a connection of its own."""
        use_private_connection(self.using, patience())
        _lines[self.using] = connections[self.using]

    def abort(self) -> None:
        _abort(self.using)

    def close(self) -> None:
        """Drop this thread's connection: the next query makes a new one."""
        connections[self.using].close()

    def lost(self, term: Term, reason: str) -> None:
        happened("lease.lost", [term.held_row], reason=reason)

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Arguments are those of ``Store.refused``."""
        happened("lease.refused", [row], verb=verb, reason=reason)

    # Leases on names

    @classmethod
    def from_settings(cls) -> RowStore:
        """Return the store of named leases, for an entry of STORES. It has no options."""
        rows = apps.get_model("leasing", "Lease").lease_rows()
        return cls(rows.model, leasing_settings.DATABASE, type(rows))

    def hold(self, resource: str, **options: Unpack[HoldOptions]) -> Hold:
        """See ``leasing.store.NamedStore``: it is ``Lease.objects.hold``."""
        hold: Hold = self.rows().hold(resource, **options)
        return hold

    def acquire(self, resource: str, terms: Terms) -> Term:
        """See ``leasing.store.NamedStore``."""
        return term_of(drive(self.rows().acquiring_named(resource, terms, 0)), self)

    def revoke(self, resource: str, reason: str = "", by: str = "") -> bool:
        """See ``leasing.store.NamedStore``."""
        return bool(self.rows().filter(resource=resource).revoke(reason, by))

    def current(self, resource: str) -> Incumbent | None:
        """See ``leasing.store.NamedStore``."""
        row = self.rows().filter(resource=resource).active().first()
        return None if row is None else Incumbent(row.holder, row.fencing_token, row.expires_at)

    # In one transaction with the user's data

    @contextmanager
    def proving(self, row: Any) -> Iterator[None]:
        is_ours = not connections[self.using].in_atomic_block
        with transaction.atomic(using=self.using):
            if is_ours:
                limit_silence(self.using, SILENCE * row.ttl.total_seconds())
            self.prove(row)
            yield
            self.prove(row)

    def prove(self, row: Any) -> None:
        """Lock ``row`` until the caller's transaction ends, if its grant is still the current
        one and the deadline has not passed. Raises LeaseLost."""
        rows = self.rows()
        rows._lock(row)
        if not rows._of_grant(row).unexpired().exists():
            raise rows._refuse(row, "commit")


@cache
def row_store(model: type[Any], using: str, kind: type[Any]) -> RowStore:
    """The store of the rows of ``model``, as ``RowStore`` makes it: one for all holds on them."""
    return RowStore(model, using, kind)


def _keep(row: Any) -> None:
    """Leave the lease to the caller."""


def pause_shortly() -> None:
    """While someone else is just about to take a free row."""
    time.sleep(random.uniform(0.002, 0.02))


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
    return type(row).lease_rows().home(row) if is_stored else None


subscribe({"lease.lost": _record_lost}, log.log_failed)
# Where the database refuses the note, the holder is to know that.
subscribe({"lease.refused": _record_refused}, None)
