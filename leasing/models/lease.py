"""``Lease``: named resources."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Unpack

from django.db import models

from leasing.functions import DbNow
from leasing.holding import Hold
from leasing.models.leasable import Leasable, Listing
from leasing.querysets.lease import LeaseQuerySet
from leasing.querysets.saving import GRANTED_FIELDS, LEASE_FIELDS
from leasing.store import HoldOptions, Renewal


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
        renewal = super().renewal_now()
        is_last = self.ends_at is not None and self.expires_at >= self.ends_at
        return Renewal(renewal.expires_at, renewal.remaining, self.yield_to, is_last)

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
