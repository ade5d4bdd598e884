"""Queues: whether they are paused."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from tasks.querysets import QueueQuerySet


class Queue(models.Model):
    """The state of a queue apart from its tasks: paused or not. Without a row it is not paused."""

    name = models.CharField(max_length=200, primary_key=True)
    #: No task of it is claimed while this is set.
    paused_at = models.DateTimeField(null=True, default=None)
    paused_by = models.CharField(max_length=200, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="")

    objects: ClassVar = QueueQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        permissions: ClassVar = [("pause_queue", "Can pause and resume a queue")]

    def __str__(self) -> str:
        return self.name
