"""The ledger of what happened to leases."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import F

from leasing.db.routing import RoutedManager
from leasing.functions import DbNow
from leasing.models.guarded import Ledger
from leasing.models.leasable import Leasable
from leasing.querysets.events import LeaseEventQuerySet

#: The greatest length of a model's label, as Django has it, and of the key of a row that is leased:
#: in the ledger's index both must find room, in PostgreSQL's 2,700 bytes.
MAX_LABEL = 201
MAX_KEY = 400


class EventKind(models.TextChoices):
    """Kinds of events of a lease."""

    ACQUIRED = "acquired"
    TAKEN_OVER = "taken_over", "Taken over"
    RELEASED = "released"
    REVOKED = "revoked"
    PREEMPTED = "preempted"
    LOST = "lost"
    REFUSED = "refused", "Write refused"


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
