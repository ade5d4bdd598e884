"""Every conditional update on leases.

What each verb demands of the row, beside its key:

    acquire   the deadline has passed (never granted, expired and released rows alike)
    renew     this grant, not released, the deadline ahead
    release   this grant, not released, the deadline ahead
    revoke    granted and not released

Time is the database's, read by the statement that judges. No judging statement can wait for a
lock (it would judge by a time that is over): the row is locked first, updated second.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.apps import apps
from django.core.exceptions import FieldError
from django.db import models, transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest, Least

from leasing import signals
from leasing.conf import leasing_settings
from leasing.dialects import after_commit, durable, limit_waiting, lock
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import DbNow, after, next_token
from leasing.hold import Grant, Hold
from leasing.keeper import Renewals
from leasing.names import check_name, check_ttl, default_holder
from leasing.rowstore import RowStore, grant_of, write_apart

if TYPE_CHECKING:
    from leasing.models import Leasable, Lease

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

Row = TypeVar("Row", bound="Leasable")


class LeaseState(models.TextChoices):
    """Where a row stands between its grants. Each row is in exactly one of these."""

    FREE = "free"
    ACTIVE = "active"
    EXPIRED = "expired"
    RELEASED = "released"


class LeasableQuerySet(models.QuerySet[Row]):
    """Rows of any leasable model: by state, and the verbs on a row that is held.

    Holder verbs (renew, release) take the held row and raise LeaseLost when its term is over.
    Operator verbs (revoke) act on the whole queryset and return how many rows they changed.
    """

    #: Whether grants and losses of these rows are written to LeaseEvent.
    keeps_events = True
    #: What renewing these rows is called.
    renewing = "renew"

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
        """Rows that can be acquired now."""
        return self.filter(expires_at__lte=DbNow())

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

    # Holder verbs

    def renew(self, row: Row) -> Row:
        """Move the deadline of ``row`` to its ttl from now; never nearer than it was.

        Raises LeaseLost when the grant is no longer the current one or the deadline has
        passed, LeaseInTransaction inside an atomic block.
        """
        rows = self.home()
        with durable(rows.db):
            rows._lock(row)
            renewed = rows._of_grant(row).unexpired().update(**_renewal())
            if renewed:
                # While the row is locked: later it could show, and so hand over, a grant that
                # somebody else has won.
                row.refresh_from_db(using=rows.db, fields=LEASE_FIELDS)
        if not renewed:
            raise rows._refuse(row, rows.renewing)
        signals.send(signals.renewed, row)
        return row

    def release(self, row: Row) -> Row:
        """Give ``row`` back at once. A second release of the same grant changes nothing.

        Raises LeaseLost when the grant is no longer the current one or had run out.
        """
        rows = self.home()
        with transaction.atomic(using=rows.db):
            rows._lock(row)
            released = rows._of_grant(row).unexpired().update(**_release())
            if released:
                row.refresh_from_db(using=rows.db, fields=LEASE_FIELDS)
                rows.record("released", row)
        if released:
            after_commit(rows.db, lambda: signals.send(signals.released, row))
        elif not rows._was_released_by_holder(row):
            raise rows._refuse(row, "release")
        return row

    def renew_many(self, grants: Mapping[Any, uuid.UUID], timeout: float = 10.0) -> Renewals:
        """Renew the rows whose key and grant are in ``grants``, in one transaction.

        Rows that someone else has locked are skipped, not waited for, and appear nowhere in
        the answer: try them again. No statement runs longer than ``timeout`` seconds.

        Raises LeaseInTransaction inside an atomic block: rolled back, the rows would forget a
        renewal that their holders go on believing.
        """
        rows = self.home()
        mine = Q(pk__in=list(grants), grant_id__in=list(grants.values()))
        with durable(rows.db):
            limit_waiting(rows.db, timeout)
            locked = set(
                lock(rows.filter(mine).order_by("pk"), skip_locked=True).values_list(
                    "pk", flat=True
                )
            )
            if locked:
                rows.filter(mine, pk__in=locked).holding().unexpired().update(**_renewal())
            found = {row.pk: row for row in rows._lease_columns(grants)}
        answer = Renewals()
        for key, grant_id in grants.items():
            reason = rows.why_over(found.get(key), grant_id)
            if reason:
                answer.lost[key] = reason
            elif key in locked:
                answer.renewed[key] = found[key].expires_at
        return answer

    # Operator verbs

    def revoke(self, reason: str = "", by: str = "") -> int:
        """Take these rows from their holders and raise their tokens, so that writes under the
        old ones are refused. Returns how many were taken."""
        rows = self.home()
        with transaction.atomic(using=rows.db):
            keys = list(lock(rows.order_by("pk")).values_list("pk", flat=True))
            revoked = [key for key in keys if rows._revoke(key)]
            taken = list(rows._everything().filter(pk__in=revoked).order_by("pk"))
            for row in taken:
                rows.record("revoked", row, reason=reason, actor=by)

        def tell() -> None:
            for row in taken:
                signals.send(signals.revoked, row, reason=reason, by=by)

        after_commit(rows.db, tell)
        return len(taken)

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

    # The pieces

    def home(self) -> Self:
        """These rows in the database that is written to: leases are never read elsewhere."""
        return self.using(self._db or leasing_settings.DATABASE)  # type: ignore[attr-defined]

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
            return "its row is gone"
        if row.grant_id != grant_id:
            return f"{row.holder} has it since {_clock_time(row.acquired_at)}"
        if fencing_token is not None and row.fencing_token != fencing_token:
            return "it was revoked"
        if row.released_at is not None:
            return f"it was revoked or given back at {_clock_time(row.released_at)}"
        if row.expires_at <= row.now:
            return f"it expired at {_clock_time(row.expires_at)}"
        return None

    def bulk_update(self, objs: Iterable[Row], fields: Iterable[str], *args: Any, **kw: Any) -> int:
        """As Django's, for every column but those of the lease."""
        fields = list(fields)
        if taken := LEASE_FIELDS.intersection(fields):
            raise FieldError(f"Only the verbs of a lease write {', '.join(sorted(taken))}.")
        return super().bulk_update(objs, fields, *args, **kw)

    def _everything(self) -> Self:
        return type(self)(self.model, using=self.db)

    def _lock(self, row: Row) -> None:
        list(lock(self._everything().filter(pk=row.pk)).values_list("pk"))

    def _of_grant(self, row: Row) -> Self:
        """The row, if the grant that ``row`` was read with is still the current one."""
        return self._everything().filter(pk=row.pk, grant_id=row.grant_id).holding()

    def _lease_columns(self, keys: Iterable[Any]) -> Self:
        rows = self._everything().filter(pk__in=list(keys))
        return rows.only("pk", *LEASE_FIELDS).annotate(now=DbNow())

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

    def _grant(self, *, holder: str, ttl: timedelta, **key: Any) -> Row | None:
        """Grant the one available row with ``key`` to ``holder``, or return None."""
        grant_id = uuid.uuid4()
        with durable(self.db):
            before = lock(self.available().filter(**key), skip_locked=True).first()
            if before is None:
                return None
            granted = (
                self._everything()
                .filter(pk=before.pk)
                .available()
                .update(grant_id=grant_id, **granting(holder, ttl))
            )
            if not granted:
                return None
            row = self._everything().get(pk=before.pk)
            expired = before.grants > 0 and before.released_at is None
            kind = "taken_over" if expired else "acquired"
            self.record(kind, row, previous_holder=before.holder)
        signals.send(getattr(signals, kind), row)
        return row


