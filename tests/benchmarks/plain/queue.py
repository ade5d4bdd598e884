"""A queue in plain psycopg: one table, batches, one statement each to claim and to complete.

It keeps what ours keeps of a task that goes well: payload, holder, attempts, result and the
moments of each. It has no leases, no fencing tokens, no recovery, no retries.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
BATCH = 100

TABLE = """
CREATE TABLE IF NOT EXISTS plain_queue (
    id bigserial PRIMARY KEY,
    queue text NOT NULL,
    name text NOT NULL,
    payload jsonb NOT NULL,
    status text NOT NULL DEFAULT 'ready',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    holder text,
    attempts integer NOT NULL DEFAULT 0,
    result jsonb,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    claimed_at timestamptz,
    done_at timestamptz
);
CREATE INDEX IF NOT EXISTS plain_queue_ready
    ON plain_queue (queue, priority DESC, run_at, id) WHERE status = 'ready';
"""

INSERT = "INSERT INTO plain_queue (queue, name, payload) VALUES (%s, %s, %s) RETURNING id"
INSERT_AND_TELL = f"WITH new AS ({INSERT}) SELECT pg_notify('plain_queue', ''), id FROM new"
COPY = "COPY plain_queue (queue, name, payload) FROM STDIN"

CLAIM = """
UPDATE plain_queue
SET status = 'running', holder = %s, attempts = attempts + 1, claimed_at = statement_timestamp()
WHERE id = ANY(ARRAY(
    SELECT id FROM plain_queue
    WHERE status = 'ready' AND queue = %s AND run_at <= statement_timestamp()
    ORDER BY priority DESC, run_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING id, name, payload
"""

COMPLETE = """
UPDATE plain_queue AS q
SET status = 'succeeded', result = done.result::jsonb, done_at = statement_timestamp()
FROM unnest(%s::bigint[], %s::text[]) AS done (id, result)
WHERE q.id = done.id AND q.holder = %s AND q.status = 'running'
"""


def connect(url: str) -> Connection:
    """A connection that prepares what it runs."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=2)


def create(connection: Connection) -> None:
    """Make the table, unless it is there."""
    connection.execute(TABLE)


def fill(connection: Connection, count: int) -> None:
    """Put ``count`` tasks in, however."""
    connection.execute(
        "INSERT INTO plain_queue (queue, name, payload)"
        " SELECT 'default', 'nothing', '{\"n\": 1}' FROM generate_series(1, %s)",
        [count],
    )
    connection.execute("VACUUM ANALYZE plain_queue")


def enqueue(connection: Connection, statement: str = INSERT, name: str = "nothing") -> int:
    """Store a task, as every program does that has one."""
    payload = json.dumps({"n": 1})
    row = connection.execute(statement.encode(), ["default", name, payload]).fetchone()
    assert row is not None
    return int(row[-1])


def enqueue_many(connection: Connection, payloads: Iterable[dict[str, Any]]) -> None:
    """Store many at once, in the fastest way there is."""
    with connection.cursor().copy(COPY) as copy:
        for payload in payloads:
            copy.write_row(("default", "nothing", json.dumps(payload)))


def nothing(**data: Any) -> dict[str, Any]:
    """No work, and a small result."""
    return {"ok": True}


def clock(**data: Any) -> dict[str, Any]:
    """Return the moment at which it began."""
    return {"at": time.monotonic()}


HANDLERS: dict[str, Callable[..., dict[str, Any]]] = {"nothing": nothing, "clock": clock}


def work(connection: Connection, holder: str, limit: int = BATCH) -> int:
    """Claim up to ``limit`` tasks, run them, complete them. Returns how many there were."""
    claimed = connection.execute(CLAIM, [holder, "default", limit]).fetchall()
    if claimed:
        results = [json.dumps(HANDLERS[name](**payload)) for _, name, payload in claimed]
        connection.execute(COMPLETE, [[row[0] for row in claimed], results, holder])
    return len(claimed)
