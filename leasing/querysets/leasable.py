"""Every conditional update on leases: the verbs on rows of any leasable model.

The modules ``saving``, ``states``, ``holder`` (the verbs of holders) and ``granting`` each build on
the one before. The verbs require of the row, in addition to its key:

    acquire   released, or the deadline has passed (for rows never granted it always has)
    renew     this grant, not released, the deadline not passed
    release   this grant, not released, the deadline not passed
    revoke    granted and not released
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from django.db.models import F
from django.db.models.functions import Greatest, Least

from leasing.conf import DEFAULT, Wait
from leasing.db import joins, sql
from leasing.db.dialects import after_commit, atomic, durable, lock
from leasing.functions import DbMicroseconds, DbNow, next_token
from leasing.holding import Hold, Term
from leasing.querysets.claim import Claim
from leasing.querysets.granting import GrantingRows, pause_shortly
from leasing.querysets.saving import LEASE_FIELDS, Row
from leasing.querysets.states import LeaseState
from leasing.runtime.aio import Undoable, adrive, drive, in_thread
from leasing.runtime.events import happened
from leasing.validation.terms import Terms

if TYPE_CHECKING:
    from leasing.models import Leasable

__all__ = ["LEASE_FIELDS", "LeasableQuerySet", "LeaseState", "pause_shortly", "verbs_of"]

#: Rows whose tokens are raised in one transaction.
RAISED_TOGETHER = 1000


class LeasableQuerySet(GrantingRows[Row]):
    """Rows of any leasable model: by state, and the verbs on a row that is held.

    Holder verbs (renew, release) take the held row and raise LeaseLost if its term has ended.
    Operator verbs (revoke) act on the whole queryset and return how many rows they changed.
    """

    kept_for = frozenset({"acquire", "renew", "release", "hold"})

    # Taking

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
        _refuse_unsaved(row)
        terms = Terms.check(holder=holder, ttl=ttl)
        return drive(self.home(row).acquiring(row.lease_resource, terms, wait, {"pk": row.pk}))

    async def aacquire(
        self,
        row: Row,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: Wait = DEFAULT,
    ) -> Row:
        """``acquire``, for async code."""
        _refuse_unsaved(row)
        terms = Terms.check(holder=holder, ttl=ttl)
        return await adrive(
            self.home(row).acquiring(row.lease_resource, terms, wait, {"pk": row.pk})
        )

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
        terms = Terms.check(holder=holder, ttl=ttl)
        return self.home(row).holding_of(
            row.lease_resource, terms, wait, {"pk": row.pk}, separate=separate, on_lost=on_lost
        )

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
        terms = Terms.check(holder=holder, ttl=ttl)
        rows = self.home()
        joins.refuse_repeated(rows)
        if sql.can_grant(rows):
            granted = sql.claim(rows, terms, limit)
        else:
            with durable(rows.db):
                ordered = rows if rows.ordered else rows.order_by("pk")
                granted = ordered._grant_locked(terms, limit)
        return Claim(rows._tell_granted(granted), rows.store(terms))

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
