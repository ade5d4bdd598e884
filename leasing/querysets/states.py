"""Rows by the state of their lease: the conditions that verbs demand, and the columns they write.

Time is the database's, read by the statement that judges. No judging statement can wait for a
lock (it would judge by a time that is over): the row is locked first, updated second.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self

from django.apps import apps
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest

from leasing.db import joins
from leasing.db.dialects import lock
from leasing.db.row_reader import read_by
from leasing.db.sql import in_sql
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import DbNow, after, next_token
from leasing.querysets.saving import GuardedRows, Row
from leasing.runtime.events import happened
from leasing.store import Reason, Why
from leasing.validation.terms import Terms


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


class LeaseRows(GuardedRows[Row]):
    """Rows that can be leased, as the verbs find, lock and judge them."""

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


def _clock_time(moment: datetime | None) -> str:
    return moment.isoformat(timespec="milliseconds") if moment else "never"
