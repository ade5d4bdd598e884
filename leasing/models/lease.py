"""``Lease``: named resources. Their conditional updates, in addition to those of every row:

acquire   released, or the deadline and the grace after it have passed
preempt   held at a lower priority, and not ending sooner anyway
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Self, Unpack

from django.db import connections, models
from django.db.models import DateTimeField, ExpressionWrapper, F, Q
from django.db.models.functions import Coalesce, Greatest, Least

from leasing.conf import DEFAULT, Wait
from leasing.db.dialects import after_commit, durable, lock
from leasing.db.sql import in_sql
from leasing.exceptions import InvalidResource, LeaseHeld, LeaseLost
from leasing.functions import DbNow, after
from leasing.holding import Hold, Term
from leasing.holding.claim import Claim
from leasing.models.leasable import Leasable, Listing
from leasing.querysets import (
    GRANTED_FIELDS,
    GRANTING,
    JUDGED_BY,
    LEASE_FIELDS,
    RENEWAL,
    LeasableQuerySet,
    LeaseState,
)
from leasing.runtime.aio import Steps, Undoable, adrive, drive, in_thread
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from leasing.store import HoldOptions, Renewal, TermOptions
from leasing.validation.names import check_name
from leasing.validation.terms import Terms
from leasing.waiting.listener import announce
from leasing.waiting.notifier import notify
from leasing.waiting.waiter import MAX_PAUSE

#: The columns by which a lease is refused, and its caller told why.
REFUSED_BY = JUDGED_BY | {"resource", "grace"}


class LeaseQuerySet(LeasableQuerySet["Lease"]):
    """Leases on named resources: ``Lease.objects``.

    ``acquire``, ``hold``, ``acquire_many`` and their async twins take the same terms:

        holder         the name of the holder; this process by default
        ttl            seconds until the deadline; the default is the setting TTL
        priority       whole number, which a ``preempt_after`` of another caller is compared with
        max_hold       seconds after which renewals end, whatever the holder does
        grace          seconds after its expiry in which nobody else gets it (not after a release);
                       the default is the setting GRACE
        preempt_after  ask a holder of lower priority to yield: its renewals end after so many
                       seconds, but never before the deadline that it already has
        metadata       a JSON object, for readers of the row; by default {"process": ...}, the
                       name of this process, where the holder has another
    """

    def heartbeats(
        self, limit: int
    ) -> list[tuple[datetime, datetime, int, timedelta, datetime | None]]:
        """Return the renewals of the latest term of each of the newest ``limit`` leases that was
        renewed: the grant, the latest renewal, their number, the ttl, and the moment at which the
        holder was known to have it: the release, or now. None for what has expired."""
        rows: Any = self.with_state().order_by("-pk")
        columns = "acquired_at", "renewed_at", "renewals", "ttl", "released_at", "expires_at", "now"
        return [
            (granted, renewed, count, ttl, released or (now if expires > now else None))
            for granted, renewed, count, ttl, released, expires, now in rows.values_list(*columns)[
                :limit
            ]
            if count
        ]

    def acquire(  # type: ignore[override]
        self, resource: str, *, wait: Wait = DEFAULT, **terms: Unpack[TermOptions]
    ) -> Lease:
        """Take the lease on ``resource`` for ``ttl`` seconds, in the name of ``holder``, and return
        its row. ``renew`` and ``release`` of the row, or of this queryset, prove the grant by it.

        Args:
            resource: The name of the resource.
            wait: Seconds to wait for the current holder, None for ever; the setting WAIT by
                default.

        The other arguments are the terms. The row's ``fencing_token`` is greater than any earlier
        token of the resource.

        Raises LeaseHeld if anybody holds it (this holder too), LeaseTimeout if it is still held
        after ``wait``, InvalidResource, InvalidTTL, ValueError, and LeaseInTransaction inside an
        atomic block.
        """
        asked = Terms.check(**terms)
        return drive(self.acquiring_named(resource, asked, wait))

    async def aacquire(  # type: ignore[override]
        self, resource: str, *, wait: Wait = DEFAULT, **terms: Unpack[TermOptions]
    ) -> Lease:
        """``acquire``, for async code."""
        asked = Terms.check(**terms)
        return await adrive(self.acquiring_named(resource, asked, wait))

    def hold(  # type: ignore[override]
        self,
        resource: str,
        *,
        wait: Wait = DEFAULT,
        separate: bool = False,
        stopping: threading.Event | None = None,
        on_lost: Callable[[Term], object] | None = None,
        on_yield: Callable[[Term], object] | None = None,
        **terms: Unpack[TermOptions],
    ) -> Hold:
        """Return a context manager, for ``with`` and ``async with``, that acquires ``resource``,
        renews it while the block runs, and releases it at the end. Errors are those of
        ``acquire``.

        Args:
            resource: The name of the resource.
            wait: Seconds to wait for the current holder, None for ever; the setting WAIT by
                default.
            separate: True to permit it inside a transaction, over a connection of its own. It is
                released when the transaction commits, and expires after a rollback. On SQLite this
                raises LeaseInTransaction too.
            stopping: An event that ends the waiting with LeaseTimeout.
            on_lost: Called once, on a thread of the keeper, when the hold is lost.
            on_yield: Called when somebody of higher priority asked for it.

        The other arguments are the terms.
        """
        check_name(resource, "resource")
        return self._hold(
            resource,
            Terms.check(**terms),
            wait,
            ("resource", resource),
            separate=separate,
            stopping=stopping,
            on_lost=on_lost,
            on_yield=on_yield,
        )

    def acquire_many(self, resources: Iterable[str], **terms: Unpack[TermOptions]) -> Claim[Lease]:
        """Take the leases on all of ``resources``, or none, in one transaction. They are taken in
        the order of their names, so that callers cannot deadlock.

        Returns a list of leases that is also a context manager: in its block they are renewed, at
        its end they are released. Arguments and errors are those of ``acquire``, without waiting.
        """
        asked = Terms.check(**terms)
        if isinstance(resources, str):
            raise InvalidResource("The resources must be a list of names, not a string.")
        names = sorted({check_name(resource, "resource") for resource in resources})
        leases: Claim[Lease] = self.store().grant_all(asked, "resource", names)
        return leases

    async def aacquire_many(
        self, resources: Iterable[str], **terms: Unpack[TermOptions]
    ) -> Claim[Lease]:
        """``acquire_many``, for async code: ``async with await Lease.objects.aacquire_many(...)``.
        In the block the body is cancelled when any of the leases is lost."""
        acquire = partial(self.acquire_many, resources, **terms)
        leases: Claim[Lease] = await in_thread(Undoable(acquire, Claim.give_back))
        return leases

    tells_waiters = True

    # The conditions

    @in_sql("(t.released_at IS NOT NULL OR t.expires_at <= {now} - t.grace)")
    def available(self) -> Self:
        # The grace gives the last writes of a dead holder time to arrive.
        graced = ExpressionWrapper(DbNow() - F("grace"), output_field=DateTimeField())
        return self.filter(Q(released_at__isnull=False) | Q(expires_at__lte=graced))

    @in_sql(
        RENEWAL
        | {
            # Of the two, the one that is there.
            "expires_at": "LEAST(t.ends_at, GREATEST(t.expires_at, {now} + t.ttl))"
        }
    )
    def renewal(self) -> dict[str, Any]:
        columns = super().renewal()
        moved = columns["expires_at"]
        columns["expires_at"] = Least(moved, Coalesce(F("ends_at"), moved))
        return columns

    @in_sql(
        GRANTING
        | {
            "priority": "%(priority)s",
            "grace": "%(grace)s::interval",
            "ends_at": "{now} + %(max_hold)s::interval",
            "yield_to": "''",
            "wanted_by": "''",
            "metadata": "%(metadata)s::jsonb",
        }
    )
    def granting(self, terms: Terms) -> dict[str, Any]:
        return super().granting(terms) | {
            "priority": terms.priority,
            "grace": terms.grace,
            "ends_at": None if terms.max_hold is None else after(terms.max_hold),
            "yield_to": "",
            "wanted_by": "",
            "metadata": terms.metadata,
        }

    # Parts of the above

    def acquiring_named(self, resource: str, terms: Terms, wait: Wait) -> Steps[Lease]:
        """The steps of ``acquire``, for a driver, under ``terms`` that may have a ``request_id``:
        the same request gets the same grant while it holds, and LeaseLost once it has ended."""
        check_name(resource, "resource")
        return self.acquiring(resource, terms, wait, ("resource", resource))

    def named(self, resource: str) -> Lease | None:
        """Return the lease of ``resource`` as it stands, with ``now``; None if there is none."""
        found: Lease | None = self._standing("resource", resource)
        return found

    def judge(self, resource: str, terms: Terms, key: tuple[str, Any]) -> Lease | None:
        # Who preempts proves by all of it whom it asks; who repeats a request gets all of it.
        whole = terms.preempt_after is not None or terms.request_id is not None
        sent_at = clock()
        current: Lease | None = self._standing(*key, None if whole else REFUSED_BY)
        if current is None:
            self._create_free([resource])
            return None
        if terms.granted(current):
            if reason := self.why_over(current, current.grant_id):
                raise LeaseLost(resource, reason)
            current.sent_at = sent_at
            return current
        self._refuse_if_held(current, terms)
        return None

    def judge_all(self, names: list[str], terms: Terms) -> None:
        """Judge the leases on ``names`` that could not all be granted just now. Raises LeaseHeld;
        otherwise another try may succeed."""
        named = self._everything().filter(resource__in=names)
        known = list(named.with_state().order_by("resource"))
        if missing := set(names) - {lease.resource for lease in known}:
            self._create_free(sorted(missing))
        for lease in known:
            self._refuse_if_held(lease, terms)

    def _refuse_if_held(self, current: Lease, terms: Terms) -> None:
        """Raise LeaseHeld if somebody holds ``current`` or its grace runs. If ``terms`` preempt,
        first ask the holder to yield."""
        state = current.lease_state(current.now)
        if state == LeaseState.ACTIVE:
            if terms.preempt_after is not None:
                self._preempt(current, terms.holder, terms.priority, terms.preempt_after)
            raise _held_until(current.expires_at, current)
        graced_until = current.expires_at + current.grace
        if state == LeaseState.EXPIRED and graced_until > current.now:
            raise _held_until(graced_until, current)

    def _create_free(self, resources: Iterable[str]) -> None:
        rows = [self.model(resource=resource) for resource in resources]
        self._everything().bulk_create(rows, ignore_conflicts=True)

    def _preempt(self, held: Lease, by: str, priority: int, delay: timedelta) -> None:
        """Ask the holder of ``held`` to yield: its renewals end after ``delay``. If somebody has
        locked the row, do nothing: callers that wait try again."""
        end = Greatest(F("expires_at"), after(delay))
        with durable(self.db):
            asked = self._lock_at_once(pk=held.pk) and (
                self._of_grant(held)
                .unexpired()
                .filter(Q(ends_at=None) | Q(ends_at__gt=end), priority__lt=priority)
                .update(ends_at=end, yield_to=by)
            )
            if asked:
                self.record("preempted", held, actor=by, reason=f"asked to yield to {by}")
        if asked:
            happened("lease.preempted", [held], by=by)

    def mark_wanted(self, resource: str, by: str = "") -> None:
        """Request a notification of the holder's release; ``by`` is who waits."""
        if connections[self.db].vendor != "postgresql":
            return
        # One mark serves all that wait: if each of them wrote one, the row would stay locked.
        unmarked = Q(wanted_until=None) | Q(
            wanted_until__lt=after(timedelta(seconds=2 * MAX_PAUSE))
        )
        if by:
            unmarked |= Q(wanted_by="")
        waited_for = self._everything().filter(unmarked, resource=resource)
        if not waited_for.exists():
            return
        with durable(self.db):
            if self._lock_at_once(resource=resource):
                # A campaign names nobody: a caller that still waits names itself at its next try,
                # and one that is gone would be named for as long as the campaign lasts.
                waited_for.update(
                    wanted_until=after(timedelta(seconds=4 * MAX_PAUSE)), wanted_by=by
                )

    def _lock_at_once(self, **key: Any) -> bool:
        """Lock the row with ``key`` unless somebody else has locked it, so that no caller waits
        longer than its ``wait``. Returns True if it is locked now."""
        return bool(lock(self._everything().filter(**key), skip_locked=True).values_list("pk"))

    def record(self, kind: str, row: Lease, **fields: Any) -> None:
        super().record(kind, row, **fields)
        if kind in ("released", "revoked"):
            self._announce_free(row)

    def _announce_free(self, lease: Lease) -> None:
        after_commit(self.db, partial(notify, self.db, lease.resource))
        if lease.wanted_until and lease.released_at and lease.wanted_until > lease.released_at:
            announce(self.db, lease.resource)


