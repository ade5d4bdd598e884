"""Rows out of answers to statements that Django did not compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from inspect import getattr_static
from keyword import iskeyword
from operator import attrgetter
from typing import Any

from django.db import connections, models
from django.db.models.base import ModelState
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import post_init, pre_init

from leasing.db.cached_cursors import fetch_all
from leasing.db.statements import (
    array_as,
    cached_statement,
    moment,
    own_field,
    quoted,
    table_of,
    type_of,
)
from leasing.functions import DbNow

#: Writes values to attributes of a row.
Assign = Callable[[Any, Iterable[Any]], None]
#: Makes a value of what the driver brings, and of the connection that it came over.
Conversion = Callable[[Any, Any], Any]
#: The places of values that fields convert, and how.
Conversions = tuple[tuple[int, Conversion], ...]


class Reader:
    """Makes rows of ``model`` of what the PostgreSQL database ``using`` answers.

    Args:
        model: The model.
        using: The alias of the database.
        some: The names of the columns that are read, besides the key; None: all.
        more: Attributes whose values are read behind the columns.
        alike: Names of columns with one value for the whole statement (its moments). Only the first
            row returns them; the others are filled in here.
        known: Attributes whose values each call knows: their columns are not read.
    """

    def __init__(
        self,
        model: type[models.Model],
        using: str,
        some: frozenset[str] | None = None,
        more: tuple[str, ...] = (),
        alike: frozenset[str] = frozenset(),
        known: tuple[str, ...] = (),
    ) -> None:
        self._model, self._using, self._more = model, using, more
        asked = [f for f in model._meta.concrete_fields if f.attname not in known]
        fields = [f for f in asked if some is None or f.name in some or f.primary_key]
        quote = connections[using].ops.quote_name
        #: Names of the attributes, and of their columns, in one order; and the place of the key.
        self._names = tuple(field.attname for field in fields)
        self._columns = tuple(quote(str(field.column)) for field in fields)
        self.key = [field.primary_key for field in fields].index(True)
        self._conversions = conversions_of(map(_column, fields), using)
        self._alike = tuple(place for place, f in enumerate(fields) if f.column in alike)
        self._equal_names = *(self._names[place] for place in self._alike), *known
        self._begin = assignment((*self._names, *more, *self._equal_names))
        self._update = assignment((*self._names, *self._equal_names))

    def sql(self, table: str, among: str = "") -> str:
        """The columns, of ``table``: of the rows of the query ``among``, where some are alike."""
        columns = [f"{table}.{column}" for column in self._columns]
        key = self._columns[self.key]
        for place in self._alike:
            is_first = f"{table}.{key} = (SELECT {key} FROM {among} LIMIT 1)"
            columns[place] = f"CASE WHEN {is_first} THEN {columns[place]} END"
        return ", ".join(columns)

    def rows(self, answers: Sequence[Sequence[Any]], known: Iterable[Any] = ()) -> list[Any]:
        """Return new instances. ``known`` are the values of the attributes that were not read."""
        if self._conversions:
            answers = convert(answers, self._conversions, connections[self._using])
        equal = [*self._equal(answers), *known] if self._alike else [*known]
        if not _is_plain(self._model):
            names = (*self._names, *self._more)
            alike = [*zip(self._equal_names, equal, strict=True)]
            return [
                _of_columns(self._model, self._using, [*zip(names, answer, strict=True), *alike])
                for answer in answers
            ]
        rows = []
        for answer in answers:
            row = _empty(self._model, self._using)
            self._begin(row, (*answer, *equal))
            rows.append(row)
        return rows

    def read(self, rows: Sequence[Any], answers: Sequence[Sequence[Any]]) -> list[Any]:
        """Write the columns onto those of ``rows`` that were answered, and return these. What is
        read behind the columns is left alone."""
        if self._conversions:
            answers = convert(answers, self._conversions, connections[self._using])
        if len(rows) == len(answers) == 1:
            found = list(rows)
        else:
            by_key = dict(zip(map(attrgetter(self._names[self.key]), rows), rows, strict=True))
            found = [by_key[answer[self.key]] for answer in answers]
        width, equal = len(self._names), self._equal(answers) if self._alike else ()
        for row, answer in zip(found, answers, strict=True):
            self._update(row, (*answer[:width], *equal))
        return found

    def _equal(self, answers: Sequence[Sequence[Any]]) -> list[Any]:
        """The values of what is alike in all rows."""
        return [
            next((answer[place] for answer in answers if answer[place] is not None), None)
            for place in self._alike
        ]


#: One for all calls that need an equal one.
reader = cache(Reader)


def read_by(
    model: type[models.Model],
    using: str,
    column: str,
    values: Iterable[Any],
    some: frozenset[str] | None = None,
) -> list[Any]:
    """Return the rows of ``model`` whose ``column`` is one of ``values``, with the database's clock
    as ``now``. On PostgreSQL nothing is compiled, and instances take a third of the time.

    Args:
        model: The model.
        using: The alias of the database.
        column: The name of a field, or "pk".
        values: What is looked for.
        some: The names of the columns that are read, besides the key; None: all.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        found: Any = models.QuerySet(model, using=using).filter(**{f"{column}__in": list(values)})
        found = found if some is None else found.only("pk", *some)
        return list(found.annotate(now=DbNow()))
    read = reader(model, using, some, ("now",))
    named: Any = model._meta.pk if column == "pk" else model._meta.get_field(column)
    field = own_field(named)

    def make() -> str:
        return (
            f"SELECT {read.sql('t')}, {moment(DbNow, connection)} FROM {table_of(model)} AS t"
            f" WHERE t.{quoted(named.column)} = ANY(%s::{type_of(field, connection)}[])"
        )

    text = cached_statement((read_by, read, column), make)
    return read.rows(fetch_all(connection, text, [array_as(field, values, connection)]))


