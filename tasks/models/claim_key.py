"""Keys of claims that were answered."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from leasing.functions import DbNow
from tasks.querysets.claim_key import ClaimKeyQuerySet


class ClaimKey(models.Model):
    """The key of a claim that may be sent again: its repetition claims nothing more."""

    request_id = models.UUIDField(primary_key=True)
    answered_at = models.DateTimeField(db_default=DbNow(), db_index=True)

    objects: ClassVar = ClaimKeyQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.request_id)
