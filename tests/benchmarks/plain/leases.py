"""Leases in plain psycopg: one statement for each verb.

With what ours do by the same word: who judges is the database's clock; tokens rise; the grant
proves the term; nobody waits to acquire; a history is written, which WITHOUT_HISTORY leaves out.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.benchmarks.plain.queue import Connection, connect

__all__ = ["HISTORY", "WITHOUT_HISTORY", "Connection", "Verbs", "connect", "create"]

TABLE = """
CREATE TABLE IF NOT EXISTS plain_lease (
    id bigserial PRIMARY KEY,
    resource text NOT NULL UNIQUE,
    holder text NOT NULL DEFAULT '',
    grant_id uuid,
    token bigint NOT NULL DEFAULT 0,
    grants integer NOT NULL DEFAULT 0,
    ttl interval NOT NULL DEFAULT '30 s',
    acquired_at timestamptz,
    renewed_at timestamptz,
    renewals integer NOT NULL DEFAULT 0,
    released_at timestamptz,
    expires_at timestamptz NOT NULL DEFAULT 'epoch'
);
CREATE TABLE IF NOT EXISTS plain_event (
    id bigserial PRIMARY KEY,
    resource text NOT NULL,
    kind text NOT NULL,
    holder text NOT NULL,
    grant_id uuid,
    token bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp()
);
CREATE INDEX IF NOT EXISTS plain_event_of_resource ON plain_event (resource, id DESC);
"""

_ACQUIRE = """
UPDATE plain_lease
SET holder = %s, grant_id = {grant}, grants = grants + 1, renewals = 0, renewed_at = NULL,
    token = greatest(token + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
    acquired_at = statement_timestamp(), released_at = NULL, ttl = '30 s',
    expires_at = statement_timestamp() + interval '30 s'
WHERE id = ANY(ARRAY(
    SELECT id FROM plain_lease
    WHERE resource = ANY(%s) AND (released_at IS NOT NULL OR expires_at <= statement_timestamp())
    ORDER BY resource FOR NO KEY UPDATE SKIP LOCKED
)) AND (released_at IS NOT NULL OR expires_at <= statement_timestamp())
RETURNING id, resource, holder, grant_id, token, expires_at
"""

_RENEW = """
UPDATE plain_lease
SET expires_at = greatest(expires_at, statement_timestamp() + ttl),
    renewed_at = statement_timestamp(), renewals = renewals + 1
WHERE id = ANY(ARRAY(
    SELECT id FROM plain_lease WHERE id = %s AND grant_id = %s FOR NO KEY UPDATE
)) AND grant_id = %s AND released_at IS NULL AND expires_at > statement_timestamp()
RETURNING expires_at
"""

_RELEASE = """
UPDATE plain_lease
SET released_at = statement_timestamp(), expires_at = statement_timestamp()
WHERE id = ANY(ARRAY(
    SELECT id FROM plain_lease WHERE id = ANY(%s) AND grant_id = ANY(%s)
    ORDER BY id FOR NO KEY UPDATE
)) AND grant_id = ANY(%s) AND released_at IS NULL AND expires_at > statement_timestamp()
RETURNING id, resource, holder, grant_id, token, expires_at
"""

_NOTED = """
WITH changed AS ({statement}), noted AS (
    INSERT INTO plain_event (resource, kind, holder, grant_id, token)
    SELECT resource, '{kind}', holder, grant_id, token FROM changed
)
SELECT * FROM changed
"""


class Verbs(NamedTuple):
    """The statements of one kind of plain lease."""

    acquire_sql: str
    acquire_many_sql: str
    release_sql: str

    def acquire(self, connection: Connection, resource: str) -> Any:
        """The row that was granted, or None."""
        values = ["plain", uuid.uuid4(), [resource]]
        return connection.execute(self.acquire_sql.encode(), values).fetchone()

    def acquire_many(self, connection: Connection, resources: Sequence[str]) -> list[Any]:
        """All of ``resources``, or an error."""
        values = ["plain", list(resources)]
        rows = connection.execute(self.acquire_many_sql.encode(), values).fetchall()
        if len(rows) != len(resources):
            raise RuntimeError("somebody holds one of them")
        return rows

    def renew(self, connection: Connection, row: Any) -> None:
        """Move the deadline, under the grant."""
        if connection.execute(_RENEW, [row[0], row[3], row[3]]).fetchone() is None:
            raise RuntimeError("the lease is lost")

    def release(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Give back, under the grants."""
        grants = [row[3] for row in rows]
        values = [[row[0] for row in rows], grants, grants]
        if len(connection.execute(self.release_sql.encode(), values).fetchall()) != len(rows):
            raise RuntimeError("a lease is lost")


def _noted(statement: str, kind: str) -> str:
    return _NOTED.format(statement=statement, kind=kind)


_ONE, _MANY = _ACQUIRE.format(grant="%s"), _ACQUIRE.format(grant="gen_random_uuid()")
WITHOUT_HISTORY = Verbs(_ONE, _MANY, _RELEASE)
HISTORY = Verbs(_noted(_ONE, "acquired"), _noted(_MANY, "acquired"), _noted(_RELEASE, "released"))


def create(connection: Connection, resources: Sequence[str]) -> None:
    """Make the tables and the rows."""
    connection.execute(TABLE)
    connection.execute(
        "INSERT INTO plain_lease (resource) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
        [list(resources)],
    )
