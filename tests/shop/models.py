"""Leasable models of a shop. Without migrations: its tables are made for the tests alone."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from leasing.models import Leasable


class Order(Leasable):
    """An order that one packer at a time works on."""

    article = models.CharField(max_length=100)
    packed = models.BooleanField(default=False)

    class Meta(Leasable.Meta):
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.article
