"""Renew and release in one statement, of one row or of many."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, QuerySet

from leasing.db.cached_cursors import new_cursor
from leasing.db.dialects import (
    CHANNEL,
    durable,
    limit_waiting,
    refuse_transaction,
    waiting_limit,
)
from leasing.db.postgres.rows import (
    UUID,
    LeasableRows,
    Spelled,
    compiled_select,
    compiled_update,
    execute,
    is_one_of,
    key_field,
    moments_of,
    noted_sql,
    now_of,
    pk_of,
    resource_of,
    returned_sql,
    table_of,
)
from leasing.db.row_reader import Reader, reader
from leasing.db.statements import Marker, Several, Statement, cached_statement

_RENEW_ONE = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE SKIP LOCKED)
{update} RETURNING {columns}
"""

_RELEASE = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE SKIP LOCKED),
freed AS ({update} RETURNING {returned}){noted}
SELECT {columns} FROM freed w
"""

_RELEASE_AND_TELL = """
WITH chosen AS MATERIALIZED ({chosen} FOR NO KEY UPDATE SKIP LOCKED),
freed AS ({update} RETURNING {returned}){noted}
SELECT {columns},
    CASE WHEN w.wanted_until > {now} THEN pg_notify('{channel}', {resource})::text END
FROM freed w
"""

_RENEW = """
WITH chosen AS MATERIALIZED (
    SELECT {pk} FROM {table} WHERE {pk} = ANY({keys}) AND grant_id = ANY({grants})
    ORDER BY {pk} FOR NO KEY UPDATE SKIP LOCKED
)
{update} RETURNING {columns}, {now}
"""


def renew_one(rows: LeasableRows, row: Any) -> bool:
    """Renew the grant of ``row``. Whether that was done; ``row`` stands as it was written then.
    Raises LeaseInTransaction."""
    connection = connections[rows.db]
    refuse_transaction(connection)
    return bool(_written(connection, rows, [row], "renew", rows.renewal, _RENEW_ONE))


def release(
    connection: BaseDatabaseWrapper,
    rows: LeasableRows,
    held: list[Any],
    columns: Callable[[], dict[str, Any]],
    *,
    tell: bool,
) -> list[Any]:
    """Write the ``columns`` of a release to those rows of ``held`` whose grant still lives, and
    with ``tell`` notify those who wait for them. Returns these, as they were written."""
    template = _RELEASE_AND_TELL if tell else _RELEASE
    return _written(connection, rows, held, "release", columns, template)


def _written(
    connection: BaseDatabaseWrapper,
    rows: LeasableRows,
    held: list[Any],
    verb: str,
    columns: Callable[[], dict[str, Any]],
    template: str,
) -> list[Any]:
    several = len(held) != 1
    if several:
        key = attrgetter(rows.model._meta.pk.attname)
        values = {"keys": [key(row) for row in held], "grants": [row.grant_id for row in held]}
    else:
        values = {"key": held[0].pk, "grant": held[0].grant_id}
    about = (type(rows), rows.model, rows.db, verb, several)
    statement, written = cached_statement(
        about, lambda: _writing(rows, columns(), template, several=several)
    )
    return written.read(held, execute(connection, statement, values))


def _writing(
    rows: LeasableRows, columns: dict[str, Any], template: str, *, several: bool
) -> tuple[Statement, Reader]:
    """The statement, and what reads its answer."""
    pk: Any = rows.model._meta.pk
    if several:
        keys = Several("keys", key_field(rows.model))
        text = "({})[array_position({}, {})]"
        grant = Spelled(text, Several("grants", UUID), keys, F("pk"), output_field=UUID)
        every: Any = SimpleNamespace(pk=F("pk"), grant_id=grant)
        mine = rows._of_grant(every).filter(is_one_of("pk", keys))
    else:
        one: Any = SimpleNamespace(pk=Marker("key", pk), grant_id=Marker("grant", UUID))
        mine = rows._of_grant(one)
    chosen_sql, chosen_params = compiled_select(mine.only("pk").order_by("pk"))
    living = rows._everything().holding().unexpired()
    update_sql, update_params = compiled_update(living, columns, alone=not several)
    noted = noted_sql(
        rows, kind="'released'", previous_holder="''", previous_expired_at="NULL", written="freed w"
    )
    read = rows.model.verb_columns - rows.model.granted_columns
    alike = moments_of(columns) if several else frozenset()
    written = reader(rows.model, rows.db, read, alike=alike)
    text = template.format(
        chosen=chosen_sql,
        update=update_sql,
        returned=returned_sql(rows, written),
        noted=noted,
        columns=written.sql(table_of(rows) if template is _RENEW_ONE else "w", "freed"),
        now=now_of(rows),
        channel=CHANNEL,
        resource=resource_of(rows.model),
    )
    return Statement(text, (*chosen_params, *update_params), connections[rows.db]), written


def renew(
    target: QuerySet[Any], columns: dict[str, Any], grants: Mapping[Any, uuid.UUID], timeout: float
) -> list[Any]:
    """Write ``columns`` to the rows of ``target`` whose key and grant are in ``grants`` and that
    nobody else has locked; returns these rows, with ``now``. No statement runs longer than
    ``timeout`` seconds, nor waits for a lock on the table.

    That limit and the update travel in one message, which PostgreSQL takes for a transaction.
    """
    using = target.db
    model: Any = target.model
    connection: Any = connections[using]
    answered = reader(model, using, model.renewal_columns, more=("now",))
    statement = cached_statement(
        (type(target), model, using, "renew many"), lambda: _renewing(target, columns, answered)
    )
    values = {"keys": list(grants), "grants": list(grants.values())}
    params = statement.filled(values, connection)
    if connection.in_atomic_block or not _takes_several_statements(connection):
        with durable(using), new_cursor(connection) as cursor:
            limit_waiting(using, timeout)
            cursor.execute(statement.sql, params)
            answers = cursor.fetchall()
    else:
        with new_cursor(connection) as cursor:
            limit, limit_params = waiting_limit(timeout)
            cursor.execute(f"{limit};{statement.sql}", [*limit_params, *params])
            cursor.nextset()
            answers = cursor.fetchall()
    return answered.rows(answers)


def _renewing(target: Any, columns: dict[str, Any], answered: Reader) -> Statement:
    update_sql, update_params = compiled_update(target, columns)
    keys, grants = Several("keys", key_field(target.model)), Several("grants", UUID)
    connection = connections[target.db]
    text = _RENEW.format(
        keys=keys.sql(connection),
        grants=grants.sql(connection),
        pk=pk_of(target),
        table=table_of(target),
        update=update_sql,
        columns=answered.sql(table_of(target)),
        now=now_of(target),
    )
    return Statement(text, (keys, grants, *update_params), connection)


def _takes_several_statements(connection: Any) -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    bound_by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return bool(is_psycopg3) and not bound_by_server
