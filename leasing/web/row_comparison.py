"""Places in a list that is sorted by a moment and by key, compared by the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.db.models import F, Func, Value


class Beside(Func):
    """Whether a row lies on one side of another, by a moment and by key where that is the same.
    It is implied by what stands beside it, but an index of both is entered by it where it should
    be: thousands of rows may be of the same moment, as what was enqueued at once is."""

    output_field = models.BooleanField()
    arity = 4

    def __init__(
        self, model: type[models.Model], column: str, sign: str, moment: datetime, key: Any
    ) -> None:
        values = Value(moment, models.DateTimeField()), Value(key, model._meta.pk)
        super().__init__(F(column), F("pk"), *values, sign=sign)

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **extra: Any) -> Any:
        parts = [compiler.compile(each) for each in self.get_source_expressions()]
        column, pk, moment, key = [sql for sql, _ in parts]
        sql = f"({column}, {pk}) {self.extra['sign']} ({moment}, {key})"
        return sql, [param for _, params in parts for param in params]

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return "1 = 1", []  # there the same moment may be two texts
