"""Statements that Django compiles once and each call fills in.

A compilation takes as long as the statement itself, and brings the same text each time but for the
values. So conditions and columns are compiled with markers in place of values, once for each
model, database and shape, and kept for as long as the process lives.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from django.db import models
from django.db.models import F, Func
from django.db.models.expressions import Expression

from leasing.runtime import clock

#: Makes a parameter of a value, for a connection.
Preparation = Callable[[Any, Any], Any]

#: Fields whose values PostgreSQL's drivers take unchanged; values of others are prepared at each
#: call.
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


def _interval(value: Any, connection: Any) -> Any:
    return _text_of(value) if type(value) is timedelta else value


@lru_cache(maxsize=64)
def _text_of(value: timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _hexadecimal(value: Any, connection: Any) -> Any:
    return f"{value.int:032x}" if type(value) is uuid.UUID else value


def _json(value: Any, connection: Any) -> str:
    return "{}" if value == {} else json.dumps(value)  # most are empty


#: Kinds of values that are sent as text: their type in SQL, and what makes the text. The drivers
#: look up each time how to, and are slow in Python.
_AS_TEXT: Mapping[type, tuple[str, Preparation]] = {
    models.DurationField: ("interval", _interval),
    models.UUIDField: ("uuid", _hexadecimal),
}


class Marker(Expression):
    """Stands in a statement for the value called ``name``, which each call brings."""

    def __init__(self, name: str, output_field: models.Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return "%s", [self]

    def as_postgresql(self, compiler: Any, connection: Any) -> Any:
        text = _as_text(self.output_field)
        return ("%s" if text is None else f"%s::{text[0]}"), [self]

    def preparation(self, connection: Any) -> Preparation | None:
        """Return the function that makes a parameter of a value; None: it is the value."""
        field: Any = self.output_field
        if connection.vendor == "postgresql":
            if text := _as_text(field):
                return text[1]
            if type(field) in PLAIN:
                return None
        return partial(_prepared, field)


class Several(Marker):
    """Stands for a list of values of one field, which travels as an array."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        return self.sql(connection), [self]

    as_postgresql = as_sql

    def sql(self, connection: Any) -> str:
        field: Any = self.output_field
        # Of an array PostgreSQL must be told what it is of: the driver may not know. The length of
        # a text is left out: PostgreSQL would apply it to every element, again for each row.
        kind = re.sub(r"^varchar\(\d+\)$", "varchar", field.rel_db_type(connection))
        return f"%s::{kind}[]"

    def preparation(self, connection: Any) -> Preparation | None:
        if type(self.output_field) in PLAIN:
            return lambda values, connection: array_of(values)
        return partial(_prepared_array, self.output_field)


class Spelled(Func):
    """SQL with a place, ``{}``, for each of its expressions."""

    def __init__(self, text: str, *expressions: Any, output_field: Any) -> None:
        super().__init__(*expressions, output_field=output_field)
        self.text = text

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:
        parts = [compiler.compile(each) for each in self.get_source_expressions()]
        params = [param for _, own in parts for param in own]
        return self.text.format(*[text for text, _ in parts]), params


def is_one_of(column: str, values: Any) -> Spelled:
    """The condition that ``column`` is among ``values``, an array."""
    # Not a lookup, which Django would put in brackets that ANY does not allow.
    return Spelled("{} = ANY({})", F(column), values, output_field=models.BooleanField())


class Statement:
    """SQL, and how its parameters are made of the values of a call."""

    __slots__ = ("_params", "is_kept", "sql")

    def __init__(
        self, sql: str, params: Iterable[Any], connection: Any, *, is_kept: bool = True
    ) -> None:
        """Args:
        sql: The text, with "%s" in place of parameters.
        params: Constants, and markers of what each call brings.
        connection: The kind of database that it is for.
        is_kept: True if it is sent time and again. PostgreSQL's text has the constants in it then:
            whoever plans it knows them, and nobody prepares them.
        """
        if is_kept and connection.vendor == "postgresql":
            sql, params = _with_constants(sql, params, connection)
        self.sql = sql
        self.is_kept = is_kept
        #: The name and the preparation of a value; or None, and a constant.
        self._params = [
            (param.name, param.preparation(connection))
            if isinstance(param, Marker)
            else (None, param)
            for param in params
        ]

    def filled(self, values: Mapping[str, Any], connection: Any) -> list[Any]:
        """The parameters, with ``values`` in place of the markers."""
        return [
            (values[name] if given is None else given(values[name], connection))
            if name is not None
            else given
            for name, given in self._params
        ]


def _with_constants(sql: str, params: Iterable[Any], connection: Any) -> tuple[str, list[Marker]]:
    """The same with constants in the text, and markers alone as parameters."""
    left = iter(params)
    markers: list[Marker] = []

    def literal(place: re.Match[str]) -> str:
        if place[0] == "%%":
            return "%%"
        param = next(left)
        if isinstance(param, Marker):
            markers.append(param)
            return "%s"
        return str(connection.ops.compose_sql("%s", [param])).replace("%", "%%")

    return re.sub("%[s%]", literal, sql), markers


def _as_text(field: Any) -> tuple[str, Preparation] | None:
    if type(field) is models.JSONField and field.encoder is None:
        return "jsonb", _json
    return _AS_TEXT.get(type(field))


def _prepared(field: Any, value: Any, connection: Any) -> Any:
    return field.get_db_prep_value(value, connection=connection)


def _prepared_array(field: Any, values: Iterable[Any], connection: Any) -> Any:
    return array_of([_prepared(field, value, connection) for value in values])


def array_of(values: list[Any]) -> Any:
    """``values`` as the text of an array, which the driver would take many times as long to make
    of a list; but for kinds whose text only it knows."""
    if not values:
        return "{}"
    kind = type(values[0])
    if kind is uuid.UUID:
        digits = b"".join([value.int.to_bytes(16) for value in values]).hex()
        return joined([digits[n : n + 32] for n in range(0, len(digits), 32)])
    if kind is int:
        return joined(map(str, values))
    if kind is str:
        text = '","'.join(values)
        if "\\" not in text and text.count('"') == 2 * len(values) - 2:
            return f'{{"{text}"}}'  # as most names are
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
