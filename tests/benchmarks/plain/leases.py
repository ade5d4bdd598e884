"""Leases in plain psycopg: one statement for each verb.

With what ours do by the same word: who judges is the database's clock; tokens rise; the grant
proves the term; nobody waits to acquire; a history is written with the same columns, which
WITHOUT_HISTORY leaves out. Statements for one row know that it is one.
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
CREATE TABLE IF NOT EXISTS plain_parcel (LIKE plain_lease INCLUDING ALL);
ALTER TABLE plain_parcel ADD COLUMN IF NOT EXISTS packed boolean NOT NULL DEFAULT false;
CREATE TABLE IF NOT EXISTS plain_event (
    id bigserial PRIMARY KEY,
    model text NOT NULL,
    key text NOT NULL,
    resource text NOT NULL,
    kind text NOT NULL,
    holder text NOT NULL,
    previous_holder text NOT NULL,
    previous_expired_at timestamptz,
    grant_id uuid,
    token bigint NOT NULL,
    at timestamptz NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL
);
CREATE INDEX IF NOT EXISTS plain_event_of_resource ON plain_event (resource, id DESC);
"""

_ACQUIRE = """
WITH chosen AS MATERIALIZED (
    SELECT id, holder, grants, released_at, expires_at FROM plain_lease
    WHERE {which}
        AND (released_at IS NOT NULL OR expires_at <= statement_timestamp())
    {order}FOR NO KEY UPDATE SKIP LOCKED
), changed AS (
    UPDATE plain_lease
    SET holder = %s, grant_id = {grant}, grants = grants + 1, renewals = 0, renewed_at = NULL,
        token = greatest(token + 1, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
        acquired_at = statement_timestamp(), released_at = NULL, ttl = '30 s',
        expires_at = statement_timestamp() + interval '30 s'
    WHERE id = {chosen}
    RETURNING id, resource, holder, grant_id, token, expires_at
){noted}
SELECT * FROM changed
"""

_ACQUIRED = """, noted AS (
    INSERT INTO plain_event (model, key, resource, kind, holder, previous_holder,
        previous_expired_at, grant_id, token, at, reason, actor)
    SELECT 'plain.lease', w.id::text, w.resource,
        CASE WHEN c.grants > 0 AND c.released_at IS NULL THEN 'taken_over' ELSE 'acquired' END,
        w.holder, c.holder,
        CASE WHEN c.grants > 0 AND c.released_at IS NULL THEN c.expires_at END,
        w.grant_id, w.token, statement_timestamp(), '', ''
    FROM changed w JOIN chosen c ON c.id = w.id
)"""

_RENEW = """
WITH chosen AS MATERIALIZED (
    SELECT id FROM plain_lease WHERE id = %s AND grant_id = %s FOR NO KEY UPDATE
)
UPDATE plain_lease
SET expires_at = greatest(expires_at, statement_timestamp() + ttl),
    renewed_at = statement_timestamp(), renewals = renewals + 1
WHERE id = (SELECT id FROM chosen) AND released_at IS NULL AND expires_at > statement_timestamp()
RETURNING expires_at
"""

_RELEASE = """
WITH chosen AS MATERIALIZED (
    SELECT id FROM plain_lease WHERE id = {key} AND grant_id = {grant}
    {order}FOR NO KEY UPDATE
), changed AS (
    UPDATE plain_lease
    SET released_at = statement_timestamp(), expires_at = statement_timestamp()
    WHERE id = {chosen} AND released_at IS NULL AND expires_at > statement_timestamp()
    RETURNING id, resource, holder, grant_id, token, expires_at
){noted}
SELECT * FROM changed
"""

_RELEASED = """, noted AS (
    INSERT INTO plain_event (model, key, resource, kind, holder, previous_holder,
        previous_expired_at, grant_id, token, at, reason, actor)
    SELECT 'plain.lease', id::text, resource, 'released', holder, '', NULL, grant_id, token,
        statement_timestamp(), '', ''
    FROM changed
)"""

