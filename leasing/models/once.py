"""Results kept by ``once``."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasing.functions import EPOCH
from leasing.models.leasable import Leasable, Listing
from leasing.querysets.once import OnceQuerySet
from leasing.querysets.saving import LEASE_FIELDS


class OnceKey(Leasable):
    """A piece of work that is done once a window: see ``leasing.idempotency``."""

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(max_length=200, unique=True, editable=False)
    #: Of the arguments: the same key with others is refused.
    payload_hash = models.CharField(max_length=64, blank=True, default="", editable=False)
    result = models.JSONField(null=True, default=None, editable=False)
    finished_at = models.DateTimeField(null=True, default=None, editable=False)
    #: The end of the window, after which the work may be done again.
    window_ends_at = models.DateTimeField(default=EPOCH, editable=False)
    #: How often the work was begun in this window: ``grants`` counts those of all windows.
    attempts = models.IntegerField(default=0, editable=False)
    #: The operator who gave the result; empty if the work did.
    settled_by = models.CharField(max_length=200, blank=True, default="", editable=False)

    verb_columns = LEASE_FIELDS | {
        *("payload_hash", "result", "finished_at", "window_ends_at", "attempts", "settled_by")
    }
    listing = Listing(named_by=frozenset({"key"}))
    audit_name = "key"

    objects: ClassVar = OnceQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        verbose_name = "result kept by once"
        verbose_name_plural = "results kept by once"
        permissions: ClassVar = [("settle_oncekey", "Can give a result in place of the work")]
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
