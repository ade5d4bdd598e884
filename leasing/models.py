"""Rows that can be held for a while: ``Leasable`` for any model, ``Lease`` for named resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from django.apps import apps
from django.core.signals import setting_changed
from django.db import models
from django.db.models import F, Q

from leasing.db.deletion import delete_batch, unprotected
from leasing.db.routing import RoutedManager, is_ours
from leasing.functions import EPOCH, DbNow, after
from leasing.hold import Hold
from leasing.querysets.beats import BeatEntry
from leasing.querysets.events import LeaseEventQuerySet
from leasing.querysets.leasable import LeasableQuerySet, verbs_of
from leasing.querysets.lease import LeaseQuerySet
from leasing.querysets.ledger import LedgerQuerySet, refuse_change, refuse_deletion
from leasing.querysets.once import OnceQuerySet
from leasing.querysets.saving import GRANTED_FIELDS, LEASE_FIELDS, refuse_verb_columns
from leasing.querysets.states import LeaseState
from leasing.store import Renewal

#: How long the label of a model may be, as Django has it, and the key of a row that is leased: in
#: the ledger's index both must find room, in PostgreSQL's 2,700 bytes.
MAX_LABEL = 201
MAX_KEY = 400


class Guarded(models.Model):
    """A row of which saving may not change everything, unless a fixture is loaded."""

    #: True of what is saved as a fixture has it.
    _is_fixture = False

    class Meta:
        abstract = True

    def _save_table(self, raw: bool = False, *args: Any, **options: Any) -> Any:
        self._is_fixture = raw
        return super()._save_table(raw, *args, **options)  # type: ignore[misc]


class Ledger(Guarded):
    """A row that tells what happened: it is added, and neither changed nor deleted by hand."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **options: Any) -> None:
        if not self._state.adding:
            refuse_change(type(self))
        super().save(*args, **options)

    def _do_update(self, *args: Any) -> Any:
        # Of an instance that was made with the key of a row.
        if not self._is_fixture:
            refuse_change(type(self))
        return super()._do_update(*args)

    def delete(self, *args: Any, **options: Any) -> NoReturn:
        refuse_deletion(type(self))


