"""PostgreSQL's one-statement forms: acquire and release on named leases, renewal on any rows.

Each locks the row (passing over it when someone else has it locked), judges, writes, notes the
event, and answers: one round trip where the portable form takes six. The conditions and the
columns are the portable form's own, compiled by Django, so there is one definition of each. A
statement that finds nothing to do has changed nothing, and the portable form then says why.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import QuerySet, sql
from django.db.models.expressions import RawSQL

from leasing.bell import CHANNEL
from leasing.dialects import durable, limit_waiting, waiting_limit
from leasing.functions import DbNow

if TYPE_CHECKING:
    from leasing.models import Lease

_EVENT_COLUMNS = (
    "(model, key, resource, kind, holder, previous_holder, previous_expired_at, grant_id,"
    " fencing_token, at, reason, actor)"
)

_GRANT = """
WITH chosen AS MATERIALIZED ({chosen}),
granted AS ({update} RETURNING *),
noted AS (
    INSERT INTO leasing_leaseevent {columns}
    SELECT 'leasing.lease', g.id::text, g.resource,
        CASE WHEN f.grants > 0 AND f.released_at IS NULL THEN 'taken_over' ELSE 'acquired' END,
        g.holder, f.holder,
        CASE WHEN f.grants > 0 AND f.released_at IS NULL THEN f.expires_at END,
        g.grant_id, g.fencing_token, {now}, '', ''
    FROM granted g JOIN chosen f ON f.id = g.id
)
SELECT g.*, {now} AS now,
    f.grants > 0 AND f.released_at IS NULL AS had_expired
FROM granted g JOIN chosen f ON f.id = g.id
"""

_RELEASE = """
WITH chosen AS MATERIALIZED ({chosen}),
freed AS ({update} RETURNING *),
noted AS (
    INSERT INTO leasing_leaseevent {columns}
    SELECT 'leasing.lease', id::text, resource, 'released', holder, '', NULL, grant_id,
        fencing_token, {now}, '', ''
    FROM freed
),
told AS (
    SELECT pg_notify('{channel}', resource) FROM freed
    WHERE wanted_until > {now}
)
SELECT freed.*, (SELECT count(*) FROM told) AS told FROM freed
"""

_RENEW = """
WITH mine AS MATERIALIZED (
    SELECT {pk} AS pk FROM {table} WHERE {pk} = ANY(%s) AND grant_id = ANY(%s)
    ORDER BY {pk} FOR NO KEY UPDATE SKIP LOCKED
)
{update} RETURNING {columns}, {now}
"""


def grant(free: QuerySet[Any], target: QuerySet[Any], columns: dict[str, Any]) -> Lease | None:
    """Write ``columns`` to the row of ``free`` if it is still one of ``target``. The answer
    carries ``now`` and ``had_expired``; None when somebody else has or is changing the row."""
    term = free.only("pk", "holder", "grants", "released_at", "expires_at")
    return _one(_GRANT, term, target, columns)


def release(mine: QuerySet[Any], target: QuerySet[Any], columns: dict[str, Any]) -> Lease | None:
    """Write ``columns`` to the row of ``mine`` if it is still one of ``target``, and tell those
    who wait for it."""
    return _one(_RELEASE, mine.only("pk"), target, columns)


def renew(
    target: QuerySet[Any], columns: dict[str, Any], grants: Mapping[Any, uuid.UUID], timeout: float
) -> list[Any]:
    """Write ``columns`` to the rows of ``target`` whose key and grant are in ``grants`` and that
    nobody else has locked; returns these rows, with ``now``. No statement runs longer than
    ``timeout`` seconds, nor waits for a lock on the table.

    That limit and the update travel in one message, which PostgreSQL takes for a transaction.
    """
    using, model = target.db, target.model
    connection: Any = connections[using]
    names = [field.attname for field in model._meta.concrete_fields if _is_told(field)]
    update_sql, update_params = _update(target, "SELECT pk FROM mine", columns)
    quote = connection.ops.quote_name
    statement = _RENEW.format(
        pk=quote(model._meta.pk.column),
        table=quote(model._meta.db_table),
        update=update_sql,
        columns=", ".join(quote(model._meta.get_field(name).column) for name in names),
        now=_now(target),
    )
    params = [list(grants), list(grants.values()), *update_params]
    if connection.in_atomic_block or not _takes_several_statements(connection):
        with durable(using), connection.cursor() as cursor:
            limit_waiting(using, timeout)
            cursor.execute(statement, params)
            answers = cursor.fetchall()
    else:
        with connection.cursor() as cursor:
            limit, limit_params = waiting_limit(timeout)
            cursor.execute(f"{limit};{statement}", [*limit_params, *params])
            cursor.nextset()
            answers = cursor.fetchall()
    rows = []
    for *values, now in answers:
        row = model.from_db(using, names, values)
        row.now = now
        rows.append(row)
    return rows


def _is_told(field: Any) -> bool:
    return bool(field.primary_key or field.attname in field.model.renewal_columns)


def _takes_several_statements(connection: Any) -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    bound_by_server = connection.settings_dict["OPTIONS"].get("server_side_binding")
    return bool(is_psycopg3) and not bound_by_server


def _now(target: QuerySet[Any]) -> str:
    return str(target.query.get_compiler(target.db).compile(DbNow())[0])


def _update(
    target: QuerySet[Any], keys: str, columns: dict[str, Any]
) -> tuple[str, tuple[Any, ...]]:
    """The UPDATE, as Django compiles it, of the rows of ``target`` that ``keys`` selects."""
    query: Any = target.filter(pk__in=RawSQL(keys, [])).query.chain(sql.UpdateQuery)
    query.add_update_values(columns)
    compiled: tuple[str, tuple[Any, ...]] = query.get_compiler(target.db).as_sql()
    return compiled


def _one(
    template: str, row: QuerySet[Any], target: QuerySet[Any], columns: dict[str, Any]
) -> Lease | None:
    using = target.db
    # Django compiles no locking clause outside of a transaction block, which is what is spared.
    select_sql, select_params = row.query.get_compiler(using).as_sql()
    update_sql, update_params = _update(target, "SELECT id FROM chosen", columns)
    statement = template.format(
        chosen=f"{select_sql} FOR NO KEY UPDATE SKIP LOCKED",
        update=update_sql,
        columns=_EVENT_COLUMNS,
        now=_now(target),
        channel=CHANNEL,
    )
    raw: Any = target.model._default_manager.using(using)
    rows: list[Lease] = list(raw.raw(statement, (*select_params, *update_params)))
    return rows[0] if rows else None


def serves(using: str) -> bool:
    """Whether these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"
