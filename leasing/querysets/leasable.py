"""Every conditional update on leases.

What each verb demands of the row, beside its key:

    acquire   released, or the deadline has passed (of rows never granted it always has)
    renew     this grant, not released, the deadline ahead
    release   this grant, not released, the deadline ahead
    revoke    granted and not released

Time is the database's, read by the statement that judges. No judging statement can wait for a
lock (it would judge by a time that is over): the row is locked first, updated second.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.apps import apps
from django.core.exceptions import FieldError
from django.db import models, router, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest, Least
from django.db.models.utils import resolve_callables

from leasing import signals
from leasing.conf import leasing_settings
from leasing.db import joins, postgres
from leasing.db.dialects import after_commit, durable, limit_waiting, lock, refuse_transaction
from leasing.db.routing import RoutedQuerySet
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import DbMicroseconds, DbNow, after, next_token
from leasing.hold import Hold
from leasing.querysets.claim import Claim, ending, leaves_block
from leasing.runtime import probes
from leasing.runtime.aio import Steps, Undoable, adrive, drive, in_thread
from leasing.runtime.clock import clock
from leasing.runtime.tracepoints import points
from leasing.store import Grant, Renewals
from leasing.stores.acquiring import taking, timed
from leasing.stores.memory import memory
from leasing.stores.reasons import Reason, Why
from leasing.stores.rows import RowStore, grant_of, row_store, write_apart
from leasing.stores.separate import SeparateRowStore, taking_separately
from leasing.validation.terms import Terms

if TYPE_CHECKING:
    from leasing.models import Leasable

#: How often to try while a row is free and someone else is just about to take it.
TRIES = 3

#: The most rows that are claimed in one statement: each brings a grant made beforehand.
MOST_IN_ONE = 1000

#: Rows whose tokens are raised in one transaction.
RAISED_TOGETHER = 1000

#: What only the verbs here may write.
LEASE_FIELDS = frozenset(
    {
        "holder",
        "grant_id",
        "fencing_token",
        "grants",
        "ttl",
        "acquired_at",
        "renewed_at",
        "renewals",
        "released_at",
        "expires_at",
    }
)

#: Of these, what stays as it was granted while the grant lasts.
GRANTED_FIELDS = frozenset({"holder", "grant_id", "fencing_token", "grants", "ttl", "acquired_at"})

Row = TypeVar("Row", bound="Leasable")


class LeaseState(models.TextChoices):
    """Where a row stands between its grants. Each row is in exactly one of these."""

    FREE = "free"
    ACTIVE = "active"
    EXPIRED = "expired"
    RELEASED = "released"


class LeasableQuerySet(RoutedQuerySet[Row]):
    """Rows of any leasable model: by state, and the verbs on a row that is held.

    Holder verbs (renew, release) take the held row and raise LeaseLost when its term is over.
    Operator verbs (revoke) act on the whole queryset and return how many rows they changed.
    """

    #: Whether grants and losses of these rows are written to LeaseEvent.
    keeps_events = True
    #: What renewing these rows is called.
    renewing = "renew"
    #: Whether a release is notified to other processes: of rows with ``wanted_until``.
    tells_waiters = False

    # By state

    def active(self) -> Self:
        """Rows that are held now."""
        return self.filter(released_at=None, expires_at__gt=DbNow())

    def expired(self) -> Self:
        """Rows whose holder neither released nor renewed them in time."""
        return self.filter(released_at=None, grants__gt=0, expires_at__lte=DbNow())

    def released(self) -> Self:
        """Rows that were given back, or taken back by an operator."""
        return self.filter(released_at__isnull=False)

    def renewed(self) -> Self:
        """Rows whose latest grant was renewed at least once, whatever their state."""
        return self.filter(renewals__gt=0)

    def available(self) -> Self:
        """Rows that can be acquired now. What was released is free by any clock: the moments on
        its row may lie ahead of one that was set back, or of another server's."""
        return self.filter(Q(released_at__isnull=False) | Q(expires_at__lte=DbNow()))

    def with_state(self) -> Self:
        """Annotate ``state`` (a LeaseState) and ``now``, both by the database's clock."""
        return self.annotate(
            now=DbNow(),
            state=Case(
                When(grants=0, then=Value(LeaseState.FREE.value)),
                When(released_at__isnull=False, then=Value(LeaseState.RELEASED.value)),
                When(expires_at__lte=DbNow(), then=Value(LeaseState.EXPIRED.value)),
                default=Value(LeaseState.ACTIVE.value),
                output_field=models.CharField(),
            ),
        )

    # Taking

    def acquire(
        self,
        row: Row,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: float | None = None,
    ) -> Row:
        """Take the lease on ``row`` for ``ttl`` seconds, in the name of ``holder``, and return
        the row as it stands then.

        ``holder`` defaults to this process, ``ttl`` and ``wait`` (seconds to wait for whoever
        has it) to the settings.

        Raises LeaseHeld, LeaseTimeout (waited in vain), LeaseLost (the row is gone),
        InvalidResource (the holder), InvalidTTL, LeaseInTransaction inside an atomic block.
        """
        terms = Terms.check(holder=holder, ttl=ttl)
        return drive(self.home(row).acquiring(row.lease_resource, terms, wait, {"pk": row.pk}))

    async def aacquire(
        self,
        row: Row,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: float | None = None,
    ) -> Row:
        """``acquire``, for async code."""
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
        wait: float | None = None,
        separate: bool = False,
        on_lost: Callable[[Hold], object] | None = None,
    ) -> Hold:
        """A context manager that acquires ``row``, renews it while the block runs, and releases
        it at the end. Arguments and errors are those of ``acquire``; ``on_lost`` is called once,
        on a thread of the keeper, when the hold is lost.

        ``separate`` lets it be taken inside a transaction, over a connection of its own: it is
        released when that commits, and left to its ttl when not."""
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
        """Take up to ``limit`` available rows of this queryset, in its order, in one
        transaction; rows that others are taking are passed over.

        The answer is a list of the rows, and a context manager that renews them all while the
        block runs and releases them at the end.

        Raises InvalidResource (the holder), InvalidTTL, LeaseInTransaction.
        """
        terms = Terms.check(holder=holder, ttl=ttl)
        rows = self.home()
        ordered = (rows if rows.ordered else rows.order_by("pk"))._each_once()
        granted = ordered._claim_in_one(terms, limit)
        if granted is None:
            with durable(rows.db):
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

    def acquiring(
        self,
        resource: str,
        terms: Terms,
        wait: float | None,
        key: dict[str, Any],
        stopping: threading.Event | None = None,
    ) -> Steps[Row]:
        """The steps of ``acquire``, for a driver: try, and wait between tries, until
        ``stopping`` is set."""
        attempt = Undoable(lambda: self._attempt(resource, terms, key), self.release)
        steps = taking(
            self.db,
            resource,
            wait,
            attempt,
            say_wanted=lambda: self._say_wanted(resource),
            stopping=stopping,
        )
        if probes.acquiring:
            steps = timed(self.model, steps)
        # What can be stopped may wait for days, and is a campaign.
        if points.tracer is None or stopping is not None:
            return steps
        return points.tracer.acquiring(resource, steps)

    def holding_of(
        self,
        resource: str,
        terms: Terms,
        wait: float | None,
        key: dict[str, Any],
        *,
        separate: bool = False,
        stopping: threading.Event | None = None,
        on_lost: Callable[[Hold], object] | None = None,
        on_yield: Callable[[Hold], object] | None = None,
    ) -> Hold:
        """A hold on ``resource`` that is acquired when it is entered: on a row, or where the
        setting ENABLED is off, in the memory of this process."""
        if not leasing_settings.ENABLED:
            blank = partial(self.model, **key)
            unless_in = None if separate else self.db
            taker = memory.taker(blank, resource, terms, wait, stopping, unless_in=unless_in)
            return Hold(memory, taker, on_lost=on_lost, on_yield=on_yield)

        acquire = Acquisition(
            type(self),
            self.model,
            self.db,
            self.all() if self.query.where else None,
            resource,
            terms,
            wait,
            *key.popitem(),
            separate,
            stopping,
        )
        store = self.store(terms)
        if separate:
            store = SeparateRowStore(store.model, store.using)
        return Hold(store, acquire, on_lost=on_lost, on_yield=on_yield)

    def store(self, terms: Terms) -> RowStore:
        """Where the grants of these rows are renewed."""
        return row_store(self.model, self.db)

    def _attempt(self, resource: str, terms: Terms, key: dict[str, Any]) -> Row:
        """Acquire the row with ``key`` now. Raises LeaseHeld; LeaseLost when it is gone."""
        for number in range(TRIES):
            row = self._grant(terms, **key)
            if row is not None:
                return row
            current = self._everything().filter(**key).with_state().first()
            if current is None:
                raise LeaseLost(resource, "its row is gone")
            if current.state == LeaseState.ACTIVE:
                raise LeaseHeld(resource, current.holder, current.expires_at)
            if number:
                pause_shortly()
        raise LeaseHeld(resource)

    def _say_wanted(self, resource: str) -> None:
        """Somebody waits: for rows whose release can tell them."""

    # Holder verbs

    def renew(self, row: Row) -> Row:
        """Move the deadline of ``row`` to its ttl from now; never nearer than it was.

        Raises LeaseLost when the grant is no longer the current one or the deadline has
        passed, LeaseInTransaction inside an atomic block.
        """
        rows = self.home(row)
        if not rows._renew(row):
            raise rows._refuse(row, rows.renewing)
        signals.send(signals.renewed, row)
        return row

    def release(self, row: Row) -> Row:
        """Give ``row`` back at once. A second release of the same grant changes nothing.

        Raises LeaseLost when the grant is no longer the current one or had run out.
        """
        release = partial(self.home(row)._release_held, row)
        if points.tracer is None:
            release()
        else:
            points.tracer.releasing(row.lease_resource, release)
        return row

    @leaves_block
    def _release_held(self, row: Row) -> None:
        if self._release_in_one([row]):
            return
        if self._release(row):
            after_commit(self.db, lambda: signals.send(signals.released, row))
        elif not self._was_released_by_holder(row):
            raise self._refuse(row, "release")

    def release_many(self, held: Iterable[Row]) -> dict[Any, LeaseLost]:
        """``release`` each of ``held``, on PostgreSQL in one statement. Returns how those were
        lost that were, by their keys: all others are given back."""
        left = {row.pk: row for row in held}
        rows = self.home(next(iter(left.values()), None))
        for row in left.values():
            rows.refuse_elsewhere(row, rows.db)
        if type(rows).release is LeasableQuerySet.release:
            with ending(rows.db, left.values()) as standing:
                for row in rows._release_in_one(list(left.values())):
                    del left[row.pk]
                standing += left.values()
        losses = {}
        for row in left.values():
            try:
                rows.release(row)
            except LeaseLost as loss:
                losses[row.pk] = loss
        return losses

    async def arenew(self, row: Row) -> Row:
        """``renew``, for async code."""
        return await in_thread(self.renew, row)

    async def arelease(self, row: Row) -> Row:
        """``release``, for async code. Cancelled while it waits, it releases all the same."""
        return await in_thread(self.release, row)

    def _renew(self, row: Row) -> bool:
        refuse_transaction(self.db)
        # What is over, or locked by somebody, is left to the form that waits for the lock.
        if self._is_in_one and postgres.renew_one(self, row):
            return True
        with durable(self.db):
            self._lock(row)
            renewed = self._of_grant(row).unexpired().update(**self.renewal())
            if renewed:
                # While the row is locked: later it could show, and so hand over, a grant that
                # somebody else has won.
                row.refresh_from_db(fields=self.model.verb_columns, from_queryset=self._instances())
        return bool(renewed)

    def _release_in_one(self, held: list[Row]) -> list[Row]:
        """Give back in one statement what can be, and tell of it. Returns these rows; the others
        are over, or locked by somebody: the form that waits for the lock says which."""
        if not (held and self._is_in_one and postgres.notes(self)):
            return []
        freed = postgres.release(self, held, releasing(), tell=self.tells_waiters)
        if freed:
            after_commit(self.db, lambda: self._tell_freed(freed))
        return freed

    def _tell_freed(self, freed: list[Row]) -> None:
        signals.send_each(signals.released, freed)

    def _release(self, row: Row) -> bool:
        with transaction.atomic(using=self.db):
            self._lock(row)
            released = self._of_grant(row).unexpired().update(**releasing())
            if released:
                row.refresh_from_db(fields=self.model.verb_columns, from_queryset=self._instances())
                self.record("released", row)
        return bool(released)

    def prove(self, row: Row) -> None:
        """Lock ``row`` until the caller's transaction ends, if its grant is still the current
        one and the deadline lies ahead. Raises LeaseLost."""
        rows = self.home()
        rows._lock(row)
        if not rows._of_grant(row).unexpired().exists():
            raise rows._refuse(row, "commit")

    def renew_many(self, grants: Mapping[Any, uuid.UUID], timeout: float = 10.0) -> Renewals:
        """Renew the rows whose key and grant are in ``grants``, in one transaction.

        Rows that someone else has locked are skipped, not waited for, and appear nowhere in
        the answer: try them again. No statement runs longer than ``timeout`` seconds.

        Raises LeaseInTransaction inside an atomic block: rolled back, the rows would forget a
        renewal that their holders go on believing.
        """
        rows = self.home()
        refuse_transaction(rows.db)
        everything = rows._everything()
        renew = postgres.renew if everything._is_in_one else _renew
        renewed = renew(everything.holding().unexpired(), rows.renewal(), grants, timeout)
        mine = [row for row in renewed if row.grant_id == grants[row.pk]]
        answer = Renewals({row.pk: row.renewal_now() for row in mine})
        missed = [key for key in grants if key not in answer.renewed]
        found = {row.pk: row for row in rows._lease_columns(missed)} if missed else {}
        for key in missed:
            reason = rows.why_over(found.get(key), grants[key])
            if reason:
                answer.lost[key] = reason
        return answer

    # Operator verbs

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take these rows from their holders and raise their tokens, so that writes under the
        old ones are refused. Returns how many were taken."""
        rows = self.home()
        with transaction.atomic(using=rows.db):
            keys = rows._locked_keys()
            revoked = [key for key in keys if rows._revoke(key)]
            taken = list(rows._instances().filter(pk__in=revoked).order_by("pk"))
            for row in taken:
                ended = row.expires_at  # which may be long ago
                rows.record("revoked", row, previous_expired_at=ended, reason=reason, actor=by)

        def tell() -> None:
            for row in taken:
                signals.send(signals.revoked, row, reason=reason, by=by)

        after_commit(rows.db, tell)
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
        """``revoke``, and raise the tokens of what can be granted again above the database's
        clock as it will be ``ahead`` seconds from now: for after a restore or a promotion, where
        that clock may be behind the one of grants that were lost. Returns how many were raised."""
        rows = self.home()
        rows.filter(released_at=None).revoke(reason, by)
        floor = Greatest(next_token(), DbMicroseconds() + int(ahead * 1_000_000))
        last: Any = None
        raised = 0
        while True:
            batch = rows.grantable()._of_one_table().order_by("pk")
            if last is not None:
                batch = batch.filter(pk__gt=last)
            with transaction.atomic(using=rows.db):
                keys = list(lock(batch).values_list("pk", flat=True)[:RAISED_TOGETHER])
                # Whoever was granted one meanwhile keeps the token that they know.
                still = rows.grantable().filter(pk__in=keys)
                raised += still.update(fencing_token=floor)
            if len(keys) < RAISED_TOGETHER:
                return raised
            last = keys[-1]

    def grantable(self) -> Self:
        """Rows that were granted before, and given back or revoked. Models with a state of their
        own say otherwise."""
        return self.exclude(grants=0).filter(released_at__isnull=False)

    # The pieces

    def holding(self) -> Self:
        """Rows whose state lets their grant live. Models with a state of their own add it."""
        return self.filter(released_at=None)

    def unexpired(self) -> Self:
        return self.filter(expires_at__gt=DbNow())

    def record(self, kind: str, row: Row, **fields: Any) -> None:
        """Write what happened to ``row`` into the ledger."""
        if self.keeps_events:
            event = apps.get_model("leasing", "LeaseEvent")
            fields["reason"] = fields.get("reason", "")[:500]
            event.of(row, kind, **fields).save(using=self.db, force_insert=True)

    def note_refused(self, row: Row, verb: str, reason: str) -> None:
        """Remember that a late ``verb`` of the holder of ``row`` was refused."""
        self.record("refused", row, reason=f"{verb}: {reason}")

    def why_over(
        self, row: Any, grant_id: uuid.UUID | None, fencing_token: int | None = None
    ) -> str | None:
        """Why the grant no longer holds ``row``, read with ``now``; None while it does."""
        if row is None:
            return Reason(Why.GONE, "its row is gone")
        if row.grant_id != grant_id:
            words = f"{row.holder} has held it since {_clock_time(row.acquired_at)}"
            return Reason(Why.TAKEN, words)
        if fencing_token is not None and row.fencing_token != fencing_token:
            return Reason(Why.REVOKED, "it was revoked")
        if row.released_at is not None:
            words = f"it was revoked or released at {_clock_time(row.released_at)}"
            return Reason(Why.ENDED, words)
        if row.expires_at <= row.now:
            return Reason(Why.EXPIRED, f"it expired at {_clock_time(row.expires_at)}")
        return None

    def bulk_update(self, objs: Iterable[Row], fields: Iterable[str], *args: Any, **kw: Any) -> int:
        """As Django's, for every column but those that verbs write."""
        fields = list(fields)
        refuse_verb_columns(self.model, fields)
        return super().bulk_update(objs, fields, *args, **kw)

    def bulk_create(
        self,
        objs: Iterable[Row],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[Row]:
        """As Django's; where it updates, for every column but those that verbs write."""
        refuse_verb_columns(self.model, update_fields or ())
        objs = list(objs)
        for each in objs:
            if each._state.db is not None:
                each.begin_free()
        return super().bulk_create(
            objs, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )

    def update_or_create(
        self,
        defaults: Mapping[str, Any] | None = None,
        create_defaults: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Row, bool]:
        """As Django's; ``defaults`` name no column that verbs write, ``create_defaults`` may."""
        defaults = defaults or {}
        refuse_verb_columns(self.model, defaults)
        rows = self.using(self._db or router.db_for_write(self.model, **self._hints))  # type: ignore[attr-defined]
        with transaction.atomic(using=rows.db):
            row, is_new = rows.select_for_update().get_or_create(
                defaults if create_defaults is None else create_defaults, **kwargs
            )
            if not is_new:
                for name, value in resolve_callables(defaults):
                    setattr(row, name, value)
                # Django's own would name every date, those of the lease too.
                row.save(using=rows.db)
        return row, is_new

    def _everything(self) -> Self:
        """Every row of the table that the lease's columns are in: what the verbs lock and write.
        A child's would be two tables, locked and judged one after the other."""
        model: Any = self.model.leased_model()
        return type(self)(model, using=self.db)

    def _instances(self) -> Self:
        """Every row, as what callers get."""
        return type(self)(self.model, using=self.db)

    def _of_one_table(self) -> Self:
        """These rows as rows of the lease's table alone, which can be locked."""
        if not joins.spans(self):
            return self
        return self._everything().filter(pk__in=self.order_by().values("pk"))

    def _each_once(self) -> Self:
        """These rows in their order, each once, whatever several rows refer to them."""
        if not joins.repeats(self):
            return self
        rows = self._instances().filter(pk__in=self.order_by().values("pk"))
        query, own = rows.query, self.query
        query.order_by, query.extra_order_by = own.order_by, own.extra_order_by
        query.default_ordering = own.default_ordering
        query.standard_ordering = own.standard_ordering
        return rows

    def _locked_keys(self) -> list[Any]:
        """Lock these rows in the order of their keys; returns the keys."""
        locked = lock(self._of_one_table().order_by("pk"))
        keys = list(locked.values_list("pk", flat=True))
        if not joins.spans(self):
            return keys
        # They were locked by their keys alone: some may have changed while they were waited for.
        still = set(self.filter(pk__in=keys).order_by().values_list("pk", flat=True))
        return [key for key in keys if key in still]

    def _lock(self, row: Row) -> None:
        list(lock(self._everything().filter(pk=row.pk)).values_list("pk"))

    def _of_grant(self, row: Row) -> Self:
        """The row, if the grant that ``row`` was read with is still the current one."""
        return self._everything().filter(pk=row.pk, grant_id=row.grant_id).holding()

    def _lease_columns(self, keys: Iterable[Any]) -> Self:
        rows = self._everything().filter(pk__in=list(keys))
        return rows.only("pk", *self.model.verb_columns).annotate(now=DbNow())

    def _was_released_by_holder(self, row: Row) -> bool:
        # A revocation keeps the grant too, but raises the token.
        return (
            self._everything()
            .filter(pk=row.pk, grant_id=row.grant_id, fencing_token=row.fencing_token)
            .released()
            .exists()
        )

    def _refuse(self, row: Row, verb: str) -> LeaseLost:
        """Note the refused ``verb`` and return what to raise."""
        current = self._lease_columns([row.pk]).first()
        reason = self.why_over(current, row.grant_id, row.fencing_token) or "it was being changed"
        write_apart(self.db, lambda: self.note_refused(row, verb, reason))
        signals.send(signals.refused, row, verb=verb, reason=reason)
        return LeaseLost(row.lease_resource, reason)

    def renewal(self) -> dict[str, Any]:
        """The columns of a renewal; the deadline never comes nearer."""
        return {
            "expires_at": Greatest(F("expires_at"), after(F("ttl"))),
            "renewed_at": DbNow(),
            "renewals": F("renewals") + 1,
        }

    def granting(self, terms: Terms) -> dict[str, Any]:
        """The columns of a new grant under ``terms``."""
        return {
            "holder": terms.holder,
            "fencing_token": next_token(),
            "grants": F("grants") + 1,
            "ttl": terms.ttl,
            "acquired_at": DbNow(),
            "renewed_at": None,
            "renewals": 0,
            "released_at": None,
            "expires_at": after(terms.ttl),
        }

    def _grant(self, terms: Terms, **key: Any) -> Row | None:
        """Grant the one available row with ``key``, or return None."""
        rows = self._each_once()
        granted = rows._grant_in_one(terms, **key)
        if granted is None:
            with durable(self.db):
                granted = rows._grant_locked(terms, limit=1, **key)
        return self._tell_granted(granted)[0] if granted else None

    @property
    def _is_in_one(self) -> bool:
        """Whether these rows are in a database and a table that has the one-statement forms."""
        return postgres.serves(self.db) and postgres.suits(self.model)

    @property
    def _is_granted_in_one(self) -> bool:
        """Whether granting these rows is no more than the one-statement form knows."""
        own = type(self)
        plain = own._chosen is LeasableQuerySet._chosen
        plain = plain and own._write_grants is LeasableQuerySet._write_grants
        plain = plain and self._is_in_one and postgres.notes(self)
        return plain and not joins.is_ordered_by_many(self)

    def _grant_in_one(self, terms: Terms, **key: Any) -> list[tuple[Row, str]] | None:
        """``_grant_locked`` in one statement; None where there is none."""
        if not self._is_granted_in_one:
            return None
        refuse_transaction(self.db)
        ((column, value),) = key.items()
        return sent_at(clock(), postgres.grant(self, terms, column, value))

    def _claim_in_one(self, terms: Terms, limit: int) -> list[tuple[Row, str]] | None:
        """``_grant_locked`` for a claim, in one statement; None where there is none."""
        if limit > MOST_IN_ONE or not self._is_granted_in_one:
            return None
        refuse_transaction(self.db)
        return sent_at(clock(), postgres.claim(self, terms, limit))

    def _grant_locked(self, terms: Terms, limit: int | None, **key: Any) -> list[tuple[Row, str]]:
        """Grant up to ``limit`` available rows with ``key``, in the order of the queryset.
        Returns them with what happened to each; within the caller's transaction."""
        sent_at = clock()
        before = self._chosen(self.available().filter(**key), limit)
        if not before:
            return []
        grants = {pk: uuid.uuid4() for pk in before}
        self._write_grants(before, grants, self.granting(terms))
        won = self._instances().filter(pk__in=list(before), grant_id__in=list(grants.values()))
        dated: Iterable[Any] = won.annotate(now=DbNow())
        rows: dict[Any, Row] = {row.pk: row for row in dated}
        granted: list[tuple[Row, str]] = []
        for old in before.values():
            if old.pk in rows:
                rows[old.pk].sent_at = sent_at
                kind = "taken_over" if old.grants and old.released_at is None else "acquired"
                expired_at = old.expires_at if kind == "taken_over" else None
                rows[old.pk].previous_expired_at = expired_at
                self.record(
                    kind,
                    rows[old.pk],
                    previous_holder=old.holder,
                    previous_expired_at=expired_at,
                )
                granted.append((rows[old.pk], kind))
        return granted

    def _chosen(self, free: Self, limit: int | None) -> dict[Any, Row]:
        """Lock up to ``limit`` of the rows of ``free``, passing over those that others have."""
        read = free.select_related(None).prefetch_related(None)
        term = read.only("pk", "holder", "grants", "released_at", "expires_at")
        of = joins.lock_of(self.model, self.db)
        return {row.pk: row for row in lock(term, skip_locked=True, of=of)[:limit]}

    def _write_grants(
        self, before: dict[Any, Row], grants: dict[Any, uuid.UUID], columns: dict[str, Any]
    ) -> None:
        """Write ``columns`` and its grant to each of the chosen rows that is still available."""
        chosen = [When(pk=pk, then=Value(grants[pk])) for pk in before]
        self._everything().filter(pk__in=list(before)).available().update(
            grant_id=Case(*chosen, output_field=models.UUIDField()), **columns
        )

    def _tell_granted(self, granted: list[tuple[Row, str]]) -> list[Row]:
        for kind in ("acquired", "taken_over"):
            alike = [row for row, what in granted if what == kind]
            signals.send_each(getattr(signals, kind), alike)
        return [row for row, _ in granted]


@dataclass(slots=True)
class Acquisition:
    """What a hold does when it is entered. Small, because there may be thousands: a queryset
    weighs more than the rest of a hold, and is kept only where it has a filter."""

    kind: type[LeasableQuerySet[Any]]
    model: type[Leasable]
    using: str
    filtered: LeasableQuerySet[Any] | None
    resource: str
    terms: Terms
    wait: float | None
    column: str
    value: Any
    separate: bool
    stopping: threading.Event | None

    def __call__(self) -> Steps[Grant]:
        """The steps of acquiring."""
        rows = self.filtered
        if rows is None:
            rows = self.kind(self.model, using=self.using)
        key = {self.column: self.value}
        steps = rows.acquiring(self.resource, self.terms, self.wait, key, self.stopping)
        if self.separate:
            steps = taking_separately(rows.db, steps)
        return grant_of((yield from steps))


def _renew(
    target: LeasableQuerySet[Any],
    columns: dict[str, Any],
    grants: Mapping[Any, uuid.UUID],
    timeout: float,
) -> list[Any]:
    """Write ``columns`` to the rows of ``target`` whose key and grant are in ``grants`` and that
    nobody else has locked; returns these rows, with ``now``. The portable form of
    ``postgres.renew``."""
    mine = Q(pk__in=list(grants), grant_id__in=list(grants.values()))
    everything = target._everything()
    with durable(target.db):
        limit_waiting(target.db, timeout)
        found = lock(everything.filter(mine).order_by("pk"), skip_locked=True)
        locked = list(found.values_list("pk", flat=True))
        if not locked or not target.filter(mine, pk__in=locked).update(**columns):
            return []
        written = everything.filter(mine, pk__in=locked, expires_at__gt=DbNow()).holding()
        dated = written.only("pk", *target.model.renewal_columns).annotate(now=DbNow())
        return list(dated)


def refuse_verb_columns(model: type[Leasable], fields: Iterable[str]) -> None:
    """Raise FieldError where ``fields``, which are to be written to stored rows, name a column
    that verbs alone write."""
    if taken := (model.verb_columns | model.state_columns).intersection(fields):
        raise FieldError(
            f"Only lease methods write {', '.join(sorted(taken))} of a stored "
            f"{model._meta.verbose_name}. A queryset's update() can, but skips their checks."
        )


@cache
def verbs_of(model: type[Any]) -> type[LeasableQuerySet[Any]]:
    """The kind of queryset that the manager of ``model`` makes. A manager is asked for one only
    where its class does not say: it may want to know whose request this is."""
    managers: Iterable[Any] = (model._default_manager, *model._meta.managers)
    for manager in managers:
        made: type[Any] = manager._queryset_class
        if issubclass(made, LeasableQuerySet):
            return made
    return type(model._default_manager.all())


def sent_at(moment: float, granted: list[tuple[Row, str]] | None) -> list[tuple[Row, str]] | None:
    """What was ``granted`` by a statement sent at ``moment``, which is read before the call."""
    for row, _ in granted or ():
        row.sent_at = moment
    return granted


def pause_shortly() -> None:
    """While someone else is just about to take a free row."""
    time.sleep(random.uniform(0.002, 0.02))


def releasing() -> dict[str, Any]:
    """The columns of a release."""
    return {"released_at": DbNow(), "expires_at": DbNow()}


def _clock_time(moment: datetime | None) -> str:
    return moment.isoformat(timespec="milliseconds") if moment else "never"
