"""Rows out of answers to statements that Django did not compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getattr_static
from typing import Any

from django.db import connections, models
from django.db.models.base import ModelState
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import post_init, pre_init

from leasing.db.statements import PLAIN, Marker


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes rows of ``model`` of its columns as the PostgreSQL database ``using`` gives them."""

    model: type[models.Model]
    using: str
    #: Names of the attributes that are asked for, and their SQL behind the table's name, in one
    #: order.
    names: tuple[str, ...]
    columns: tuple[str, ...]
    #: The place of the key.
    key: int
    #: The places of values that fields convert, and how.
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]
    #: Attributes that are not asked for, and what was written there: a value, or the name of one
    #: that a call brings.
    known: tuple[str, ...]
    written: tuple[tuple[str | None, Any], ...]

    def sql(self, table: str) -> str:
        """The columns, of ``table``."""
        return ", ".join([f"{table}.{column}" for column in self.columns])

    def rows(
        self, answers: Sequence[Sequence[Any]], values: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """New instances. ``values`` are what the markers stand for; columns behind those that
        were asked for are left alone."""
        given = values or {}
        written = [given[name] if name else value for name, value in self.written]
        names = (*self.known, *self.names)
        make = _of_attributes if _is_plain(self.model) else _of_columns
        model, using = self.model, self.using
        return [
            make(model, using, zip(names, (*written, *answer), strict=False))
            for answer in self._converted(answers)
        ]

    def read(self, rows: Sequence[Any], answers: Sequence[Sequence[Any]]) -> list[Any]:
        """Write the columns onto those of ``rows`` that were answered, and return these."""
        converted = self._converted(answers)
        if len(rows) == len(answers) == 1:
            found = list(rows)
        else:
            name = self.names[self.key]
            by_key = {getattr(row, name): row for row in rows}
            found = [by_key[answer[self.key]] for answer in converted]
        plain = _has_plain_attributes(self.model)
        for row, answer in zip(found, converted, strict=True):
            read = zip(self.names, answer, strict=False)
            if plain:
                row.__dict__.update(read)
            else:
                for name, value in read:
                    setattr(row, name, value)
        return found

    def _converted(self, answers: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """The answers as the fields would have them."""
        if not self.converters:
            return answers
        converted = [list(answer) for answer in answers]
        for place, convert in self.converters:
            for answer in converted:
                answer[place] = convert(answer[place])
        return converted


def instance_of(model: type[models.Model], using: str, attributes: dict[str, Any]) -> Any:
    """Return the instance that ``from_db`` makes of a row of the database ``using`` with these
    ``attributes``: columns, and annotations."""
    make = _of_attributes if _is_plain(model) else _of_columns
    return make(model, using, attributes.items())


def _of_attributes(
    model: type[models.Model], using: str, attributes: Iterable[tuple[str, Any]]
) -> Any:
    """An instance, in a third of the time that ``from_db`` takes."""
    row = model.__new__(model)
    state = ModelState()
    state.adding, state.db = False, using
    row._state = state
    # One by one: so instances share the names of their attributes, and weigh half.
    for name, value in attributes:
        setattr(row, name, value)
    return row


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


@cache
def reader(model: type[models.Model], using: str, some: frozenset[str] | None = None) -> Reader:
    """Reads the key and the columns called ``some``; None: all columns."""
    fields = model._meta.concrete_fields
    return _reader(model, using, [f for f in fields if some is None or f.name in some])


def reader_after(model: type[models.Model], using: str, written: Mapping[str, Any]) -> Reader:
    """Reads all columns of rows that ``written`` was written to, and does not ask for what need
    not be asked for."""
    known = {
        field.attname: written[field.name]
        for field in model._meta.concrete_fields
        if field.name in written and _comes_back_as_it_is(field, written[field.name])
    }
    asked = [field for field in model._meta.concrete_fields if field.attname not in known]
    return _reader(model, using, asked, known)


def _reader(
    model: type[models.Model], using: str, asked: Sequence[Any], known: Mapping[str, Any] = {}
) -> Reader:
    fields = [f for f in model._meta.concrete_fields if f in asked or f.primary_key]
    connection = connections[using]
    quote = connection.ops.quote_name
    columns = [quote(str(field.column)) for field in fields]
    converters = [(place, _converter(field, using)) for place, field in enumerate(fields)]
    return Reader(
        model,
        using,
        tuple(field.attname for field in fields),
        tuple(columns),
        [field.primary_key for field in fields].index(True),
        tuple((place, convert) for place, convert in converters if convert),
        tuple(known),
        tuple(
            (value.name, None) if isinstance(value, Marker) else (None, value)
            for value in known.values()
        ),
    )


def _converter(field: Any, using: str) -> Callable[[Any], Any] | None:
    """Return the function that makes a value of ``field`` of what the driver brings; None where
    that is the value."""
    column = _column(field)
    # Converters of the database's own belong to one thread's connection; PostgreSQL has none.
    found: list[Callable[..., Any]] = column.get_db_converters(connections[using])
    if not found:
        return None

    def convert(value: Any) -> Any:
        connection = connections[using]
        for each in found:
            value = each(value, column, connection)
        return value

    if type(field) is models.JSONField and field.decoder is None and len(found) == 1:
        return lambda value: {} if value == "{}" else convert(value)  # most are empty
    return convert


def _column(field: Any) -> Any:
    """The column as a query has it: one that refers to another row has that one's converters."""
    return field.get_col(field.model._meta.db_table)


def _comes_back_as_it_is(field: Any, value: Any) -> bool:
    """Return True if ``value``, written to ``field``, would be read back equal, and is of a type
    that no reader can change."""
    if field.primary_key or type(field) not in PLAIN | {models.DateTimeField}:
        return False
    if isinstance(value, Marker):
        return type(value.output_field) in PLAIN
    return value is None or type(field) in PLAIN and type(value) in (int, str)


def _is_plain(model: type[models.Model]) -> bool:
    """Return True if an instance is no more than its attributes, and no receiver is called for new
    ones."""
    for signal in (pre_init, post_init):
        # Most have none at all, and looking for those of a model takes a while.
        if signal.receivers and signal.has_listeners(model):
            return False
    return _has_plain_attributes(model)


@cache
def _has_plain_attributes(model: type[models.Model]) -> bool:
    own: Any = model
    plain: Any = models.Model
    return (
        own.__init__ is plain.__init__
        and own.__new__ is plain.__new__
        and own.from_db.__func__ is plain.from_db.__func__
        and all(
            type(getattr_static(model, field.attname)) is DeferredAttribute
            for field in model._meta.concrete_fields
        )
    )
