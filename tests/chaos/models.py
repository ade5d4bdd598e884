"""Rows that workloads write. Without migrations: the tables are made for a run."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from leasing import FencedModel
from leasing.fencing import FencedQuerySet


class Register(FencedModel):
    """A number that is read, raised by one and written back, with the name of the write."""

    name = models.CharField(max_length=100, unique=True)
    count = models.IntegerField(default=0)
    last = models.CharField(max_length=100, default="")

    objects: ClassVar[models.Manager[Register]] = FencedQuerySet.as_manager()  # type: ignore[assignment]

    def __str__(self) -> str:
        return self.name
