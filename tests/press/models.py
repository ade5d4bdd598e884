"""What a newspaper guards. Without migrations: its tables are made for the tests alone."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Length

from leasing.fencing import FencedModel


class Author(models.Model):
    """Somebody who writes reports."""

    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


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
