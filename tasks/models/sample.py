"""Samples: figures of each queue, for the charts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from django.db import models

from leasing.db.routing import RoutedManager
from leasing.humanize import stamp


class Sample(models.Model):
    """The events of one queue in ten seconds: see ``tasks.maintenance.sampling``. The row of no
    queue ("") is about the leases of all."""

    SLOT = 10
    #: A duration is stored as the exponent of this base, so a percentile is exact to 10 %.
    BASE = 1.2

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=200)
    #: The beginning of its ten seconds: seconds since 1970 by the database's clock, a multiple of
    #: ten.
    slot = models.BigIntegerField()
    # At the end of the slot, counted up to ``leasing.web.counts.COUNT_CAP``; null where nobody
    # looked.
    ready = models.PositiveIntegerField(null=True, default=None)
    scheduled = models.PositiveIntegerField(null=True, default=None)
    running = models.PositiveIntegerField(null=True, default=None)
    #: The seconds for which the oldest due task had waited then; 0 for none and in a paused queue.
    oldest = models.FloatField(null=True, default=None)
    # In the slot.
    enqueued = models.PositiveIntegerField(default=0)
    claimed = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    #: Failed for good, and cancelled.
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    #: Attempts that failed and are followed by another, and attempts whose holder was gone.
    retried = models.PositiveIntegerField(default=0)
    recovered = models.PositiveIntegerField(default=0)
    #: Seconds from being due to being claimed, of what was claimed in the slot; null for nothing.
    wait_p50 = models.FloatField(null=True, default=None)
    wait_p95 = models.FloatField(null=True, default=None)
    #: The attempts that ended in the slot, by the name of the handler: see
    #: ``tasks.diagnosis.handlers``. Null for none.
    handlers = models.JSONField(null=True, default=None)
    # Of leases: those of the queue's tasks; in the row of no queue all others, and every renewal.
    renewals = models.PositiveIntegerField(default=0)
    expirations = models.PositiveIntegerField(default=0)
    releases = models.PositiveIntegerField(default=0)

    objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["slot", "queue"], name="leasing_tasks_sample_once"),
        ]

    def __str__(self) -> str:
        return f"{self.queue or 'leases'} at {stamp(self.at)}"

    @property
    def at(self) -> datetime:
        """Return the beginning of its ten seconds."""
        return datetime.fromtimestamp(self.slot, UTC)