_ALONE = {"chosen": "(SELECT id FROM chosen)", "order": ""}
_TOGETHER = {"chosen": "ANY(ARRAY(SELECT id FROM chosen))"}


class Verbs(NamedTuple):
    """The statements of one kind of plain lease."""

    acquire_sql: bytes
    acquire_many_sql: bytes
    claim_sql: bytes
    release_sql: bytes
    release_many_sql: bytes
    give_back_sql: bytes

    def acquire(self, connection: Connection, resource: str) -> Any:
        """The row that was granted, or None."""
        values = [resource, "plain", uuid.uuid4()]
        return connection.execute(self.acquire_sql, values).fetchone()

    def acquire_many(self, connection: Connection, resources: Sequence[str]) -> list[Any]:
        """All of ``resources``, or an error."""
        values = [list(resources), "plain"]
        rows = connection.execute(self.acquire_many_sql, values).fetchall()
        if len(rows) != len(resources):
            raise RuntimeError("somebody holds one of them")
        return rows

    def claim(self, connection: Connection, limit: int) -> list[Any]:
        """Up to ``limit`` parcels that are not packed."""
        return connection.execute(self.claim_sql, [limit, "plain"]).fetchall()

    def give_back(self, connection: Connection, rows: Sequence[Any]) -> None:
        """``release_many``, of parcels."""
        values = [[row[0] for row in rows], [row[3] for row in rows]]
        if len(connection.execute(self.give_back_sql, values).fetchall()) != len(rows):
            raise RuntimeError("a parcel is lost")

    def renew(self, connection: Connection, row: Any) -> None:
        """Move the deadline, under the grant."""
        if connection.execute(_RENEW.encode(), [row[0], row[3]]).fetchone() is None:
            raise RuntimeError("the lease is lost")

    def release(self, connection: Connection, row: Any) -> None:
        """Give back, under the grant."""
        if connection.execute(self.release_sql, [row[0], row[3]]).fetchone() is None:
            raise RuntimeError("the lease is lost")

    def release_many(self, connection: Connection, rows: Sequence[Any]) -> None:
        """``release`` each."""
        values = [[row[0] for row in rows], [row[3] for row in rows]]
        if len(connection.execute(self.release_many_sql, values).fetchall()) != len(rows):
            raise RuntimeError("a lease is lost")


def _verbs(acquired: str, released: str) -> Verbs:
    alone = {**_ALONE, "which": "resource = %s", "grant": "%s", "key": "%s"}
    together = {
        **_TOGETHER,
        "which": "resource = ANY(%s)",
        "order": "ORDER BY resource ",
        "grant": "gen_random_uuid()",
    }
    unpacked = {**together, "which": "NOT packed", "order": "ORDER BY id LIMIT %s "}
    both = {**_TOGETHER, "key": "ANY(%s)", "order": "ORDER BY id ", "grant": "ANY(%s)"}
    return Verbs(
        _ACQUIRE.format(**alone, noted=acquired).encode(),
        _ACQUIRE.format(**together, noted=acquired).encode(),
        _of_parcels(_ACQUIRE.format(**unpacked, noted=acquired)),
        _RELEASE.format(**alone, noted=released).encode(),
        _RELEASE.format(**both, noted=released).encode(),
        _of_parcels(_RELEASE.format(**both, noted=released)),
    )


def _of_parcels(text: str) -> bytes:
    return text.replace("plain_lease", "plain_parcel").encode()


HISTORY = _verbs(_ACQUIRED, _RELEASED)
WITHOUT_HISTORY = _verbs("", "")


def create(connection: Connection, resources: Sequence[str]) -> None:
    """Make the tables and the rows."""
    connection.execute(TABLE)
    for table in (b"plain_lease", b"plain_parcel"):
        connection.execute(
            b"INSERT INTO " + table + b" (resource) SELECT unnest(%s::text[])"
            b" ON CONFLICT DO NOTHING",
            [list(resources)],
        )
