"""``Leasable``: rows of any model that can be held for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from django.apps import apps
from django.core.signals import setting_changed
from django.db import models
from django.db.models import F, Q

from leasing.conf import DEFAULT, Wait
from leasing.db.routing import is_ours
from leasing.functions import EPOCH
from leasing.holding import Hold, Term
from leasing.models.ledger import Guarded
from leasing.querysets import GRANTED_FIELDS, LEASE_FIELDS, LeasableQuerySet, LeaseState, verbs_of
from leasing.store import Renewal


class Listing(NamedTuple):
    """The order and the conditions by which pages and the API read the leases of a model."""

    #: The indexed column in whose order they are listed, the latest first; "" is the key.
    by: str = ""
    #: Conditions of which each row meets one, and which have an index each, or are met by few: they
    #: are read apart, and what they find is merged. The first is met by all that are held.
    parts: tuple[Q, ...] = ()
    #: Further columns that ``lease_id`` and ``lease_resource`` read: lists load no others. None:
    #: they may read any.
    named_by: frozenset[str] | None = None


class Leasable(Guarded):
    """A row that one holder at a time may own, until a deadline.

    The row is *free* until it is acquired, then *active* until ``expires_at`` passes (expired)
    or until it is released. Holder and grant stay on the row until the next grant, so that a late
    holder learns how its term ended.

    Once a row is stored, only the queryset's verbs write the columns here. ``save()`` leaves them
    out, named or not, because a stale instance would restore the old holder; naming one in
    ``bulk_update()`` is an error. Fixtures are written as they are. A copy is free. A subclass with
    a ``Meta`` of its own inherits ``Leasable.Meta``, for its constraints.
    """

    # Each has a default in the database too: code that inserts rows without these columns, such as
    # the previous release during a deploy, inserts free rows.

    #: The holder of the row, or the last one; empty when it was never held.
    holder = models.CharField(max_length=200, blank=True, default="", db_default="", editable=False)
    #: Chosen by the holder's process for each grant: the proof of its term.
    grant_id = models.UUIDField(null=True, default=None, editable=False)
    #: Rises with every grant and revocation, never falls; targets reject writes with lower ones.
    fencing_token = models.BigIntegerField(default=0, db_default=0, editable=False)
    #: The number of grants of the row: a small number, for people.
    grants = models.IntegerField(default=0, db_default=0, editable=False)
    #: The time by which each renewal moves the deadline.
    ttl = models.DurationField(
        default=timedelta(seconds=30), db_default=timedelta(seconds=30), editable=False
    )
    acquired_at = models.DateTimeField(null=True, default=None, editable=False)
    renewed_at = models.DateTimeField(null=True, default=None, editable=False)
    renewals = models.IntegerField(default=0, db_default=0, editable=False)
    released_at = models.DateTimeField(null=True, default=None, editable=False)
    #: The deadline. Never null, and in no index, so that renewals stay cheap.
    expires_at = models.DateTimeField(default=EPOCH, db_default=EPOCH, editable=False)

    #: The columns of the lease, which only its verbs write.
    verb_columns: ClassVar[frozenset[str]] = LEASE_FIELDS
    #: Of these, the columns that only a grant writes: they do not change during a term.
    granted_columns: ClassVar[frozenset[str]] = GRANTED_FIELDS
    #: Further columns that only verbs of the model write, once a row is stored.
    state_columns: ClassVar[frozenset[str]] = frozenset()
    #: Columns that ``renewal_now`` reads.
    renewal_columns: ClassVar[frozenset[str]] = frozenset({"grant_id", "expires_at"})
    #: The order and the conditions by which lists of its leases are read.
    listing: ClassVar[Listing] = Listing()

    objects: ClassVar[models.Manager[Any]] = LeasableQuerySet.as_manager()

    #: On a row that was just taken over: the expiry of the previous term.
    previous_expired_at: datetime | None = None

    if TYPE_CHECKING:
        # Annotated by with_state(); ``now`` on rows that were just granted, too.
        state: str
        now: datetime
        #: The holder's clock before the request that granted the row was sent.
        sent_at: float

    class Meta:
        abstract = True
        # PostgreSQL compiles every check again for each statement that writes. So the counts, which
        # these checks bound too, are no positive fields, which would have checks of their own.
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
                name="%(app_label)s_%(class)s_ttl", condition=Q(ttl__gt=timedelta(0))
            ),
        ]

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

    def hold(
        self,
        *,
        holder: str | None = None,
        ttl: float | timedelta | None = None,
        wait: Wait = DEFAULT,
        separate: bool = False,
        on_lost: Callable[[Term], object] | None = None,
    ) -> Hold:
        """A hold on this row, for ``with``. Arguments are those of ``LeasableQuerySet.hold``."""
        return (
            type(self)
            .lease_rows()
            .hold(self, holder=holder, ttl=ttl, wait=wait, separate=separate, on_lost=on_lost)
        )

    def renew(self) -> Self:
        """Renew the grant that this instance was acquired or read with, and update the instance:
        see ``LeasableQuerySet.renew``. Raises LeaseLost, LeaseInTransaction."""
        type(self).lease_rows().renew(self)
        return self

    def release(self) -> Self:
        """Release the grant that this instance was acquired or read with: see
        ``LeasableQuerySet.release``. Raises LeaseLost."""
        type(self).lease_rows().release(self)
        return self

    async def arenew(self) -> Self:
        """``renew``, for async code."""
        await type(self).lease_rows().arenew(self)
        return self

    async def arelease(self) -> Self:
        """``release``, for async code. It releases even if it is cancelled while it waits."""
        await type(self).lease_rows().arelease(self)
        return self

    @classmethod
    def lease_rows(cls, using: str | None = None) -> LeasableQuerySet[Any]:
        """Every row, with the verbs: what a default manager hides from some requests is leased
        and renewed like the rest."""
        return verbs_of(cls)(cls, using=using)

    def renewal_now(self) -> Renewal:
        """Return the answer to the holder of this row, which was just renewed and read with
        ``now``."""
        return Renewal(self.expires_at, (self.expires_at - self.now).total_seconds())

    @classmethod
    def leased_model(cls) -> type[Leasable]:
        """The model whose table has the lease: of a proxy another than this one."""
        model: type[Leasable] = cls._meta.concrete_model  # type: ignore[assignment]
        return model

    @property
    def lease_id(self) -> str:
        """Return the id of this row's lease in the API and on pages."""
        model = self.leased_model()
        # As it can stand in an address: what separates its parts is spelled otherwise.
        key = str(self.pk).replace("%", "%25").replace("/", "%2F")
        return f"{lease_kinds().get(model, model._meta.model_name)}:{key}"

    @property
    def lease_resource(self) -> str:
        """Return the name of the leased resource in the API and on pages."""
        return f"{self.leased_model()._meta.label_lower}:{self.pk}"

    def lease_state(self, now: datetime) -> LeaseState:
        """The state of the lease at ``now``, which is the database's clock."""
        if not self.grants:
            return LeaseState.FREE
        if self.released_at is not None:
            return LeaseState.RELEASED
        return LeaseState.ACTIVE if self.expires_at > now else LeaseState.EXPIRED


