"""Columns of the admin under the names, and in the form, that the pages give them: a page of the
admin shows a diagnosis as well, and has one form of date."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from django.contrib.admin.utils import display_for_field
from django.db.models import DateTimeField, DurationField, Field, Model
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasing.humanize import span, stamp

#: Shown where there is no value.
NOTHING: Final = "–"
#: Names of columns, except those of moments, whose names are their own without "at".
NAMES: Final = {
    "at": "time",
    "by": "user",
    "verb": "action",
    "id": "ID",
    "ttl": "TTL",
    "grant_id": "grant ID",
    "pid": "PID",
}


def stamped(moment: datetime) -> SafeString:
    """Return ``moment`` as pages write it; in a narrow column the time stands below the date."""
    date, time = stamp(moment).split(" ", 1)
    whole = '<span class="leasing-whole">{}</span>'
    return format_html(f"{whole} {whole}", date, time)


class Column:
    """A column of a model, for ``list_display``, ``fields`` and ``readonly_fields``."""

    def __init__(self, field: Field[Any, Any], label: str) -> None:
        self._field = field
        self.__name__ = field.name
        self.short_description = label

    def __call__(self, row: Model) -> Any:
        value = getattr(row, self._field.name)
        if isinstance(value, datetime):
            return stamped(value)
        if isinstance(value, timedelta):
            return span(value)
        return display_for_field(value, self._field, NOTHING)


@cache
def column_of(model: type[Model], name: str, label: str = "") -> Column | str:
    """Return a column as pages show it. It is ``name`` itself for what Django shows as pages do,
    and for methods.

    Args:
        model: The model of the rows.
        name: The name of the column, or of a method of the admin.
        label: Its label; the usual one by default.
    """
    field = next((each for each in model._meta.fields if each.name == name), None)
    if field is None:
        return name
    said = label or NAMES.get(name, "")
    if isinstance(field, DateTimeField | DurationField):
        said = said or name.removesuffix("_at").replace("_", " ")
    return Column(field, said) if said else name
