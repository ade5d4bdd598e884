"""Rows of any leasable model: by state, the conditions that verbs demand, the columns they write,
doors to the verbs of holders (``leasing.stores.rows``), and the verbs of operators, of which
``revoke`` requires that the row is granted and not released.

It stands below the models, where users import it from: a django.tasks backend is made, and tasks
are declared, before there are models, and the querysets of tasks derive from this one.

Time is the database's, read by the statement that judges. No judging statement can wait for a
lock (it would judge by a time that is over): the row is locked first, updated second.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.apps import apps
from django.core.exceptions import FieldError
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest, Least

from leasing.conf import DEFAULT, Wait, leasing_settings
from leasing.db import joins
from leasing.db.dialects import after_commit, atomic, lock
from leasing.db.routing import RoutedQuerySet, is_plain, written_to
from leasing.db.row_reader import read_by
from leasing.db.sql import in_sql
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import DbMicroseconds, DbNow, after, next_token
from leasing.holding import Hold, Term
from leasing.holding.claim import Claim
from leasing.holding.hold import TermCallback
from leasing.runtime.aio import Steps, Undoable, adrive, drive, in_thread
from leasing.runtime.events import happened
from leasing.store import Reason, Renewals, Why
from leasing.stores.memory import memory
from leasing.stores.rows import RowStore, row_store
from leasing.stores.separate import SeparateRowStore
from leasing.validation.terms import Terms

if TYPE_CHECKING:
    from leasing.models.leasable import Leasable

#: Columns that only the verbs write.
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


#: Rows whose tokens are raised in one transaction.
RAISED_TOGETHER = 1000


class LeaseState(models.TextChoices):
    """The state of a row between its grants. Each row is in exactly one of these."""

    FREE = "free"
    ACTIVE = "active"
    EXPIRED = "expired"
    RELEASED = "released"


#: The columns by which a row that could not be granted is judged.
JUDGED_BY = frozenset({"holder", "grants", "released_at", "expires_at"})
#: The columns of a renewal, and of a grant, in SQL.
RENEWAL = {
    "expires_at": "GREATEST(t.expires_at, {now} + t.ttl)",
    "renewed_at": "{now}",
    "renewals": "t.renewals + 1",
}
GRANTING = {
    "holder": "%(holder)s",
    "fencing_token": "GREATEST(t.fencing_token + 1, {microseconds})",
    "grants": "t.grants + 1",
    "ttl": "%(ttl)s::interval",
    "acquired_at": "{now}",
    "renewed_at": "NULL",
    "renewals": "0",
    "released_at": "NULL",
    "expires_at": "{now} + %(ttl)s::interval",
}


class LeasableQuerySet(RoutedQuerySet[Row]):
    """Rows of any leasable model: by state, and the verbs on a row that is held.

    Holder verbs (renew, release) take the held row and raise LeaseLost if its term has ended.
    Operator verbs (revoke) act on the whole queryset and return how many rows they changed.
    """

    #: True to write grants and losses of these rows to LeaseEvent.
    keeps_events = True
    #: False to tell nobody of grants and releases: neither log, nor signals.
    is_told = True
    #: The name of the verb that renews these rows.
    renewing = "renew"
    #: True to notify other processes of a release: of rows with ``wanted_until``.
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

    @in_sql("(t.released_at IS NOT NULL OR t.expires_at <= {now})")
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

    @in_sql("t.released_at IS NULL")
    def holding(self) -> Self:
        """Rows whose state lets their grant live. Models with a state of their own add it."""
        return self.filter(released_at=None)

    @in_sql("t.expires_at > {now}")
    def unexpired(self) -> Self:
        return self.filter(expires_at__gt=DbNow())

    def grantable(self) -> Self:
        """Rows that were granted before, and given back or revoked. Models with a state of their
        own say otherwise."""
        return self.released()

    # What verbs write, and what they answer

    @in_sql(RENEWAL)
    def renewal(self) -> dict[str, Any]:
        """The columns of a renewal; the deadline never comes nearer."""
        return {
            "expires_at": Greatest(F("expires_at"), after(F("ttl"))),
            "renewed_at": DbNow(),
            "renewals": F("renewals") + 1,
        }

    @in_sql(GRANTING)
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

    def why_over(
        self, row: Any, grant_id: uuid.UUID | None, fencing_token: int | None = None
    ) -> str | None:
        """Return why the grant no longer holds ``row``, read with ``now``; None while it does."""
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

    def why_lost(self, grants: Mapping[Any, uuid.UUID]) -> dict[Any, str]:
        """Return why those of ``grants``, by the keys of their rows, hold no longer."""
        found = {row.pk: row for row in self._lease_columns(grants)}
        reasons = {key: self.why_over(found.get(key), grant) for key, grant in grants.items()}
        return {key: reason for key, reason in reasons.items() if reason}

    def judge(self, resource: str, terms: Terms, key: tuple[str, Any]) -> Row | None:
        """Judge the row that could not be granted just now: return it if the caller has it already,
        None if another try may succeed.

        Args:
            resource: The name of its resource.
            terms: The terms that were asked for.
            key: A unique column, and its value.

        Raises LeaseHeld, LeaseLost (the row is gone).
        """
        current = self._standing(*key, JUDGED_BY)
        if current is None:
            raise LeaseLost(resource, "its row is gone")
        if current.lease_state(current.now) == LeaseState.ACTIVE:
            raise LeaseHeld(resource, current.holder, current.expires_at)
        return None

    def _standing(self, column: str, value: Any, some: frozenset[str] | None = None) -> Any:
        """Return the row whose ``column`` is ``value`` as it stands, with ``now``; None if there is
        none. Of its columns it has ``some``, or all."""
        found = read_by(self.model, self.db, column, [value], some)
        return found[0] if found else None

    # The ledger

    def record(self, kind: str, row: Row, **fields: Any) -> None:
        """Write what happened to ``row`` into the ledger."""
        if self.keeps_events:
            event = apps.get_model("leasing", "LeaseEvent")
            fields["reason"] = fields.get("reason", "")[:500]
            event.of(row, kind, **fields).save(using=self.db, force_insert=True)

    def note_refused(self, row: Row, verb: str, reason: str) -> None:
        """Remember that a late ``verb`` of the holder of ``row`` was refused."""
        self.record("refused", row, reason=f"{verb}: {reason}")

    def _refuse(self, row: Row, verb: str) -> LeaseLost:
        """Note the refused ``verb`` and return what to raise."""
        current = self._lease_columns([row.pk]).first()
        reason = self.why_over(current, row.grant_id, row.fencing_token) or "it was being changed"
        happened("lease.refused", [row], verb=verb, reason=reason)
        return LeaseLost(row.lease_resource, reason)

    # Holders: doors to the store of the rows

    def store(self, row: Row | None = None) -> RowStore:
        """Return the store of these rows, in the database that they, or ``row`` of them, are
        written to."""
        using = self._db or written_to(self.model, row, self._hints)  # type: ignore[attr-defined]
        return row_store(self.model, using, type(self))

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
        rows = None if is_plain(self.query) else self._narrowed(store.using)
        return store.acquiring(resource, terms, wait, key, rows=rows)

    def _narrowed(self, using: str) -> Self:
        """Return these rows, which are not all of their table or have an order, in the database
        ``using``."""
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
        using = self._db or written_to(self.model, row, self._hints)  # type: ignore[attr-defined]
        if not leasing_settings.ENABLED:
            take = partial(memory.acquire_row, self.model(**dict([key])), terms)
            unless_in = None if separate else using
            steps = partial(memory.taking, take, resource, wait, stopping, unless_in)
            return Hold(memory, steps, resource=resource, on_lost=on_lost, on_yield=on_yield)
        store = (SeparateRowStore if separate else row_store)(self.model, using, type(self))
        rows = None if is_plain(self.query) else self._narrowed(using)
        steps = partial(store.holding, resource, terms, wait, key, stopping, rows)
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
        is_narrowed = self.ordered or not is_plain(self.query)
        rows = self._narrowed(store.using) if is_narrowed else None
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

    # As Django saves rows, but for the columns that verbs alone write

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

    # The rows

    def _everything(self) -> Self:
        """Every row of the table."""
        return type(self)(self.model, using=self.db)

    def _of_one_table(self) -> Self:
        """Return these rows as rows of their table alone, which can be locked."""
        if not joins.is_joined(self):
            return self
        return self._everything().filter(pk__in=self.order_by().values("pk"))

    def _locked_keys(self) -> list[Any]:
        """Lock these rows in the order of their keys; returns the keys."""
        locked = lock(self._of_one_table().order_by("pk"))
        keys = list(locked.values_list("pk", flat=True))
        if not joins.is_joined(self):
            return keys
        # They were locked by their keys alone: some may have changed while they were waited for.
        still = set(self.filter(pk__in=keys).order_by().values_list("pk", flat=True))
        return [key for key in keys if key in still]

    def _chosen(self, free: Self, limit: int | None) -> dict[Any, Row]:
        """Lock up to ``limit`` of the rows of ``free``, passing over those that others have."""
        read = free.select_related(None).prefetch_related(None)
        term = read.only("pk", "holder", "grants", "grant_id", "released_at", "expires_at")
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

    def _lock(self, row: Row) -> None:
        list(lock(self._everything().filter(pk=row.pk)).values_list("pk"))

    def _of_grant(self, row: Row) -> Self:
        """The row, if the grant that ``row`` was read with is still the current one."""
        return self._everything().filter(pk=row.pk, grant_id=row.grant_id).holding()

    def _lease_columns(self, keys: Iterable[Any]) -> Self:
        rows = self._everything().filter(pk__in=list(keys))
        return rows.only("pk", *self.model.verb_columns).annotate(now=DbNow())

    def was_released_by_holder(self, row: Row) -> bool:
        # A revocation keeps the grant too, but raises the token.
        return (
            self._everything()
            .filter(pk=row.pk, grant_id=row.grant_id, fencing_token=row.fencing_token)
            .released()
            .exists()
        )


def refuse_verb_columns(model: type[Leasable], fields: Iterable[str]) -> None:
    """Raise FieldError where ``fields``, which are to be written to stored rows, name a column
    that verbs alone write."""
    if taken := (model.verb_columns | model.state_columns).intersection(fields):
        raise FieldError(
            f"Only lease methods write {', '.join(sorted(taken))} of a stored "
            f"{model._meta.verbose_name}. A queryset's update() can, but skips their checks."
        )


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


def _clock_time(moment: datetime | None) -> str:
    return moment.isoformat(timespec="milliseconds") if moment else "never"