def leasable_models() -> list[type[Leasable]]:
    """Every installed model whose table has leases, ``Lease`` first."""
    named = apps.get_model("leasing", "Lease")
    found: Iterable[type[models.Model]] = apps.get_models()
    leasable = [model for model in found if issubclass(model, Leasable) and model is not named]
    return [named, *[model for model in leasable if model.leased_model() is model]]


@cache
def lease_kinds() -> Mapping[type[Leasable], str]:
    """For each leasable model but ``Lease`` the first part of its ``lease_id``: the model's name,
    or "app_label.name" where a model before it has that name. The models of this
    distribution have their own names, independent of other apps: the lease of a task is ``task:17``
    everywhere. The others follow in the order of INSTALLED_APPS."""
    kinds: dict[type[Leasable], str] = {}
    for model in sorted(leasable_models(), key=lambda each: not is_ours(each)):
        if model is not apps.get_model("leasing", "Lease"):
            name = str(model._meta.model_name)
            kinds[model] = model._meta.label_lower if name in kinds.values() else name
    return kinds


def _forget_kinds(*, setting: str, **kwargs: Any) -> None:
    if setting == "INSTALLED_APPS":
        lease_kinds.cache_clear()


setting_changed.connect(_forget_kinds, dispatch_uid="leasing.models.lease_kinds")
