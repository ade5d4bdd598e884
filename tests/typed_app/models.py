"""Rows of a bookkeeper. Without migrations: their tables are made for the tests alone."""

from __future__ import annotations

from django.db import models

from leasing import FencedModel
from leasing.models import Leasable


class Invoice(Leasable):
    """An invoice that one clerk at a time works on."""

    customer = models.CharField(max_length=100)
    sent = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"invoice {self.pk}"


class Ledger(FencedModel):
    """A ledger that refuses a bookkeeper who has lost the lease on it."""

    total = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"ledger {self.pk}"
