"""The ledger of what happened to leases: reading the past from it, and pruning it.

A term begins with its grant. The next event of its resource that is a release, a revocation or
another grant tells when it ended; while there is none, its row does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from django.apps import apps
from django.db import models, transaction
from django.db.models import Case, Count, Exists, F, Max, OuterRef, Subquery, When
from django.db.models.functions import Coalesce

from leasing.db.deletion import unprotected
from leasing.db.dialects import lock
from leasing.db.routing import RoutedManager, database_of
from leasing.functions import DbNow
from leasing.models.leasable import Leasable
from leasing.models.ledger import Ledger, LedgerQuerySet

#: The greatest length of a model's label, as Django has it, and of the key of a row that is leased:
#: in the ledger's index both must find room, in PostgreSQL's 2,700 bytes.
MAX_LABEL = 201
MAX_KEY = 400
BEGINNINGS = ("acquired", "taken_over")
TURNS = (*BEGINNINGS, "released", "revoked")
MICROSECOND = timedelta(microseconds=1)


class EventKind(models.TextChoices):
    """Kinds of events of a lease."""

    ACQUIRED = "acquired"
    TAKEN_OVER = "taken_over", "Taken over"
    RELEASED = "released"
    REVOKED = "revoked"
    PREEMPTED = "preempted"
    LOST = "lost"
    REFUSED = "refused", "Write refused"


class LeaseEventQuerySet(LedgerQuerySet[Any]):
    """The ledger: ``LeaseEvent.objects``."""

    def about(self, row: Leasable) -> Self:
        """Return the events of the lease of ``row``."""
        return self.filter(
            resource=row.lease_resource, model=row._meta.label_lower, key=str(row.pk)
        )

    def held_at(self, resource: str | Leasable, moment: datetime) -> Self:
        """The event that began the term in which ``resource`` was held at ``moment``; nothing
        when nobody held it then. ``resource`` is the name of a lease, or a row of a leasable
        model.

        The event carries ``held_until``: when the term ended, or will unless it is renewed. That
        was its release, its revocation, or its expiry, by the database's clock. Each moment
        belongs to one term at most.

        What was pruned cannot be told, nor a term whose row was deleted before it ended.
        """
        rows: models.QuerySet[Any]
        if isinstance(resource, str):
            rows = apps.get_model("leasing", "Lease")._default_manager.filter(resource=resource)
            name, ledger = resource, self._home()
        else:
            rows = resource.leased_model().lease_rows().filter(pk=resource.pk)
            name, ledger = resource.lease_resource, self._home(resource)
        # SQLite compares text, and there a moment without a fraction comes before its own ".0":
        # so nothing is compared for being equal.
        after = moment + MICROSECOND
        turns = ledger.filter(resource=name, model=rows.model._meta.label_lower)
        # Terms of one resource follow each other: only the latest to begin can have held it.
        # By key, not by time, because the index has the keys.
        begun = turns.filter(kind__in=BEGINNINGS, at__lt=after).order_by("-pk").values("pk")
        ended = turns.filter(pk__gt=OuterRef("pk"), kind__in=TURNS).order_by("pk")
        deadline = rows.filter(grant_id=OuterRef("grant_id")).values("expires_at")
        until = Coalesce(Subquery(ended.values(end=END)[:1]), Subquery(deadline[:1]))
        return (
            ledger.filter(pk=Subquery(begun[:1]))
            .annotate(held_until=until)
            .filter(held_until__gte=after)
        )

    def refusals(self) -> Any:
        """Return the number of late writes that were refused: a dictionary for each resource, most
        first, with ``resource``, ``count`` and ``last_at``. Narrow it before:
        ``LeaseEvent.objects.filter(at__gt=since).refusals()``."""
        refused = self.filter(kind="refused").order_by().values("resource")
        counted = refused.annotate(count=Count("pk"), last_at=Max("at"))
        return counted.order_by("-count", "resource")

    def lengths(self, resource: str, limit: int) -> tuple[list[float], int]:
        """Return the seconds of each term of the named lease ``resource`` that its holder released,
        and the number of terms that expired, both among its latest ``limit`` events."""
        label = apps.get_model("leasing", "Lease")._meta.label_lower
        latest = self._home().filter(resource=resource, model=label).order_by("-pk")
        return lengths_of(latest.values_list("kind", "grant_id", "at")[:limit])

    def prune(self, before: datetime, batch: int = 500) -> int:
        """Delete the events of terms that were over ``before`` then, ``batch`` at a time.
        Returns how many. Who held something then or since can still be told.

        Any number may prune at once: what another has locked is passed over.
        """
        events = self._home()
        # By key again: what is younger is not looked at any further.
        younger = events.filter(at__gt=before).order_by("pk").values_list("pk", flat=True).first()
        old = (
            events.order_by("pk")
            if younger is None
            else events.filter(pk__lt=younger).order_by("pk")
        )
        deleted, last = 0, 0
        while True:
            with transaction.atomic(using=events.db):
                window = list(lock(old.filter(pk__gt=last), skip_locked=True)[:batch])
                deleted += events._delete_over(window, before)
            if len(window) < batch:
                return deleted
            last = window[-1].pk

    def _delete_over(self, window: list[Any], before: datetime) -> int:
        """Delete those events of ``window``, which is in order, whose term was over ``before``
        then. Returns how many."""
        over = {event.pk for event in self._over(window, before)}
        deleted = self._delete(over)
        # The rest of a term goes after its beginning: who finds a beginning finds its end.
        # The grant tells the term; resource and key are there for the index.
        beginning = self.filter(
            resource=OuterRef("resource"),
            pk__lt=OuterRef("pk"),
            grant_id=OuterRef("grant_id"),
            kind__in=BEGINNINGS,
        )
        others = [event.pk for event in window if event.kind not in BEGINNINGS]
        rest = self.filter(~Exists(beginning), pk__in=others)
        return deleted + self._delete(rest.values_list("pk", flat=True))

    def _over(self, window: list[Any], before: datetime) -> list[Any]:
        """The beginnings in ``window`` of terms that were over ``before`` then."""
        over, untold = [], []
        following: dict[tuple[str, str], Any] = {}
        for event in reversed(window):
            of = event.model, event.resource
            if event.kind in BEGINNINGS:
                turn = following.get(of) or self._turn_after(event)
                end = None if turn is None else end_reported_by(turn)
                if end is None:
                    untold.append(event)
                elif end <= before:
                    over.append(event)
            if event.kind in TURNS:
                following[of] = event
        held_since = _still_held(untold, before)
        return over + [event for event in untold if event.pk not in held_since]

    def _turn_after(self, event: Any) -> Any:
        # One by one: asked for many at once, the planner takes a rare resource for a common one
        # and reads the ledger to its end.
        turns = self.filter(resource=event.resource, model=event.model, kind__in=TURNS)
        return turns.filter(pk__gt=event.pk).order_by("pk").first()

    def _delete(self, keys: Iterable[int]) -> int:
        return unprotected(self.filter(pk__in=list(keys)))._forget()

    def _home(self, about: Leasable | None = None) -> Self:
        """Every event; with ``about`` those of that row, which is in a database with a ledger
        of its own."""
        chosen: str | None = self._db  # type: ignore[attr-defined]
        using = self.db if about is None else chosen or database_of(about)
        return type(self)(self.model, using=using)


class LeaseEvent(Ledger):
    """An event of a lease, in the order of ``id``. Rows are only ever added.

    Model and key are stored as text, so that the history outlives the row.
    """

    id = models.BigAutoField(primary_key=True)
    model = models.CharField(max_length=MAX_LABEL)
    key = models.CharField(max_length=MAX_KEY)
    resource = models.CharField(max_length=MAX_LABEL + 1 + MAX_KEY)
    kind = models.CharField(max_length=12, choices=EventKind)
    holder = models.CharField(max_length=200, blank=True, default="")
    previous_holder = models.CharField(max_length=200, blank=True, default="")
    grant_id = models.UUIDField(null=True, default=None)
    fencing_token = models.BigIntegerField(default=0)
    at = models.DateTimeField(db_default=DbNow())
    #: The expiry of the previous term, for a takeover; of the revoked term, for a revocation.
    previous_expired_at = models.DateTimeField(null=True, default=None)
    reason = models.CharField(max_length=500, blank=True, default="")
    actor = models.CharField(max_length=200, blank=True, default="")

    objects: ClassVar = LeaseEventQuerySet.as_manager()
    #: For Django itself, and for code that has to change rows of the ledger.
    base_objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "base_objects"
        indexes: ClassVar = [
            models.Index("resource", F("id").desc(), name="leasing_event_of_resource")
        ]
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.resource} {self.get_kind_display().lower()}"

    @classmethod
    def of(cls, row: Leasable, kind: EventKind | str, **fields: Any) -> Self:
        """Return an unsaved event about ``row`` as it is now.

        Args:
            row: The leased row.
            kind: What happened to its lease.
            fields: Further columns, or others than the row has: ``reason``, ``actor``, ``holder``.
        """
        fields = {
            "holder": row.holder,
            "grant_id": row.grant_id,
            "fencing_token": row.fencing_token,
            "at": DbNow(),
        } | fields
        return cls(
            model=row.leased_model()._meta.label_lower,
            key=str(row.pk),
            resource=row.lease_resource,
            kind=kind,
            **fields,
        )


def lengths_of(events: Iterable[tuple[str, Any, datetime]]) -> tuple[list[float], int]:
    """Return the seconds of each term that its holder released, and the number of terms that
    expired, of ``events`` of one resource, the latest first: the kind, the grant, the moment."""
    released: dict[Any, datetime] = {}
    lengths, expired = [], 0
    for kind, grant, at in events:
        if kind == "released":
            released[grant] = at
        elif kind in BEGINNINGS and grant in released:
            lengths.append((released[grant] - at).total_seconds())
        expired += kind == "taken_over"
    return lengths, expired


#: The end of the term before an event, according to that event. A grant that is no takeover follows
#: a release: where it does not, the row was created again, and nobody recorded the end.
END = Case(When(kind="acquired", then=None), default=Coalesce("previous_expired_at", "at"))


def end_reported_by(turn: Any) -> datetime | None:
    """END, of an event that was read."""
    end: datetime = turn.previous_expired_at or turn.at
    return None if turn.kind == "acquired" else end


def _still_held(begun: list[Any], moment: datetime) -> set[int]:
    """The keys of those events in ``begun`` whose grant is its row's latest, and was to last
    beyond ``moment``."""
    by_model: defaultdict[str, list[Any]] = defaultdict(list)
    for event in begun:
        by_model[event.model].append(event)
    found: set[int] = set()
    for label, events in by_model.items():
        try:
            model: Any = apps.get_model(label)
        except LookupError:
            continue  # its app was uninstalled, and its rows with it
        rows = model.lease_rows(events[0]._state.db).filter(
            pk__in=[event.key for event in events], expires_at__gt=moment
        )
        latest = set(rows.values_list("grant_id", flat=True))
        found |= {event.pk for event in events if event.grant_id in latest}
    return found
