"""PostgreSQL's own statements for new tasks: for one, or many with different data.

Django's INSERT names all columns and prepares a value for each, which takes longer than storing
them. These name those that are not null, and have in their text, which is kept, what is the same
time and again: what the model has as defaults, the name and the queue. What the caller gave
besides are parameters; the rest, as with Django, the database fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression
from django.db.models.signals import post_save, pre_save

from leasing.db.cached_cursors import fetch_all
from leasing.db.row_reader import instance_of
from leasing.runtime import clock
from tasks.notifier import CHANNEL

if TYPE_CHECKING:
    from tasks.models import Task

#: Columns with the SQL of their values.
Cells = tuple[tuple[str, str], ...]

_ONE = "INSERT INTO {table} ({columns}) VALUES ({values}) RETURNING id, {created}, {start}"
# An INSERT that met a row would wait for the transaction that writes to it; the look sees what was
# committed. Who comes between them, or has not committed yet, is left to the conflict.
_UNLESS_PRESENT = (
    "INSERT INTO {table} ({columns}) SELECT {values} WHERE {is_new}"
    " ON CONFLICT DO NOTHING RETURNING id, {created}, {start}"
)
_IS_NEW = "NOT EXISTS (SELECT 1 FROM {table} WHERE {key} = %s)"
_NOTIFYING = (
    f"WITH new (id, created, start) AS ({_ONE})"
    " SELECT id, created, start, pg_notify({channel}, %s) FROM new"
)
_MANY = """\
WITH new AS (
    INSERT INTO {table} ({columns})
    SELECT {values}
    FROM ROWS FROM ({sources}) WITH ORDINALITY AS each ({own}, number)
    ORDER BY each.number
    RETURNING id, {created} AS created, {start} AS start
)
SELECT array_agg(id ORDER BY id), min(created), min(start) FROM new
"""
#: The columns in which many may differ, and what their values are taken from.
_DATA = {"task_data": "jsonb_array_elements(%s::jsonb)"}
_LIMITS = {
    "concurrency_key": "unnest(%s::text[])",
    "concurrency_limit": "unnest(%s::smallint[])",
}
#: The columns of which no two rows have the same value.
_KEYS = ("unique_key", "idempotency_key")
#: The columns whose values are few: their literals are part of a statement's text.
_NAMES = ("name", "queue")

#: The key of a new row, and the columns of its moments.
Inserted = tuple[int, dict[str, datetime]]


class Limits(NamedTuple):
    """The concurrency keys of many tasks, and the limit of each."""

    keys: Sequence[str]
    limits: Sequence[int | None]


def serves(model: type[Task], connection: BaseDatabaseWrapper) -> bool:
    """Return True if tasks can be stored so over ``connection``: it is PostgreSQL's, and no
    receiver is called for each instance that is saved. Where a test controls the clock the ORM
    stores it: a default of the database would have its real time."""
    if connection.vendor != "postgresql" or clock.stand_in is not None:
        return False
    return not any(
        # Most have none at all, and looking for those of a model takes a while.
        signal.receivers and signal.has_listeners(model)
        for signal in (pre_save, post_save)
    )


def insert(
    model: type[Task],
    connection: BaseDatabaseWrapper,
    columns: dict[str, Any],
    data: str,
    message: str | None = None,
) -> Inserted:
    """Store a task with ``columns`` and the JSON text ``data``, and by the same statement send
    the workers ``message``. Returns its key, and the columns of its moments."""
    cells, params = _cells(model, connection, columns)
    names = columns["name"], columns["queue"]
    statement = _for_one(model, connection.alias, names, cells, message is not None)
    sent = [] if message is None else [message]
    key, *moments = _ask(connection, statement, [*params, data, *sent])
    return key, _moments(columns, *moments[:2])


def insert_unless_present(
    model: type[Task], connection: BaseDatabaseWrapper, columns: dict[str, Any], data: str
) -> Inserted | None:
    """Store a task with ``columns``, keys among them, and the JSON text ``data``, unless a row has
    one of its keys. It waits for none but those who are storing the same key."""
    cells, params = _cells(model, connection, columns)
    names = columns["name"], columns["queue"]
    keys = tuple(key for key in _KEYS if key in columns)
    statement = _for_one_unless_present(model, connection.alias, names, cells, keys)
    row = _ask(connection, statement, [*params, data, *(columns[key] for key in keys)])
    if row is None:
        return None
    key, *moments = row
    return key, _moments(columns, *moments)


def insert_many(
    model: type[Task],
    connection: BaseDatabaseWrapper,
    columns: dict[str, Any],
    data: str,
    limits: Limits | None,
) -> tuple[list[int], dict[str, datetime]]:
    """Store a task for each element of the JSON list ``data``, in this order, with ``columns`` in
    common, and ``limits`` of their own unless these are in common too. Returns their keys, and
    the columns of their moments."""
    cells, params = _cells(model, connection, columns)
    names = columns["name"], columns["queue"]
    statement = _for_many(model, connection.alias, names, cells, limits is not None)
    keys, *moments = _ask(connection, statement, [*params, data, *map(list, limits or ())])
    return keys, _moments(columns, *moments)


def _ask(connection: Any, statement: str, params: list[Any]) -> Any:
    """The one row that ``statement`` answers, if any."""
    guard = (
        transaction.mark_for_rollback_on_error(connection.alias)
        if connection.in_atomic_block
        else nullcontext()
    )
    with guard:
        return next(iter(fetch_all(connection, statement, params)), None)


def _moments(
    columns: dict[str, Any], created_at: datetime, start: datetime | None
) -> dict[str, datetime]:
    """A task that was not told when to start does so when it is created: by one clock, which
    stands still for a statement."""
    return {
        "created_at": created_at,
        "scheduled_at": start or columns.get("scheduled_at", created_at),
    }


def instance(model: type[Task], using: str, columns: dict[str, Any]) -> Task:
    """Return the instance of a row with ``columns``: those that were stored for it, and those that
    the database gave it."""
    task: Task = instance_of(model, using, {**_defaults(model), **columns})
    return task


def _cells(
    model: type[Task], connection: BaseDatabaseWrapper, columns: dict[str, Any]
) -> tuple[Cells, list[Any]]:
    """Return the cells of ``columns`` that differ from the model's defaults, but for names and
    data; and the parameters."""
    defaults = _defaults(model)
    cells: list[tuple[str, str]] = []
    params: list[Any] = []
    for name, value in columns.items():
        if name in _NAMES or name == "task_data":
            continue
        if isinstance(value, Expression):
            # Each time again: a test may have stopped the clock that it reads.
            query = model._default_manager.using(connection.alias).query
            sql, own = query.get_compiler(connection.alias).compile(value)
            cells.append((name, sql))
            params += own
        elif value != defaults[name]:
            cells.append((name, "%s"))
            params.append(value)
    return tuple(cells), params


@lru_cache(maxsize=256)
def _for_one(
    model: type[Task], using: str, names: tuple[str, ...], cells: Cells, notifying: bool
) -> str:
    parts = _parts(model, using, names, {**dict(cells), "task_data": "%s::jsonb"})
    if not notifying:
        return _ONE.format(**parts)
    return _NOTIFYING.format(**parts, channel=_literal(using, CHANNEL))


@lru_cache(maxsize=256)
def _for_one_unless_present(
    model: type[Task], using: str, names: tuple[str, ...], cells: Cells, keys: tuple[str, ...]
) -> str:
    parts = _parts(model, using, names, {**dict(cells), "task_data": "%s::jsonb"})
    is_new = " AND ".join(_IS_NEW.format(table=parts["table"], key=key) for key in keys)
    return _UNLESS_PRESENT.format(**parts, is_new=is_new)


@lru_cache(maxsize=256)
def _for_many(
    model: type[Task], using: str, names: tuple[str, ...], cells: Cells, limited: bool
) -> str:
    own = {**_DATA, **_LIMITS} if limited else _DATA
    given = {**dict(cells), **{name: f"each.{name}" for name in own}}
    parts = _parts(model, using, names, given)
    return _MANY.format(**parts, sources=", ".join(own.values()), own=", ".join(own))


def _parts(
    model: type[Task], using: str, names: tuple[str, ...], given: dict[str, str]
) -> dict[str, str]:
    quote = connections[using].ops.quote_name
    literals = _literals(model, using)
    literals |= {name: _literal(using, said) for name, said in zip(_NAMES, names, strict=True)}
    cells = {name: sql for name, sql in literals.items() if name not in given}
    cells |= given  # in the order of the parameters
    return {
        "table": quote(model._meta.db_table),
        "columns": ", ".join(map(quote, cells)),
        "values": ", ".join(cells.values()),
        # What is given as it is need not be read back.
        "start": (
            "NULL::timestamptz" if given.get("scheduled_at", "%s") == "%s" else "scheduled_at"
        ),
        "created": "created_at",
    }


def _literals(model: type[Task], using: str) -> dict[str, str]:
    """Return the values of a new row in the columns that nobody gave, where they are not null."""
    connection = connections[using]
    blank = model()
    literals = {}
    for field in model._meta.concrete_fields:
        if field.has_db_default():
            continue
        value = field.get_db_prep_save(field.pre_save(blank, add=True), connection)
        if value is not None:
            literals[str(field.column)] = _literal(using, value)
    return literals


def _literal(using: str, value: Any) -> str:
    operations: Any = connections[using].ops
    return str(operations.compose_sql("%s", [value])).replace("%", "%%")


@cache
def _defaults(model: type[Task]) -> dict[str, Any]:
    blank = model()
    return {field.attname: getattr(blank, field.attname) for field in model._meta.concrete_fields}
