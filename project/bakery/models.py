"""Ovens, whose rows refuse the writes of bakers that have lost their lease."""

from __future__ import annotations

from django.db import models

from leasing import FencedModel


class Oven(FencedModel):
    """An oven, and how much was baked in it."""

    name = models.CharField(max_length=50, unique=True)
    loaves = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name
