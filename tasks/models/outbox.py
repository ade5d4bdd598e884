"""The outbox: messages that users publish with their transactions."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q

from leasing.functions import DbNow
from tasks.querysets.outbox import OutboxQuerySet


class OutboxMessage(models.Model):
    """A message of a user's own, stored by ``tasks.outbox.publish``."""

    id = models.BigAutoField(primary_key=True)
    #: By which a consumer knows it again.
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    topic = models.CharField(max_length=200)
    #: Messages of one key are published in the order of their ids; empty: in any.
    key = models.CharField(max_length=200, blank=True, default="")
    #: All messages of a key are in one of BUCKETS; that of a message without a key is random.
    bucket = models.SmallIntegerField(editable=False)
    payload = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())
    #: The moment at which a relay recorded that the receiver has it.
    published_at = models.DateTimeField(null=True, default=None)
    #: The number of failed sends; the error; and the moment of the next try.
    failures = models.IntegerField(default=0)
    last_error = models.TextField(blank=True, default="")
    due_at = models.DateTimeField(null=True, default=None)

    objects: ClassVar = OutboxQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("retry_outboxmessage", "Can retry a refused message"),
            ("discard_outboxmessage", "Can discard an unpublished message"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["bucket", "id"],
                name="leasing_tasks_outbox_pending",
                condition=Q(published_at=None),
            ),
            models.Index(
                fields=["key"],
                name="leasing_tasks_outbox_waiting",
                condition=Q(due_at__isnull=False),
            ),
            models.Index(
                fields=["published_at", "id"],
                name="leasing_tasks_outbox_published",
                condition=Q(published_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.uid}"
