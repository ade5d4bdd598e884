"""Rows of any leasable model: the verbs of operators, and the doors to those of holders.

The modules ``saving`` and ``states`` each build on the one before. The verbs of holders are those
of ``leasing.stores.rows``; of operators ``revoke`` requires that the row is granted and not
released.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

from django.db.models import F
from django.db.models.functions import Greatest, Least

from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.db import joins
from leasing.db.dialects import after_commit, atomic, lock
from leasing.db.routing import is_plain
from leasing.exceptions import LeaseLost
from leasing.functions import DbMicroseconds, DbNow, next_token
from leasing.holding import Hold, Term
from leasing.holding.claim import Claim
from leasing.holding.hold import TermCallback
from leasing.querysets.saving import LEASE_FIELDS, Row
from leasing.querysets.states import LeaseRows, LeaseState
from leasing.runtime.aio import Steps, Undoable, adrive, drive, in_thread
from leasing.runtime.events import happened
from leasing.store import Renewals
from leasing.stores.memory import memory
from leasing.stores.rows import RowStore, row_store
from leasing.stores.separate import SeparateRowStore
from leasing.validation.terms import Terms

if TYPE_CHECKING:
    from leasing.models import Leasable

__all__ = ["LEASE_FIELDS", "LeasableQuerySet", "LeaseState", "verbs_of"]

#: Rows whose tokens are raised in one transaction.
RAISED_TOGETHER = 1000


class LeasableQuerySet(LeaseRows[Row]):
    """Rows of any leasable model: by state, and the verbs on a row that is held.

    Holder verbs (renew, release) take the held row and raise LeaseLost if its term has ended.
    Operator verbs (revoke) act on the whole queryset and return how many rows they changed.
    """

    # Holders: doors to the store of the rows

    def store(self, row: Row | None = None) -> RowStore:
        """Return the store of these rows, in the database that they, or ``row`` of them, are
        written to."""
        return row_store(self.model, self.written_to(row), type(self))

    def acquire(
        self,
        row: Row,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: Wait = DEFAULT,
    ) -> Row:
        """Acquire the lease on ``row``, and return the row as it is stored afterwards.

        Args:
            row: The row to lease.
            holder: The name of the holder; this process by default.
            ttl: Seconds until the deadline; the setting TTL by default.
            wait: Seconds to wait for the holder, None for ever; the setting WAIT by default.

        Raises LeaseHeld, LeaseTimeout (still held after ``wait``), LeaseLost (the row is gone),
        InvalidResource (the holder), InvalidTTL, LeaseInTransaction inside an atomic block.
        """
        return drive(self._acquiring(row, Terms.check(holder=holder, ttl=ttl), wait))

    async def aacquire(
        self,
        row: Row,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: Wait = DEFAULT,
    ) -> Row:
        """``acquire``, for async code."""
        return await adrive(self._acquiring(row, Terms.check(holder=holder, ttl=ttl), wait))

    def _acquiring(self, row: Row, terms: Terms, wait: Wait) -> Steps[Row]:
        _refuse_unsaved(row)
        return self.acquiring(row.lease_resource, terms, wait, ("pk", row.pk), row)

    def acquiring(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        key: tuple[str, Any],
        row: Row | None = None,
    ) -> Steps[Row]:
        """Return the steps that acquire the one of these rows with ``key``, for a driver. The other
        arguments are those of ``RowStore.acquiring``, and ``store``."""
        store = self.store(row)
        return store.acquiring(resource, terms, wait, key, rows=self._narrowed(store.using))

    def _narrowed(self, using: str, *, is_ordered: bool = False) -> Self | None:
        """Return these rows in the database ``using``; None: they are all of their table, and their
        order is not asked for."""
        if is_plain(self.query) and not is_ordered:
            return None
        joins.refuse_repeated(self)
        return self.using(using)

    def hold(
        self,
        row: Row,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: Wait = DEFAULT,
        separate: bool = False,
        on_lost: Callable[[Term], object] | None = None,
    ) -> Hold:
        """Return a context manager that acquires ``row``, renews it while the block runs, and
        releases it at the end. Errors and the other arguments are those of ``acquire``.

        Args:
            separate: True to permit it inside a transaction, over a connection of its own. It is
                released when the transaction commits, and expires after a rollback.
            on_lost: Called once, on a thread of the keeper, when the hold is lost.
        """
        _refuse_unsaved(row)
        asked = row.lease_resource, Terms.check(holder=holder, ttl=ttl), wait, ("pk", row.pk)
        return self._hold(*asked, row=row, separate=separate, on_lost=on_lost)

    def _hold(
        self,
        resource: str,
        terms: Terms,
        wait: Wait,
        key: tuple[str, Any],
        *,
        row: Row | None = None,
        separate: bool = False,
        stopping: threading.Event | None = None,
        on_lost: TermCallback | None = None,
        on_yield: TermCallback | None = None,
    ) -> Hold:
        """Return a hold on the row with ``key``; where the setting ENABLED is off, in the memory of
        this process."""
        store: Any = self.store(row)
        if not leasing_settings.ENABLED:
            take = partial(memory.acquire_row, self.model(**dict([key])), terms)
            unless_in = None if separate else store.using
            steps = partial(memory.taking, take, resource, wait, stopping, unless_in)
            return Hold(memory, steps, resource=resource, on_lost=on_lost, on_yield=on_yield)
        if separate:
            store = SeparateRowStore(store.model, store.using, store.kind)
        asked = resource, terms, wait, key, stopping, self._narrowed(store.using)
        steps = partial(store.holding, *asked)
        return Hold(store, steps, resource=resource, on_lost=on_lost, on_yield=on_yield)

    def renew(self, row: Row) -> Row:
        """Move the deadline of ``row`` to now plus its ttl, never to an earlier time.

        Raises LeaseLost if the grant is no longer the current one or the deadline has
        passed, LeaseInTransaction inside an atomic block.
        """
        self.store(row).renew_row(row)
        return row

    async def arenew(self, row: Row) -> Row:
        """``renew``, for async code."""
        return await in_thread(self.renew, row)

    def release(self, row: Row) -> Row:
        """Release ``row``. A second release of the same grant changes nothing.

        Raises LeaseLost if the grant is no longer the current one or had expired.
        """
        self.store(row).release_row(row)
        return row

    #: Stores call ``release_row`` in place of this one, unless a subclass releases otherwise.
    plain_release = release

    async def arelease(self, row: Row) -> Row:
        """``release``, for async code. It releases even if it is cancelled while it waits."""
        return await in_thread(self.release, row)

    def renew_many(self, grants: Mapping[Any, uuid.UUID], timeout: float = 10.0) -> Renewals:
        """See ``RowStore.renew_many``."""
        return self.store().renew_many(grants, timeout)

    def release_many(self, held: Iterable[Row]) -> dict[Any, LeaseLost]:
        """See ``RowStore.release_rows``."""
        held = list(held)
        return self.store(held[0] if held else None).release_rows(held)

    def prove(self, row: Row) -> None:
        """See ``RowStore.prove``."""
        self.store(row).prove(row)

    def claim(
        self,
        limit: int = 1,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
    ) -> Claim[Row]:
        """Acquire available rows of this queryset, in its order, in one transaction. Rows that
        others are acquiring are skipped.

        Returns a list of the rows that is also a context manager: in its block they are renewed, at
        its end they are released.

        Args:
            limit: The number of rows, at most.
            holder: The name of the holder; this process by default.
            ttl: Seconds until the deadline; the setting TTL by default.

        Raises InvalidResource (the holder), InvalidTTL, LeaseInTransaction, and ValueError for rows
        that a join may bring several times: choose these by a subquery.
        """
        store = self.store()
        rows = self._narrowed(store.using, is_ordered=self.ordered)
        return store.claim(Terms.check(holder=holder, ttl=ttl), limit, rows)

    async def aclaim(
        self,
        limit: int = 1,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
    ) -> Claim[Row]:
        """``claim``, for async code: ``async with await orders.aclaim(10) as claimed:``. In the
        block the body is cancelled when any of the rows is lost."""
        claim = partial(self.claim, limit, holder=holder, ttl=ttl)
        claimed: Claim[Row] = await in_thread(Undoable(claim, Claim.give_back))
        return claimed

    # Operator verbs

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take these rows from their holders and raise their tokens, so that writes under the
        old ones are refused. Returns how many were taken."""
        rows = self.home()
        with atomic(rows.db):
            keys = rows._locked_keys()
            revoked = [key for key in keys if rows._revoke(key)]
            taken = list(rows._everything().filter(pk__in=revoked).order_by("pk"))
            for row in taken:
                ended = row.expires_at  # which may be long ago
                rows.record("revoked", row, previous_expired_at=ended, reason=reason, actor=by)

        after_commit(rows.db, partial(happened, "lease.revoked", taken, reason=reason, by=by))
        return len(taken)

    async def arevoke(self, reason: str = "", by: str = "") -> int:
        """``revoke``, for async code."""
        return await in_thread(self.revoke, reason, by)

    def _revoke(self, key: Any) -> int:
        return (
            self._everything()
            .filter(pk=key, released_at=None, grants__gt=0)
            .update(
                released_at=DbNow(),
                expires_at=Least(F("expires_at"), DbNow()),
                fencing_token=next_token(),
            )
        )

    def raise_tokens(self, ahead: float = 0, reason: str = "", by: str = "") -> int:
        """Revoke these rows, and raise the tokens of those that can be granted again above the
        database's clock. Returns how many were raised.

        This is for the time after a restore or a promotion: the clock may be behind the tokens of
        grants that the database has lost.

        Args:
            ahead: Seconds by which the tokens are raised above the database's clock.
            reason: The reason for the revocation.
            by: The operator.
        """
        rows = self.home()
        rows.filter(released_at=None).revoke(reason, by)
        floor = Greatest(next_token(), DbMicroseconds() + int(ahead * 1_000_000))
        last: Any = None
        raised = 0
        while True:
            batch = rows.grantable()._of_one_table().order_by("pk")
            if last is not None:
                batch = batch.filter(pk__gt=last)
            with atomic(rows.db):
                keys = list(lock(batch).values_list("pk", flat=True)[:RAISED_TOGETHER])
                # Rows that were granted meanwhile keep their token: their holder has it.
                still = rows.grantable().filter(pk__in=keys)
                raised += still.update(fencing_token=floor)
            if len(keys) < RAISED_TOGETHER:
                return raised
            last = keys[-1]


def _refuse_unsaved(row: Leasable) -> None:
    # One that is made with the key of a stored row stands for it.
    if row.pk is None or row._state.adding and row._meta.pk.has_default():
        name = row._meta.verbose_name
        raise ValueError(f"This {name} is not saved, so it cannot be leased: save it first.")


@cache
def verbs_of(model: type[Any]) -> type[LeasableQuerySet[Any]]:
    """Return the queryset class of ``model``. A manager is called only if its class does not have
    one: it may depend on the current request."""
    managers: Iterable[Any] = (model._default_manager, *model._meta.managers)
    for manager in managers:
        made: type[Any] = manager._queryset_class
        if issubclass(made, LeasableQuerySet):
            return made
    return type(model._default_manager.all())