def _held_until(end: datetime, current: Lease) -> LeaseHeld:
    remaining = (end - current.now).total_seconds()
    return LeaseHeld(current.resource, current.holder, end, remaining)


class Lease(Leasable):
    """A lease on a resource that has a name."""

    id = models.BigAutoField(primary_key=True)
    resource = models.CharField(max_length=200, unique=True, editable=False)
    created_at = models.DateTimeField(db_default=DbNow(), editable=False)
    #: Data of the holder, for others to read.
    metadata = models.JSONField(default=dict, blank=True, editable=False)
    #: The priority of the latest grant; a caller with a higher one may ask the holder to yield.
    priority = models.SmallIntegerField(default=0, editable=False)
    #: The time after an expiry during which nobody else gets it.
    grace = models.DurationField(default=timedelta(0), editable=False)
    #: Renewals end here: the holder's maximum, or when it was asked to yield.
    ends_at = models.DateTimeField(null=True, default=None, editable=False)
    #: The requester that asked the holder to yield.
    yield_to = models.CharField(max_length=200, blank=True, default="", editable=False)
    #: Until then a caller waits for the release, so that one sends a notification.
    wanted_until = models.DateTimeField(null=True, default=None, editable=False)
    #: The caller that waits, or one of them; empty if only campaigns do.
    wanted_by = models.CharField(max_length=200, blank=True, default="", editable=False)

    renewal_columns = frozenset({"grant_id", "expires_at", "ends_at", "yield_to"})
    verb_columns = LEASE_FIELDS | {
        "metadata",
        "priority",
        "grace",
        "ends_at",
        "yield_to",
        "wanted_until",
        "wanted_by",
    }

    granted_columns = GRANTED_FIELDS | {"metadata", "priority", "grace"}
    listing = Listing(named_by=frozenset({"resource"}))
    audit_name = "resource"

    objects: ClassVar = LeaseQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("revoke_lease", "Can revoke a lease"),
            ("view_metrics", "Can view the metrics"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["wanted_until"],
                name="leasing_lease_wanted",
                condition=models.Q(wanted_until__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.resource

    def renewal_now(self) -> Renewal:
        left = (self.expires_at - self.now).total_seconds()
        is_last = self.ends_at is not None and self.expires_at >= self.ends_at
        return Renewal(self.expires_at, left, self.yield_to, is_last)

    def hold(self, **options: Unpack[HoldOptions]) -> Hold:
        """A hold on this row's resource, for ``with``. Arguments are those of
        ``LeaseQuerySet.hold``."""
        return type(self).objects.all().home(self).hold(self.resource, **options)

    @property
    def lease_id(self) -> str:
        return str(self.pk)

    @property
    def lease_resource(self) -> str:
        return self.resource