class Leasable(Guarded):
    """A row that one holder at a time may own, until a deadline.

    The row is *free* until it is acquired, then *active* until ``expires_at`` passes (expired)
    or it is given back (released). Holder and grant stay on the row afterwards, until the next
    grant, so that a late holder hears what became of its term.

    Once a row is stored, the columns here are written by the queryset's verbs alone: ``save()``
    leaves them out, because a stale instance saved would put the old holder back, and naming one
    in ``update_fields`` or ``bulk_update()`` is an error. Fixtures are written as they are. A copy
    is free. A subclass with a ``Meta`` of its own inherits ``Leasable.Meta``, for its constraints.
    """

    # Each has a default in the database too: whoever inserts rows without knowing of leases, as
    # the code of the release before does while a deploy rolls, inserts free ones.

    #: Who holds or last held the row; empty when nobody ever did.
    holder = models.CharField(max_length=200, blank=True, default="", db_default="", editable=False)
    #: Chosen by the holder's process for each grant: the proof of its term.
    grant_id = models.UUIDField(null=True, default=None, editable=False)
    #: Rises with every grant and revocation, for all time; for resources outside the database.
    fencing_token = models.BigIntegerField(default=0, db_default=0, editable=False)
    #: How often the row was granted: the small number that people are shown.
    grants = models.IntegerField(default=0, db_default=0, editable=False)
    #: How far each renewal moves the deadline.
    ttl = models.DurationField(
        default=timedelta(seconds=30), db_default=timedelta(seconds=30), editable=False
    )
    acquired_at = models.DateTimeField(null=True, default=None, editable=False)
    renewed_at = models.DateTimeField(null=True, default=None, editable=False)
    renewals = models.IntegerField(default=0, db_default=0, editable=False)
    released_at = models.DateTimeField(null=True, default=None, editable=False)
    #: Held while this lies ahead. Never null, and in no index: renewals stay cheap that way.
    expires_at = models.DateTimeField(default=EPOCH, db_default=EPOCH, editable=False)

    #: The columns of the lease, which its verbs alone write.
    verb_columns: ClassVar[frozenset[str]] = LEASE_FIELDS
    #: Of these, what no verb but a grant writes: the row of a living grant has it right.
    granted_columns: ClassVar[frozenset[str]] = GRANTED_FIELDS
    #: The columns beside those of the lease that verbs of the model alone write, once a row is
    #: stored.
    state_columns: ClassVar[frozenset[str]] = frozenset()
    #: What ``renewal_now`` looks at.
    renewal_columns: ClassVar[frozenset[str]] = frozenset({"grant_id", "expires_at"})
    #: The column with an index by which pages list the leases of rows that were held, the latest
    #: first; "" is the key.
    leases_listed_by: ClassVar[str] = ""
    #: Whether an index leads to the rows that ``holding`` finds: then they are counted, however
    #: many others there are.
    held_is_indexed: ClassVar[bool] = False

    #: The columns beside those of the lease that ``lease_id`` and ``lease_resource`` read: pages
    #: that list leases load no others. None: any.
    leases_told_by: ClassVar[frozenset[str] | None] = None

    objects: ClassVar[models.Manager[Any]] = LeasableQuerySet.as_manager()

    #: Of a row that was just taken over: when the term before it ran out.
    previous_expired_at: datetime | None = None

    if TYPE_CHECKING:
        # Annotated by with_state(); ``now`` on rows that were just granted, too.
        state: str
        now: datetime
        #: The holder's clock before the request that granted the row was sent.
        sent_at: float

    class Meta:
        abstract = True
        # PostgreSQL reads every check anew for each statement that writes. So the counts, which
        # these bound, have none of their own, as positive fields would.
        constraints: ClassVar = [
            models.CheckConstraint(
                name="%(app_label)s_%(class)s_granted",
                condition=Q(grants=0, holder="", grant_id=None, acquired_at=None, expires_at=EPOCH)
                | (
                    Q(grants__gt=0, grant_id__isnull=False, acquired_at__isnull=False)
                    & ~Q(holder="")
                ),
            ),
            models.CheckConstraint(
                name="%(app_label)s_%(class)s_renewed",
                condition=Q(renewals=0, renewed_at=None)
                | Q(renewals__gt=0, renewed_at__isnull=False, grants__gt=0),
            ),
            models.CheckConstraint(
                name="%(app_label)s_%(class)s_released",
                condition=Q(released_at=None) | Q(released_at__gte=F("expires_at"), grants__gt=0),
            ),
            models.CheckConstraint(
                name="%(app_label)s_%(class)s_ttl",
                condition=Q(ttl__gt=timedelta(0)),
            ),
        ]

    def save(self, *args: Any, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        if update_fields is not None:
            update_fields = list(update_fields)
            refuse_verb_columns(type(self), update_fields)
        super().save(*args, update_fields=update_fields, **options)

    def _do_update(self, base_qs: Any, using: Any, pk_val: Any, values: Any, *rest: Any) -> Any:
        # Every way in which save() may update a row ends here.
        if not self._is_fixture:
            theirs = self.verb_columns | self.state_columns
            values = [value for value in values if value[0].name not in theirs]
        return super()._do_update(base_qs, using, pk_val, values, *rest)

    def _do_insert(self, manager: Any, using: Any, *args: Any) -> Any:
        if not self._is_fixture and self._state.db is not None:
            self.begin_free()
        return super()._do_insert(manager, using, *args)  # type: ignore[misc]

    def begin_free(self) -> None:
        """Drop the lease that this instance was read with: it is inserted as another row, and
        nobody was granted that one."""
        self._reset(self.verb_columns)

    def _reset(self, columns: Iterable[str]) -> None:
        for name in columns:
            field: Any = self._meta.get_field(name)
            setattr(self, name, field.get_default())

    def hold(self, **options: Any) -> Hold:
        """A hold on this row, for ``with``: see ``LeasableQuerySet.hold``."""
        held: Hold = type(self).lease_rows().hold(self, **options)
        return held

    @classmethod
    def lease_rows(cls, using: str | None = None) -> LeasableQuerySet[Any]:
        """Every row, with the verbs: what a default manager hides from some requests is leased
        and renewed like the rest."""
        return verbs_of(cls)(cls, using=using)

    def renewal_now(self) -> Renewal:
        """What to tell the holder of this row, which was just renewed and read with ``now``."""
        return Renewal(self.expires_at, (self.expires_at - self.now).total_seconds())

    @classmethod
    def leased_model(cls) -> type[Leasable]:
        """The model whose table has the lease: of a proxy, or a child that shares its parent's
        lease, another than this one."""
        column: Any = cls._meta.get_field("expires_at")
        model: type[Leasable] = column.model
        return model

    @property
    def lease_id(self) -> str:
        """What the API and the pages call this row's lease."""
        model = self.leased_model()
        # As it can stand in an address: what separates its parts is spelled otherwise.
        key = str(self.pk).replace("%", "%25").replace("/", "%2F")
        return f"{lease_kinds().get(model, model._meta.model_name)}:{key}"

    @property
    def lease_resource(self) -> str:
        """What the API and the pages say is leased."""
        return f"{self.leased_model()._meta.label_lower}:{self.pk}"

    def lease_state(self, now: datetime) -> LeaseState:
        """The state of the lease at ``now``, which is the database's clock."""
        if not self.grants:
            return LeaseState.FREE
        if self.released_at is not None:
            return LeaseState.RELEASED
        return LeaseState.ACTIVE if self.expires_at > now else LeaseState.EXPIRED


class Lease(Leasable):
    """A lease on a resource that has a name."""

    id = models.BigAutoField(primary_key=True)
    resource = models.CharField(max_length=200, unique=True, editable=False)
    created_at = models.DateTimeField(db_default=DbNow(), editable=False)
    #: What the holder wants others to know.
    metadata = models.JSONField(default=dict, blank=True, editable=False)
    #: Of the latest grant; one of a higher priority may ask the holder to yield.
    priority = models.SmallIntegerField(default=0, editable=False)
    #: How long after an expiry nobody else gets it.
    grace = models.DurationField(default=timedelta(0), editable=False)
    #: Renewals end here: the holder's maximum, or when it was asked to yield.
    ends_at = models.DateTimeField(null=True, default=None, editable=False)
    #: Who asked the holder to yield.
    yield_to = models.CharField(max_length=200, blank=True, default="", editable=False)
    #: Somebody waits until then, and wants the release announced.
    wanted_until = models.DateTimeField(null=True, default=None, editable=False)

    renewal_columns = frozenset({"grant_id", "expires_at", "ends_at", "yield_to"})
    verb_columns = LEASE_FIELDS | {
        "metadata",
        "priority",
        "grace",
        "ends_at",
        "yield_to",
        "wanted_until",
    }

    granted_columns = GRANTED_FIELDS | {"metadata", "priority", "grace"}
    leases_told_by = frozenset({"resource"})

    objects: ClassVar = LeaseQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("revoke_lease", "Can revoke a lease"),
            ("view_metrics", "Can view the metrics"),
        ]

    def __str__(self) -> str:
        return self.resource

    def renewal_now(self) -> Renewal:
        renewal = super().renewal_now()
        is_last = self.ends_at is not None and self.expires_at >= self.ends_at
        return Renewal(renewal.expires_at, renewal.remaining, self.yield_to, is_last)

    def hold(self, **options: Any) -> Hold:
        return type(self).objects.all().home(self).hold(self.resource, **options)

    @property
    def lease_id(self) -> str:
        return str(self.pk)

    @property
    def lease_resource(self) -> str:
        return self.resource


