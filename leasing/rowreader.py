"""Rows out of answers to statements that Django did not send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connections, models


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes rows of ``model`` of its columns as the database ``using`` gives them."""

    model: type[models.Model]
    using: str
    #: Names of the attributes, and of the columns as they stand in SQL, in one order.
    names: tuple[str, ...]
    columns: tuple[str, ...]
    #: The place of the key.
    key: int
    #: What the fields make of a value: place, converters, and what they ask for.
    converters: tuple[tuple[int, list[Callable[..., Any]], Any], ...]

    def sql(self, table: str) -> str:
        """The columns, of ``table``."""
        return ", ".join([f"{table}.{column}" for column in self.columns])

    def row(self, answer: Sequence[Any]) -> Any:
        """A new instance."""
        return self.model.from_db(self.using, self.names, self._converted(answer))

    def read(self, row: Any, answer: Sequence[Any]) -> None:
        """Write the columns onto ``row``."""
        for name, value in zip(self.names, self._converted(answer), strict=False):
            setattr(row, name, value)

    def _converted(self, answer: Sequence[Any]) -> list[Any]:
        values = list(answer)
        if self.converters:
            connection = connections[self.using]
            for place, converters, column in self.converters:
                for convert in converters:
                    values[place] = convert(values[place], column, connection)
        return values


@cache
def reader(model: type[models.Model], using: str, some: frozenset[str] | None = None) -> Reader:
    """Reads the key and the columns called ``some``; None: all columns."""
    fields: list[Any] = [
        field
        for field in model._meta.concrete_fields
        if some is None or field.primary_key or field.name in some
    ]
    quote = connections[using].ops.quote_name
    # Converters of the database's own belong to one thread's connection; PostgreSQL has none.
    converters = [(field.get_db_converters(connections[using]), field) for field in fields]
    return Reader(
        model,
        using,
        tuple(field.attname for field in fields),
        tuple(quote(field.column) for field in fields),
        [field.primary_key for field in fields].index(True),
        tuple(
            (place, found, field.cached_col)
            for place, (found, field) in enumerate(converters)
            if found
        ),
    )
