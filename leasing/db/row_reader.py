"""Rows out of answers to statements that Django did not compile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import getattr_static
from typing import Any

from django.db import connections, models
from django.db.models.base import ModelState
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.query_utils import DeferredAttribute
from django.db.models.signals import post_init, pre_init

from leasing.db.statements import (
    PLAIN,
    array_as,
    cached_statement,
    fetch_all,
    moment,
    own_field,
    quoted,
    table_of,
    type_of,
)
from leasing.functions import DbNow

#: Fields of values that several rows may share, for nothing can change them.
SHARED = PLAIN | {models.DateTimeField}


class Reader:
    """Makes rows of ``model`` of what the PostgreSQL database ``using`` answers.

    Args:
        model: The model.
        using: The alias of the database.
        some: The names of the columns that are read, besides the key; None: all.
        more: Attributes whose values are read behind the columns.
        alike: The names of columns that have one value in all rows of an answer. Only one row
            returns them; those of other kinds than SHARED are in every row all the same. PostgreSQL
            and the driver are slow at timestamps and intervals, which are half of an answer.
    """

    def __init__(
        self,
        model: type[models.Model],
        using: str,
        some: frozenset[str] | None = None,
        more: tuple[str, ...] = (),
        alike: frozenset[str] = frozenset(),
    ) -> None:
        self._model, self._using = model, using
        fields = [
            field
            for field in model._meta.concrete_fields
            if some is None or field.name in some or field.primary_key
        ]
        quote = connections[using].ops.quote_name
        #: Names of the attributes, and of their columns, in one order; and the place of the key.
        self._names = *(field.attname for field in fields), *more
        self._columns = tuple(quote(str(field.column)) for field in fields)
        self.key = [field.primary_key for field in fields].index(True)
        #: True if to set one of these attributes does nothing else.
        self._is_plain = model.__setattr__ is models.Model.__setattr__ and all(
            type(getattr_static(model, field.attname)) is DeferredAttribute for field in fields
        )
        #: The places and names of what one row returns, and of what each returns.
        self._alike = [
            (place, field.attname)
            for place, field in enumerate(fields)
            if field.column in alike and type(field) in SHARED
        ]
        self._own = [each for each in enumerate(self._names) if each not in self._alike]
        #: To copy this and to replace its values takes half the time of a new dictionary.
        self._blank: dict[str, Any] = dict.fromkeys(self._names)
        #: The places of values of which the driver brings something else, and what makes them.
        self._conversions = []
        for place, field in enumerate(fields):
            # As a query has it: one that refers to another row has that one's converters.
            column = field.get_col(model._meta.db_table)
            # Converters of the database's own belong to one thread's connection; PostgreSQL has
            # none.
            if found := column.get_db_converters(connections[using]):
                kind = column.output_field
                is_json = type(kind) is models.JSONField and kind.decoder is None
                self._conversions.append((place, column, found, is_json and len(found) == 1))

    def sql(self, table: str, among: str = "") -> str:
        """Return the columns of ``table`` for a SELECT whose rows are those of ``among``."""
        columns = [f"{table}.{column}" for column in self._columns]
        key = self._columns[self.key]
        for place, _ in self._alike:
            is_first = f"{table}.{key} = (SELECT {key} FROM {among} LIMIT 1)"
            columns[place] = f"CASE WHEN {is_first} THEN {columns[place]} END"
        return ", ".join(columns)

    def rows(
        self, answers: Sequence[Sequence[Any]], onto: Mapping[Any, Any] | None = None
    ) -> list[Any]:
        """Return the rows of ``answers``. What is read behind columns and attributes is left alone.

        Args:
            answers: What PostgreSQL answered.
            onto: Instances that were asked for, by their keys: the columns are written onto those
                that were answered. None: all are new ones.
        """
        if self._conversions:
            connection = connections[self._using]
            answers = converted = [list(answer) for answer in answers]
            for place, column, converters, is_json in self._conversions:
                for values in converted:
                    if is_json and values[place] == "{}":  # as most are
                        values[place] = {}
                        continue
                    for convert in converters:
                        values[place] = convert(values[place], column, connection)
        alike, own = self._alike, self._own
        same: dict[str, Any] = {}
        for answer in answers if alike else ():
            if any(answer[place] is not None for place, _ in alike):
                same = {name: answer[place] for place, name in alike}
                break
        if onto is None:
            new, blank = [], (self._blank | same if same else self._blank)
            for answer in answers:
                attributes = blank.copy()
                for place, name in own:
                    attributes[name] = answer[place]
                new.append(instance_of(self._model, self._using, attributes))
            return new
        is_one = len(onto) == len(answers) == 1
        found = list(onto.values()) if is_one else [onto[answer[self.key]] for answer in answers]
        # Not by a dictionary for each, as above: a hundred would take a sixth more of the process.
        for row, answer in zip(found, answers, strict=True):
            if self._is_plain and type(row) is self._model:
                attributes = row.__dict__
                for place, name in own:
                    attributes[name] = answer[place]
                attributes.update(same)
                continue
            for place, name in own:
                setattr(row, name, answer[place])
            for name, value in same.items():
                setattr(row, name, value)
        return found


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


def instance_of(model: type[models.Model], using: str, attributes: dict[str, Any]) -> Any:
    """Return the instance that ``from_db`` makes of a row of the database ``using``, in a tenth of
    its time. It keeps ``attributes``: columns, and annotations."""
    # Most signals have no receiver at all, and looking for those of a model takes a while.
    if (
        (pre_init.receivers and pre_init.has_listeners(model))
        or (post_init.receivers and post_init.has_listeners(model))
        or not _has_plain_attributes(model)
    ):
        names = [field.attname for field in model._meta.concrete_fields]
        asked = [name for name in names if name in attributes]
        row = model.from_db(using, asked, [attributes[name] for name in asked])
        for name in attributes.keys() - asked:
            setattr(row, name, attributes[name])
        return row
    row = model.__new__(model)
    state = ModelState()
    state.adding, state.db = False, using
    attributes["_state"] = state
    row.__dict__ = attributes
    return row


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
