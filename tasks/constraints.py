"""Constraints that Django has no name for."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q


class UniqueWhereSet(models.UniqueConstraint):
    """No two rows have the same in ``field``; any number of rows have nothing there.

    Every unique constraint permits many nulls. This one leaves them out of its index where
    the database can, and so costs nothing until the field is set; elsewhere it is a plain one.
    ``unique=True`` on a text would also make a second index, for searches by prefix.
    """

    def __init__(self, *, field: str, name: str) -> None:
        super().__init__(fields=[field], name=name, condition=Q(**{f"{field}__isnull": False}))
        #: The same in the form that every database has.
        self.plain = models.UniqueConstraint(fields=[field], name=name)

    def deconstruct(self) -> Any:
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, (), {"field": self.fields[0], "name": self.name}

    def _form(self, schema_editor: Any) -> Any:
        """Return the constraint that is made in a database."""
        is_partial = schema_editor.connection.features.supports_partial_indexes
        return super() if is_partial else self.plain

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        return self._form(schema_editor).constraint_sql(model, schema_editor)

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        return self._form(schema_editor).create_sql(model, schema_editor)

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        return self._form(schema_editor).remove_sql(model, schema_editor)

    def validate(self, *args: Any, **options: Any) -> None:
        self.plain.validate(*args, **options)

    # Called by Django 5.2 as the one, from 6.0 on as the other: no warning that a database is
    # without the constraint, for none is.

    def _check(self, model: Any, connection: Any) -> Any:
        plain: Any = self.plain
        return plain._check(model, connection)

    def check(self, model: Any, connection: Any) -> Any:
        plain: Any = self.plain
        return plain.check(model, connection)
