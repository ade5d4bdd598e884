"""PostgreSQL's statements for the ends of claimed tasks: completed, or released before they began.

Each locks the rows that run under these grants, in the order of their keys, and then updates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from leasing.db.statements import (
    LONG_VALUE,
    array_of,
    cached_statement,
    fetch_all,
    joined,
    moment,
)
from leasing.functions import DbNow
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.sql.plans import planned

#: The grants come as bytes, sixteen of each: half a microsecond each less than as text. The place
#: of a row's key among the keys, which are in order, says which is its own: a join takes longer.
COMPLETE = """
WITH mine AS MATERIALIZED (
    SELECT t.id FROM leasing_tasks_task AS t
    WHERE t.id = ANY(%(ids)s::bigint[]) AND t.status = 'running'
        AND uuid_send(t.grant_id) = substring(
            %(grants)s::bytea FROM 16 * width_bucket(t.id, %(ids)s::bigint[]) - 15 FOR 16
        )
    ORDER BY t.id FOR NO KEY UPDATE
)
UPDATE leasing_tasks_task AS t SET
    status = 'succeeded',
    task_output = NULLIF(
        %(outputs)s::jsonb -> (width_bucket(t.id, %(ids)s::bigint[]) - 1), 'null'::jsonb
    ),
    processed_at = {now},
    unique_key = CASE WHEN t.unique_until > {now} THEN t.unique_key END,
    released_at = {now},
    expires_at = LEAST(t.expires_at, {now}),
    slot = NULL
WHERE t.id = ANY(ARRAY(SELECT id FROM mine))
RETURNING t.id, (EXTRACT(EPOCH FROM t.processed_at) * 1000000)::bigint
"""
#: Of a task that is to be cancelled others hear: it is left to the portable form.
RELEASE_UNSTARTED = """
WITH mine AS MATERIALIZED (
    SELECT t.id FROM leasing_tasks_task AS t
    WHERE t.id = ANY(%(ids)s::bigint[]) AND t.status = 'running'
        AND (t.id, t.grant_id) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(grants)s::uuid[]))
        AND t.cancel_requested_at IS NULL
    ORDER BY t.id FOR NO KEY UPDATE
)
UPDATE leasing_tasks_task AS t SET
    status = 'ready',
    attempts = t.attempts - 1,
    released_at = {now},
    expires_at = LEAST(t.expires_at, {now}),
    slot = NULL
WHERE t.id = ANY(ARRAY(SELECT id FROM mine))
RETURNING t.id
"""


def complete(using: str, mine: Sequence[ClaimedTask], outputs: str) -> dict[int, int]:
    """Complete each of ``mine``, which come in the order of their keys and none twice, that its
    grant still holds. ``outputs`` is the list of theirs in JSON. Returns when each that has ended
    did, in microseconds since 1970, by their keys."""
    grants = bytes.fromhex("".join([each.grant for each in mine]).replace("-", ""))
    ids = array_of([each.id for each in mine])
    values = {"ids": ids, "grants": grants, "outputs": outputs}
    return dict(_sent(using, COMPLETE, values, once=len(outputs) > LONG_VALUE))


def release_unstarted(using: str, mine: Sequence[ClaimedTask]) -> set[int]:
    """Set each of ``mine`` ready again that its grant still holds and nobody asked to cancel.
    Returns their keys."""
    ids, grants = array_of([each.id for each in mine]), joined([each.grant for each in mine])
    return {key for (key,) in _sent(using, RELEASE_UNSTARTED, {"ids": ids, "grants": grants})}


def _sent(using: str, template: str, values: dict[str, Any], *, once: bool = False) -> list[Any]:
    connection: Any = connections[using]

    def make() -> str:
        return template.format(now=moment(DbNow, connection))

    statement = cached_statement(template, make)
    return fetch_all(connection, planned(statement), values, known_as=statement, once=once)
