"""Rows that workloads write. Without migrations: the tables are made for a run."""

from __future__ import annotations

from django.db import models

from leasing import FencedModel


class Register(FencedModel):
    """A list of the writes that were accepted, in order; read, changed and written back."""

    name = models.CharField(max_length=100, unique=True)
    writes = models.JSONField(default=list)

    def __str__(self) -> str:
        return self.name
