"""Statements that Django compiles once and each call fills in.

A compilation takes as long as the statement itself, and brings the same text each time but for the
values. So conditions and columns are compiled with markers in place of values, once for each
model, database and shape, and kept for as long as the process lives.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, TypeVar

from django.db import models
from django.db.models.expressions import Expression

from leasing.runtime import clock
from leasing.validation.terms import Terms

AnyTerms = TypeVar("AnyTerms", bound=Terms)

#: Fields whose values drivers take unchanged; values of others are prepared at each call.
PLAIN = frozenset(
    {
        models.AutoField,
        models.BigAutoField,
        models.BigIntegerField,
        models.CharField,
        models.DurationField,
        models.IntegerField,
        models.PositiveIntegerField,
        models.SmallIntegerField,
        models.UUIDField,
    }
)


class Marker(Expression):
    """Stands in a statement for the value called ``name``, which each call brings."""

    def __init__(self, name: str, output_field: models.Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return "%s", [self]


class Several(Marker):
    """Stands for a list of values of one field, which travels as an array."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return self.sql(connection), [self]

    def sql(self, connection: Any) -> str:
        field: Any = self.output_field
        # Of an array PostgreSQL must be told what it is of: the driver may not know.
        return f"%s::{field.rel_db_type(connection)}[]"


class Unknown(Marker):
    """A marker that Python cannot judge: columns that it chose by the value would be chosen once,
    for all values. It raises TypeError instead, until it is ``settled``: Django asks too."""

    settled = False

    def __bool__(self) -> bool:
        self._refuse()
        return True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Expression):
            self._refuse()
        return super().__eq__(other)

    __hash__ = Marker.__hash__

    def _refuse(self) -> None:
        if not self.settled:
            raise TypeError(f"{self.name} is known to the database alone")


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL, and its parameters with markers among them."""

    sql: str
    params: tuple[Any, ...]

    def filled(self, values: Mapping[str, Any], connection: Any) -> list[Any]:
        """The parameters, with ``values`` in place of the markers."""
        return [
            _value(param, values[param.name], connection) if isinstance(param, Marker) else param
            for param in self.params
        ]


def _value(marker: Marker, value: Any, connection: Any) -> Any:
    field: Any = marker.output_field
    if isinstance(marker, Several):
        if type(field) not in PLAIN:
            value = [field.get_db_prep_value(each, connection=connection) for each in value]
        return array_of(value)
    if type(field) in PLAIN:
        return value
    return field.get_db_prep_value(value, connection=connection)


def array_of(values: list[Any]) -> Any:
    """``values`` as the text of an array, which the driver would take many times as long to make
    of a list; but for kinds whose text only it knows."""
    kind = type(values[0]) if values else None
    if kind is uuid.UUID:
        return joined([value.hex for value in values])
    if kind is int:
        return joined(map(str, values))
    if kind is str:
        escaped = [value.replace("\\", r"\\").replace('"', r"\"") for value in values]
        return joined([f'"{value}"' for value in escaped])
    return values


def joined(values: Iterable[str]) -> str:
    """``values``, which need no quotes, as the text of an array."""
    return "{" + ",".join(values) + "}"


_cache: dict[Hashable, Any] = {}

Made = TypeVar("Made")


def cached_statement(key: Hashable, make: Callable[[], Made]) -> Made:
    """Return the result of the first ``make`` that was called under ``key``."""
    if clock.stand_in is not None:
        return make()  # the time of a test stands in the text
    try:
        made: Made = _cache[key]
    except KeyError:
        made = _cache[key] = make()
    return made


_FIELDS: dict[type, Callable[[], models.Field[Any, Any]]] = {
    dict: models.JSONField,
    int: models.BigIntegerField,
    str: models.CharField,
    timedelta: models.DurationField,
}


def columns_of(
    granting: Callable[[AnyTerms], dict[str, Any]], terms: AnyTerms
) -> dict[str, Any] | None:
    """Return the columns that ``granting`` makes of ``terms``, with markers in place of their
    values, but for those that are None. None when it needs to know a value, or when the type of one
    is unknown here."""
    given = ((field.name, getattr(terms, field.name)) for field in fields(terms))
    try:
        markers: dict[str, Any] = {
            name: Unknown(name, _FIELDS[type(value)]())
            for name, value in given
            if value is not None
        }
        columns = granting(replace(terms, **markers))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    for marker in markers.values():
        marker.settled = True
    return columns


def values_of(terms: Terms) -> dict[str, Any]:
    """Return the values for the markers of ``columns_of``."""
    return {name: getattr(terms, name) for name in type(terms).__dataclass_fields__}


def shape_of(values: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return the part of ``values`` that decides the text of a statement."""
    return tuple([value is None for value in values.values()])