class EventKind(models.TextChoices):
    """What happened to a lease."""

    ACQUIRED = "acquired"
    TAKEN_OVER = "taken_over", "taken over"
    RELEASED = "released"
    REVOKED = "revoked"
    PREEMPTED = "preempted"
    LOST = "lost"
    REFUSED = "refused", "write refused"


class LeaseEvent(Ledger):
    """What happened to a lease, in the order of ``id``. Rows are only ever added.

    Model and key stand as text, so that the history outlives the row.
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
    #: Of a takeover: when the term before it ran out; of a revocation: when its own did.
    previous_expired_at = models.DateTimeField(null=True, default=None)
    reason = models.CharField(max_length=500, blank=True, default="")
    actor = models.CharField(max_length=200, blank=True, default="")

    objects: ClassVar = LeaseEventQuerySet.as_manager()
    #: Django itself goes by these, and whoever must rewrite what was told all the same.
    base_objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "base_objects"
        indexes: ClassVar = [
            models.Index("resource", F("id").desc(), name="leasing_event_of_resource")
        ]
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.resource} {self.get_kind_display()}"

    @classmethod
    def of(cls, row: Leasable, kind: EventKind | str, **fields: Any) -> Self:
        """An unsaved event about ``row`` as it stands."""
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


class AuditEntryQuerySet(LedgerQuerySet["AuditEntry"]):
    """What operators did: ``AuditEntry.objects``. Entries are written by ``leasing.audit``."""

    def about(self, row: models.Model) -> Self:
        """What was done to ``row`` alone; not what was done to many at once."""
        return self.filter(model=row._meta.label_lower, key=str(row.pk))

    def prune(self, age: timedelta, batch: int = 500) -> int:
        """Delete the entries that are older than ``age``, ``batch`` rows in a transaction.
        Returns how many. Any number may prune at once."""
        using = self.db
        entries = AuditEntry.objects.using(using)
        # By key, which follows the time: what is younger is not looked at any further.
        younger = entries.filter(at__gt=after(-age)).order_by("pk").values_list("pk", flat=True)
        first = younger.first()
        old = entries if first is None else entries.filter(pk__lt=first)
        prunable = unprotected(old).only("pk").order_by("pk")
        deleted, last = 0, 0
        while True:
            count, found = delete_batch(
                prunable.filter(pk__gt=last),
                batch,
                lambda keys: entries.filter(pk__in=keys)._forget(),
            )
            deleted += count
            if len(found) < batch:
                return deleted
            last = found[-1].pk


class AuditEntry(Ledger):
    """Something that a person did to leases, tasks, queues or the generator.

    It is written before anything is changed, and its outcome once, afterwards: one without an
    outcome is of an action that was broken off, and nobody knows how much it had changed.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=DbNow())
    #: The name of the user, or of the command's.
    by = models.CharField("user", max_length=200)
    #: What was done: retry, cancel, discard, reschedule, revoke, pause, resume, start, stop, run.
    verb = models.CharField("action", max_length=50)
    #: Where it was asked for: page, admin, api or command.
    via = models.CharField(max_length=20, blank=True, default="")
    #: Of which model the rows are ("leasing_tasks.task").
    model = models.CharField(max_length=MAX_LABEL)
    #: The key of the row, when it was one.
    key = models.CharField(max_length=MAX_KEY, blank=True, default="")
    #: What it was done to: {"keys": [...]}, {"filter": {...}}, or both.
    target = models.JSONField(default=dict)
    reason = models.CharField(max_length=500, blank=True, default="")
    #: How many rows were asked for, and how many changed; null without an outcome.
    asked = models.PositiveIntegerField(null=True, default=None)
    changed = models.PositiveIntegerField(null=True, default=None)
    #: Why the others were not: {"it was not failed or cancelled": 3}.
    skipped = models.JSONField(default=dict)
    #: What was raised, when the action failed.
    error = models.CharField(max_length=500, blank=True, default="")
    finished_at = models.DateTimeField(null=True, default=None)

    objects: ClassVar = AuditEntryQuerySet.as_manager()
    #: Django itself goes by these, and whoever must rewrite what was told all the same.
    base_objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "base_objects"
        verbose_name_plural = "audit entries"
        # What a user is given for the model: to look. Nobody adds, changes or deletes.
        default_permissions = ("view",)
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [
            models.Index("model", "key", F("id").desc(), name="leasing_audit_of_row"),
            models.Index("by", F("id").desc(), name="leasing_audit_by_whom"),
            models.Index("verb", F("id").desc(), name="leasing_audit_of_verb"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} by {self.by}"


class OnceKey(Leasable):
    """A piece of work that is done once a window: see ``leasing.idempotency``."""

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(max_length=200, unique=True, editable=False)
    #: Of the arguments: the same key with others is refused.
    payload_hash = models.CharField(max_length=64, blank=True, default="", editable=False)
    result = models.JSONField(null=True, default=None, editable=False)
    finished_at = models.DateTimeField(null=True, default=None, editable=False)
    #: When the window ends, and the work may be done anew.
    window_ends_at = models.DateTimeField(default=EPOCH, editable=False)

    verb_columns = LEASE_FIELDS | {"payload_hash", "result", "finished_at", "window_ends_at"}
    leases_told_by = frozenset({"key"})

    objects: ClassVar = OnceQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        verbose_name = "result kept by once"
        verbose_name_plural = "results kept by once"
        constraints: ClassVar = [
            *Leasable.Meta.constraints,
            models.CheckConstraint(
                name="leasing_oncekey_finished",
                condition=Q(finished_at=None) | Q(released_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def lease_resource(self) -> str:
        return f"once:{self.key}"


def leasable_models() -> list[type[Leasable]]:
    """Every installed model whose table has leases, ``Lease`` first."""
    found: Iterable[type[models.Model]] = apps.get_models()
    leasable = [model for model in found if issubclass(model, Leasable) and model is not Lease]
    return [Lease, *[model for model in leasable if model.leased_model() is model]]


@cache
def lease_kinds() -> Mapping[type[Leasable], str]:
    """For each leasable model but ``Lease`` the first part of its ``lease_id``: the model's name,
    or "app_label.name" where a model before it has that name. Our own models go by their names
    alone, whatever is installed: the lease of a task is ``task:17`` everywhere. The others follow
    in the order of INSTALLED_APPS."""
    kinds: dict[type[Leasable], str] = {}
    for model in sorted(leasable_models(), key=lambda each: not is_ours(each)):
        if model is not Lease:
            name = str(model._meta.model_name)
            kinds[model] = model._meta.label_lower if name in kinds.values() else name
    return kinds


def _forget_kinds(*, setting: str, **kwargs: Any) -> None:
    if setting == "INSTALLED_APPS":
        lease_kinds.cache_clear()


setting_changed.connect(_forget_kinds, dispatch_uid="leasing.models.lease_kinds")


__all__ = [
    "AuditEntry",
    "BeatEntry",
    "EventKind",
    "Leasable",
    "Lease",
    "LeaseEvent",
    "LeaseState",
    "OnceKey",
    "leasable_models",
    "lease_kinds",
]