def convert(
    answers: Sequence[Sequence[Any]], conversions: Conversions, connection: Any
) -> Sequence[Sequence[Any]]:
    """Return the ``answers`` that came over ``connection`` as the fields would have them."""
    if not conversions:
        return answers
    converted = [list(answer) for answer in answers]
    for place, conversion in conversions:
        for answer in converted:
            answer[place] = conversion(answer[place], connection)
    return converted


def conversions_of(columns: Iterable[Any], using: str) -> Conversions:
    """Return the conversions of what the PostgreSQL database ``using`` brings of ``columns``:
    resolved expressions. They may be kept."""
    each = ((place, _conversion(column, using)) for place, column in enumerate(columns))
    return tuple((place, conversion) for place, conversion in each if conversion)


def instance_of(model: type[models.Model], using: str, attributes: dict[str, Any]) -> Any:
    """Return the instance that ``from_db`` makes of a row of the database ``using`` with these
    ``attributes``: columns, and annotations."""
    if not _is_plain(model):
        return _of_columns(model, using, attributes.items())
    row = _empty(model, using)
    assignment(tuple(attributes))(row, attributes.values())
    return row


def _empty(model: type[models.Model], using: str) -> Any:
    """An instance without attributes. To write them takes a tenth of the time of ``from_db``."""
    row = model.__new__(model)
    state = ModelState()
    state.adding, state.db = False, using
    row._state = state
    return row


@cache
def assignment(names: tuple[str, ...]) -> Assign:
    """Return a function that writes as many values to the attributes called ``names``.

    Each is spelled out, which takes a fifth of the time of a loop; and the rows share the names of
    their attributes, and weigh less than with a dictionary of their own.
    """
    if not all(name.isidentifier() and not iskeyword(name) for name in names):
        return partial(_assign_each, names)
    targets = "".join(f"row.{name}, " for name in names)
    scope: dict[str, Any] = {}
    exec(f"def assign(row, values):\n    {targets}= values", scope)
    assign: Assign = scope["assign"]
    return assign


def _assign_each(names: tuple[str, ...], row: Any, values: Iterable[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(row, name, value)


def _of_columns(
    model: type[models.Model], using: str, attributes: Iterable[tuple[str, Any]]
) -> Any:
    given = dict(attributes)
    names = [field.attname for field in model._meta.concrete_fields]
    asked = [name for name in names if name in given]
    row = model.from_db(using, asked, [given[name] for name in asked])
    for name in given.keys() - asked:
        setattr(row, name, given[name])
    return row


def _conversion(column: Any, using: str) -> Conversion | None:
    """Return the function that makes a value of ``column`` of what the driver brings; None where
    that is the value."""
    # Converters of the database's own belong to one thread's connection; PostgreSQL has none.
    found: list[Callable[..., Any]] = column.get_db_converters(connections[using])
    if not found:
        return None

    def conversion(value: Any, connection: Any) -> Any:
        for each in found:
            value = each(value, column, connection)
        return value

    field = column.output_field
    if type(field) is not models.JSONField or field.decoder is not None or len(found) > 1:
        return conversion

    def from_json(value: Any, connection: Any) -> Any:
        # Most are empty.
        return {} if value == "{}" else value and conversion(value, connection)

    return from_json


def _column(field: Any) -> Any:
    """The column as a query has it: one that refers to another row has that one's converters."""
    return field.get_col(field.model._meta.db_table)


def _is_plain(model: type[models.Model]) -> bool:
    """Return True if an instance is no more than its attributes, and no receiver is called for new
    ones."""
    for signal in (pre_init, post_init):
        # Most have none at all, and looking for those of a model takes a while.
        if signal.receivers and signal.has_listeners(model):
            return False
    return _has_plain_attributes(model)


#: Attributes that set no more than their column; that of a foreign key also drops the row it has
#: read, of which a new instance has none.
PLAIN_ATTRIBUTES: tuple[Any, ...] = (DeferredAttribute, ForeignKeyDeferredAttribute)


@cache
def _has_plain_attributes(model: type[models.Model]) -> bool:
    own: Any = model
    plain: Any = models.Model
    return (
        own.__init__ is plain.__init__
        and own.__new__ is plain.__new__
        and own.from_db.__func__ is plain.from_db.__func__
        and all(
            type(getattr_static(model, field.attname)) in PLAIN_ATTRIBUTES
            for field in model._meta.concrete_fields
        )
    )
