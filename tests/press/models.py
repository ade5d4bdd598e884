"""Guarded models of a newspaper. Without migrations: its tables are made for the tests alone."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Length

from leasing.fencing import FencedModel


class Author(models.Model):
    """Somebody who writes reports."""

    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


def protecting(model: str, how: Any = models.PROTECT, **options: Any) -> Any:
    """A key of another app's row, which cannot be deleted for as long as this one is there."""
    return models.ForeignKey(model, how, null=True, db_constraint=False, **options)


class Receipt(models.Model):
    """A record of a reader: it stays for as long as this does."""

    # Without constraints of the database: its table is made before those.
    task = protecting("leasing_tasks.Task")
    attempt = protecting("leasing_tasks.TaskAttempt")
    slot = protecting("leasing_tasks.ScheduleSlot", models.RESTRICT)
    message = protecting("leasing_tasks.OutboxMessage", to_field="uid")
    event = protecting("leasing.LeaseEvent")
    entry = protecting("leasing.AuditEntry")

    def __str__(self) -> str:
        return f"receipt {self.pk}"


class Report(FencedModel):
    """A report that one author at a time writes on."""

    title = models.CharField(max_length=100, default="")
    text = models.TextField(default="")
    author = models.ForeignKey(Author, on_delete=models.PROTECT, null=True, default=None)
    saved_at = models.DateTimeField(auto_now=True)
    length = models.GeneratedField(
        expression=Length("text"), output_field=models.IntegerField(), db_persist=True
    )

    def __str__(self) -> str:
        return self.title
