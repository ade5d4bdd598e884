"""Columns of a task that ends or waits again, the same for every caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import Case, F, Value, When
from django.db.models.expressions import Expression
from django.db.models.functions import Least

from leasing.functions import DbNow
from tasks import registry
from tasks.querysets.unique import key_once_ended
from tasks.registry import Kind

if TYPE_CHECKING:
    from tasks.models import Task

WITH_PARENT: Final = "with its parent"


def over() -> dict[str, Any]:
    """The lease columns of a task that its holder has ended or given back."""
    return {"released_at": DbNow(), "expires_at": Least(F("expires_at"), DbNow()), "slot": None}


def closing() -> dict[str, Any]:
    """The columns of a task that ends, without those of its lease."""
    return {"processed_at": DbNow(), "unique_key": key_once_ended()}


def ending() -> dict[str, Any]:
    """The columns of a running task that ends."""
    return {**closing(), **over()}


def traced(task: Task) -> dict[str, Any]:
    """The columns with the parent span of the next attempt."""
    return {} if task.traced is None else {"trace_context": task.traced}


def known_kind() -> Any:
    """The kind that the handler of each task has here; that of the row where there is none."""
    names: dict[str, list[str]] = {kind.value: [] for kind in Kind}
    for name, kind in registry.kinds().items():
        names[kind].append(name)
    whens = [When(name__in=names[kind.value], then=Value(kind.number)) for kind in Kind]
    return Case(*whens, default=F("kind"), output_field=models.SmallIntegerField())


class ByKey(Expression):
    """The value of each row among ``values``, by its key: what differs between rows that one update
    writes, all of which have one.

    What Django's ``Case`` makes of a hundred keys takes longer than the update itself.
    """

    def __init__(self, values: Mapping[Any, Any], output_field: models.Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self._values = values
        self._parts: list[Any] = [F("pk"), Value(None, output_field=output_field)]

    def get_source_expressions(self) -> list[Any]:
        return self._parts

    def set_source_expressions(self, expressions: Sequence[Any]) -> None:
        self._parts = [*expressions]

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        key, default = (compiler.compile(part) for part in self._parts)
        field: Any = self.output_field
        given: list[Any] = [*key[1]]
        for each, value in self._values.items():
            given += each, field.get_db_prep_save(value, connection=connection)
        whens = " WHEN %s THEN %s" * len(self._values)
        return f"CASE {key[0]}{whens} ELSE {default[0]} END", [*given, *default[1]]


def cancellation(by: str, reason: str = "") -> str:
    """The text of a cancellation, for the task and its attempt."""
    return f"cancelled by {by or 'an operator'}" + (f": {reason}" if reason else "")


def with_parent(reason: str = "") -> str:
    """The reason of a task that is cancelled with its parent, for ``reason``."""
    return WITH_PARENT + (f": {reason}" if reason else "")
