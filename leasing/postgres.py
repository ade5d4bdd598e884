"""PostgreSQL's one-statement forms of acquire and release on named leases.

Each locks the row (passing over it when someone else has it locked), judges, writes, notes the
event, and answers: one round trip where the portable form takes six. The conditions and the
columns are the portable form's own, compiled by Django, so there is one definition of each. A
statement that finds nothing to do has changed nothing, and the portable form then says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import QuerySet, sql
from django.db.models.expressions import RawSQL

from leasing.bell import CHANNEL
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


def grant(free: QuerySet[Any], target: QuerySet[Any], columns: dict[str, Any]) -> Lease | None:
    """Write ``columns`` to the row of ``free`` if it is still one of ``target``. The answer
    carries ``now`` and ``had_expired``; None when somebody else has or is changing the row."""
    term = free.only("pk", "holder", "grants", "released_at", "expires_at")
    return _one(_GRANT, term, target, columns)


def release(mine: QuerySet[Any], target: QuerySet[Any], columns: dict[str, Any]) -> Lease | None:
    """Write ``columns`` to the row of ``mine`` if it is still one of ``target``, and tell those
    who wait for it."""
    return _one(_RELEASE, mine.only("pk"), target, columns)


def _one(
    template: str, row: QuerySet[Any], target: QuerySet[Any], columns: dict[str, Any]
) -> Lease | None:
    using = target.db
    # Django compiles no locking clause outside of a transaction block, which is what is spared.
    select_sql, select_params = row.query.get_compiler(using).as_sql()
    query: Any = target.filter(pk__in=RawSQL("SELECT id FROM chosen", [])).query
    query = query.chain(sql.UpdateQuery)
    query.add_update_values(columns)
    update_sql, update_params = query.get_compiler(using).as_sql()
    statement = template.format(
        chosen=f"{select_sql} FOR NO KEY UPDATE SKIP LOCKED",
        update=update_sql,
        columns=_EVENT_COLUMNS,
        now=query.get_compiler(using).compile(DbNow())[0],
        channel=CHANNEL,
    )
    raw: Any = target.model._default_manager.using(using)
    rows: list[Lease] = list(raw.raw(statement, (*select_params, *update_params)))
    return rows[0] if rows else None


def serves(using: str) -> bool:
    """Whether these statements can be sent to the database ``using``."""
    return connections[using].vendor == "postgresql"