class LeaseQuerySet(LeasableQuerySet["Lease"]):
    """Leases on named resources: ``Lease.objects``."""

    #: How often to try while the row is free and someone else is just about to take it.
    TRIES = 3

    def acquire(
        self,
        resource: str,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
    ) -> Lease:
        """Take the lease on ``resource`` for ``ttl`` seconds, in the name of ``holder``.

        The answer carries ``grant_id``, which proves the term, and ``fencing_token``, which is
        greater than any the resource ever had. ``holder`` defaults to this process, ``ttl`` to
        the setting.

        Raises LeaseHeld while anybody holds it (this holder too), InvalidResource, InvalidTTL,
        and LeaseInTransaction inside an atomic block.
        """
        check_name(resource, "resource")
        holder = default_holder() if holder is None else check_name(holder, "holder")
        ttl = check_ttl(ttl)
        rows = self.home()
        for attempt in range(self.TRIES):
            lease = rows._grant(resource=resource, holder=holder, ttl=ttl)
            if lease is not None:
                return lease
            current = rows._everything().filter(resource=resource).with_state().first()
            if current is None:
                rows._create_free(resource)
            elif current.state == LeaseState.ACTIVE:
                raise LeaseHeld(resource, current.holder, current.expires_at)
            elif attempt:
                time.sleep(random.uniform(0.002, 0.02))
        raise LeaseHeld(resource)

    def hold(
        self,
        resource: str,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        on_lost: Callable[[Hold], object] | None = None,
    ) -> Hold:
        """A context manager that acquires ``resource``, renews it while the block runs, and
        releases it at the end.

        ``on_lost`` is called once, on a thread of the keeper, when the hold is lost. Arguments
        and errors are those of ``acquire``.
        """
        rows = self.home()
        lasting = check_ttl(ttl)

        def acquire() -> Grant:
            return grant_of(rows.acquire(resource, holder=holder, ttl=lasting))

        store = RowStore(self.model, rows.db)
        return Hold(store, acquire, on_lost=on_lost)

    def _create_free(self, resource: str) -> None:
        self._everything().bulk_create([self.model(resource=resource)], ignore_conflicts=True)


def granting(holder: str, ttl: timedelta) -> dict[str, Any]:
    """The columns of a new grant."""
    return {
        "holder": holder,
        "fencing_token": next_token(),
        "grants": F("grants") + 1,
        "ttl": ttl,
        "acquired_at": DbNow(),
        "renewed_at": None,
        "renewals": 0,
        "released_at": None,
        "expires_at": after(ttl),
    }


def _renewal() -> dict[str, Any]:
    """The columns of a renewal; the deadline never comes nearer."""
    return {
        "expires_at": Greatest(F("expires_at"), after(F("ttl"))),
        "renewed_at": DbNow(),
        "renewals": F("renewals") + 1,
    }


def _release() -> dict[str, Any]:
    """The columns of a release."""
    return {"released_at": DbNow(), "expires_at": DbNow()}


def _clock_time(moment: datetime | None) -> str:
    return moment.isoformat(timespec="milliseconds") if moment else "never"
