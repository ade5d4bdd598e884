"""PostgreSQL's own statements for new tasks without keys: for one, or many with different data.

Django's INSERT names all columns and prepares a value for each, which takes longer than storing
them. These name those that are not null: what the caller gave as parameters, what the model has
as defaults as part of the text, which is made once. The rest, as with Django, the database fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Expression
from django.db.models.signals import post_save, pre_save

from tasks.bell import CHANNEL

if TYPE_CHECKING:
    from tasks.models import Task

#: Columns with the SQL of their values.
Cells = tuple[tuple[str, str], ...]

_ONE = "INSERT INTO {table} ({columns}) VALUES ({values}) RETURNING id, scheduled_at, created_at"
_RINGING = (
    f"WITH new AS ({_ONE}) SELECT id, scheduled_at, created_at, pg_notify('{CHANNEL}', %s) FROM new"
)
_MANY = """\
WITH new AS (
    INSERT INTO {table} ({columns})
    SELECT {values}
    FROM ROWS FROM ({sources}) WITH ORDINALITY AS each ({own}, number)
    ORDER BY each.number
    RETURNING id, scheduled_at, created_at
)
SELECT array_agg(id ORDER BY id), min(scheduled_at), min(created_at) FROM new
"""
#: The columns in which many may differ, and what their values are taken from.
_DATA = {"task_data": "jsonb_array_elements(%s::jsonb)"}
_LIMITS = {
    "concurrency_key": "unnest(%s::text[])",
    "concurrency_limit": "unnest(%s::smallint[])",
}


class Inserted(NamedTuple):
    """What the database gave to a new row."""

    id: int
    scheduled_at: datetime
    created_at: datetime


class InsertedMany(NamedTuple):
    """What it gave to many: keys, and moments that they have in common."""

    keys: list[int]
    scheduled_at: datetime
    created_at: datetime


class Limits(NamedTuple):
    """The concurrency keys of many tasks, and the limit of each."""

    keys: Sequence[str]
    limits: Sequence[int | None]


def serves(model: type[Task], using: str) -> bool:
    """Whether tasks can be stored so in the database ``using``: it is PostgreSQL, and nobody
    wants to be told of each instance that is saved."""
    if connections[using].vendor != "postgresql":
        return False
    return not (pre_save.has_listeners(model) or post_save.has_listeners(model))


def insert(
    model: type[Task], using: str, columns: dict[str, Any], data: str, message: str | None = None
) -> Inserted:
    """Store a task with ``columns`` and the JSON text ``data``; by the same statement send the
    workers ``message``."""
    cells, params = _cells(model, using, columns)
    params.append(data)
    if message is not None:
        params.append(message)
    statement = _for_one(model, using, cells, message is not None)
    with transaction.mark_for_rollback_on_error(using), connections[using].cursor() as cursor:
        cursor.execute(statement, params)
        return Inserted(*cursor.fetchone()[:3])


def insert_many(
    model: type[Task], using: str, columns: dict[str, Any], data: str, limits: Limits | None
) -> InsertedMany:
    """Store a task for each element of the JSON list ``data``, in this order, with ``columns`` in
    common, and unless that is among them a limit of its own."""
    cells, params = _cells(model, using, columns)
    statement = _for_many(model, using, cells, limits is not None)
    with transaction.mark_for_rollback_on_error(using), connections[using].cursor() as cursor:
        cursor.execute(statement, [*params, data, *map(list, limits or ())])
        return InsertedMany(*cursor.fetchone())


def instance(model: type[Task], using: str, columns: dict[str, Any]) -> Task:
    """What a row with ``columns`` is read as: those that were stored for it, and those that the
    database gave it."""
    row = {**_defaults(model), **columns}
    return model.from_db(using, list(row), list(row.values()))


def _cells(model: type[Task], using: str, columns: dict[str, Any]) -> tuple[Cells, list[Any]]:
    """``columns`` but for the data, which are text already, with their parameters."""
    cells: list[tuple[str, str]] = []
    params: list[Any] = []
    for name, value in columns.items():
        if isinstance(value, Expression):
            # Each time anew: a test may have stopped the clock that it reads.
            compiler = model._default_manager.using(using).query.get_compiler(using)
            sql, own = compiler.compile(value)
            cells.append((name, sql))
            params += own
        elif value is not None and name != "task_data":
            cells.append((name, "%s"))
            params.append(value)
    return tuple(cells), params


@lru_cache(maxsize=256)
def _for_one(model: type[Task], using: str, cells: Cells, rings: bool) -> str:
    given = {**dict(cells), "task_data": "%s::jsonb"}
    return (_RINGING if rings else _ONE).format(**_parts(model, using, given))


@lru_cache(maxsize=256)
def _for_many(model: type[Task], using: str, cells: Cells, limited: bool) -> str:
    own = {**_DATA, **_LIMITS} if limited else _DATA
    given = {**dict(cells), **{name: f"each.{name}" for name in own}}
    return _MANY.format(
        **_parts(model, using, given), sources=", ".join(own.values()), own=", ".join(own)
    )


def _parts(model: type[Task], using: str, given: dict[str, str]) -> dict[str, str]:
    quote = connections[using].ops.quote_name
    cells = {name: sql for name, sql in _literals(model, using).items() if name not in given}
    cells |= given  # in the order of the parameters
    return {
        "table": quote(model._meta.db_table),
        "columns": ", ".join(map(quote, cells)),
        "values": ", ".join(cells.values()),
    }


def _literals(model: type[Task], using: str) -> dict[str, str]:
    """What a new row has in the columns that nobody gave it, where that is not null."""
    connection: Any = connections[using]
    blank = model()
    literals = {}
    for field in model._meta.concrete_fields:
        if field.primary_key or field.has_db_default():
            continue
        value = field.get_db_prep_save(field.pre_save(blank, add=True), connection)
        if value is not None:
            sql = str(connection.ops.compose_sql("%s", [value]))
            literals[str(field.column)] = sql.replace("%", "%%")
    return literals


@cache
def _defaults(model: type[Task]) -> dict[str, Any]:
    blank = model()
    return {field.attname: getattr(blank, field.attname) for field in model._meta.concrete_fields}
