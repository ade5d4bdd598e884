"""PostgreSQL's statements for claims: each locks what it finds, grants, and answers in one round
trip where the portable form takes five.

``take`` is the claim of a worker: of one or several kinds, each by the index; from the beginning,
or behind the last task that the claim before it got. ``take_one`` is that of one task, by its key.
``claim`` is that of a caller who wants model instances, of every kind in the order of all of them.

Tasks with a concurrency key are locked in their turn, but need a slot: they are left to the
portable form. Of what may not wait for a slot of the worker (it has one attempt, or has run
before) only the first are granted, as many as begin at once.

The grants are random numbers of this process: as many as may be claimed travel with the statement,
for the database takes a microsecond to make one. They are no number with the key put into it:
whoever sees one grant of a claim could tell the others.

In the texts, names in capitals are the texts of this file. The limit is a parameter, of which the
planner of a prepared statement knows no value: alone it would make it expect a tenth of the table.
So {most}, a limit that is never less, and {places}, the number of places that are looked at, stand
beside it as constants. And each limit is a query: for a parameter, a plan made for its value would
seem cheaper than one for any value, and be made for every claim. A subquery may find more rows than
the limit; no more are locked, for rows are locked as the outer query asks for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections

from leasing.db import sql
from leasing.db.routing import is_plain
from leasing.db.row_reader import reader
from leasing.db.statements import array_of, cached_statement, fetch_all, joined, moment
from leasing.functions import EPOCH, DbMicroseconds, DbNow
from leasing.querysets import GRANTING as GRANTING_OF_LEASES
from leasing.runtime.clock import clock
from leasing.runtime.events import is_heard
from leasing.validation.terms import Terms
from tasks import registry
from tasks.querysets.base import TaskRows
from tasks.querysets.claimed import ClaimedTask, ClaimTerm, is_traced, keeping
from tasks.querysets.sql.cursors import ClaimCursor
from tasks.querysets.sql.plans import plan_took, planned
from tasks.registry import KINDS

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.slots import Seats

#: The conditions of ``TaskRows.available`` and ``to_claim`` on a task ``t``, here of the queue and
#: the kind that are ``asked`` for.
READY = "t.status = 'ready' AND t.scheduled_at <= {now}"
OF_QUEUE = """t.queue = asked.queue AND NOT EXISTS (
    SELECT 1 FROM leasing_tasks_queue AS q WHERE q.name = asked.queue AND q.paused_at IS NOT NULL
)"""
IN_ORDER = "ORDER BY t.priority DESC, t.scheduled_at, t.id"
LOCKED = "FOR NO KEY UPDATE OF t SKIP LOCKED"
SEEN = "t.id, t.concurrency_key, t.attempts, t.max_attempts, t.priority, t.scheduled_at"
#: The rows that are locked for a claim, with the columns for the choice among them.
LIMITED = """
WITH chosen AS MATERIALIZED (
    SELECT *, concurrency_key <> '' AS is_keyed, attempts = 0 AND max_attempts > 1 AS may_wait
    FROM (SELECT found.* FROM {asked}, LATERAL ({found}) AS found LIMIT (SELECT %(room)s)) AS within
    LIMIT {most}
), at_once AS MATERIALIZED (
    SELECT id FROM chosen WHERE NOT is_keyed LIMIT (SELECT %(free)s)
)"""
TO_GRANT = "NOT is_keyed AND (may_wait OR id IN (SELECT id FROM at_once))"
#: 1 where it came past tasks that need a seat, 2 past such as are claimed for a free slot alone.
PASSED = """(SELECT coalesce(bit_or(CASE
    WHEN is_keyed THEN 1 WHEN may_wait OR id IN (SELECT id FROM at_once) THEN 0 ELSE 2
END), 0) FROM chosen)"""

#: Several queues and kinds are one look: one after the other in the order they are given, each by
#: the index, until there are enough.
ASKED = """(
    SELECT * FROM unnest(%(queues)s::text[], %(kinds)s::smallint[]) LIMIT {places}
) AS asked (queue, kind)"""
FOUND = """
    SELECT {SEEN} FROM leasing_tasks_task AS t
    WHERE {READY} AND {OF_QUEUE} AND t.kind = asked.kind
    {IN_ORDER} LIMIT {most} {LOCKED}
"""
#: The same from a place in the index on: behind the entry of a task that was claimed before. Of
#: its two parts one has nothing to do; which, is decided before it looks at a row.
ASKED_AFTER = """(
        SELECT * FROM unnest(%(queues)s::text[], %(kinds)s::smallint[], %(after)s::bigint[])
        LIMIT {places}
    ) AS asked (queue, kind, after)
    LEFT JOIN LATERAL (
        SELECT id, priority, scheduled_at FROM leasing_tasks_task WHERE id = asked.after LIMIT 1
    ) AS mark ON true
"""
FOUND_AFTER = """
    SELECT * FROM (
        SELECT {SEEN} FROM leasing_tasks_task AS t
        WHERE {READY} AND {OF_QUEUE} AND t.kind = asked.kind AND asked.after IS NULL
        {IN_ORDER} LIMIT {most} {LOCKED}
    ) AS first
    UNION ALL
    SELECT * FROM (
        SELECT {SEEN} FROM leasing_tasks_task AS t
        WHERE {READY} AND {OF_QUEUE} AND t.kind = asked.kind AND t.priority = mark.priority
            AND (t.scheduled_at, t.id) > (mark.scheduled_at, mark.id)
        {IN_ORDER} LIMIT {most} {LOCKED}
    ) AS further
"""
FOUND_ONE = """
    SELECT {SEEN} FROM leasing_tasks_task AS t
    WHERE {READY} AND {OF_QUEUE} AND t.id = %(key)s::bigint
    LIMIT {most} {LOCKED}
"""
#: The first tasks of every kind are read without a lock, and say how many of each are claimed.
#: Where others lock some of them meanwhile, or there are keys, the caller is told to look again.
SHARED = """
WITH first AS MATERIALIZED (
    SELECT * FROM (
        SELECT queue, kind FROM (
            SELECT * FROM unnest(%(queues)s::text[]) LIMIT {places}
        ) AS each (queue), LATERAL (
            SELECT asked.kind FROM unnest(ARRAY{kinds}::smallint[]) AS kinds (kind), LATERAL (
                SELECT each.queue, kinds.kind
            ) AS asked, LATERAL (
                SELECT * FROM (
                    SELECT {SEEN} FROM leasing_tasks_task AS t
                    WHERE {READY} AND {OF_QUEUE} AND t.kind = asked.kind
                    {IN_ORDER} LIMIT {most}
                ) AS within LIMIT (SELECT %(room)s)
            ) AS seen ORDER BY priority DESC, scheduled_at, seen.id LIMIT (SELECT %(room)s)
        ) AS merged LIMIT (SELECT %(room)s)
    ) AS within LIMIT {most}
), chosen AS MATERIALIZED (
    SELECT *, concurrency_key <> '' AS is_keyed, attempts = 0 AND max_attempts > 1 AS may_wait
    FROM (
        SELECT found.* FROM (
            SELECT queue, kind, count(*) AS share FROM first GROUP BY queue, kind
        ) AS asked, LATERAL (SELECT * FROM ({found}) AS locked LIMIT asked.share) AS found
        LIMIT {most}
    ) AS within
), at_once AS MATERIALIZED (
    SELECT id FROM chosen ORDER BY priority DESC, scheduled_at, id LIMIT (SELECT %(free)s)
)"""
PASSED_OF_SHARED = """(
    SELECT (count(*) < (SELECT count(*) FROM first) OR coalesce(bool_or(is_keyed), false))::integer
    FROM chosen
)"""

#: Each grant is sixteen of the bytes that come with the statement, by the place of the row's key
#: among those that were chosen.
GRANT = """encode(substring(%(noise)s::bytea FROM 16 * width_bucket(
    t.id, ARRAY(SELECT id FROM chosen ORDER BY id)
) - 15 FOR 16), 'hex')::uuid"""
#: The columns of ``TaskRows.granting``.
GRANTING = GRANTING_OF_LEASES | {
    "grant_id": GRANT,
    "status": "'running'",
    "attempts": "t.attempts + 1",
    "started_at": "coalesce(t.started_at, {now})",
    "progress": "NULL",
    "progressed_at": "{now}",
    "unique_key": "CASE WHEN t.unique_for = 'waiting' THEN NULL ELSE t.unique_key END",
}
#: The chosen rows are locked, and were ready then: the update does not ask that again, or
#: PostgreSQL would take the index of ready tasks in place of their keys, and read all of them.
UPDATE = """
UPDATE leasing_tasks_task AS t SET {granting}
WHERE t.id = ANY(ARRAY(SELECT id FROM chosen WHERE {TO_GRANT}))
RETURNING"""
#: The answer has what was passed, and the clock, also where nothing was granted.
CLAIM = """{chosen},
granted AS ({UPDATE} {columns}, t.priority AS _priority, t.scheduled_at AS _due)
SELECT said.*, granted.* FROM (SELECT {passed} AS passed, {clock} AS clock) AS said
LEFT JOIN granted ON true
ORDER BY _priority DESC, _due, granted.id
"""
#: The same in rows that come in no order and begin with what it is, and without one where nothing
#: was granted: a quarter less work, for claims that look from the beginning where they find none.
CLAIM_ON = """{chosen}
{UPDATE} -t.priority::integer, date_part('epoch', t.scheduled_at), t.id,
    {passed}, (SELECT {clock}), {columns}
"""

#: Moments as numbers, which are read much faster.
CREATED = "(EXTRACT(EPOCH FROM t.created_at) * 1000000)::bigint"
STARTED = "(EXTRACT(EPOCH FROM t.started_at) * 1000000)::bigint"
DUE = "(EXTRACT(EPOCH FROM t.scheduled_at) * 1000000)::bigint"
#: The columns of a ClaimedTask. Those that few tasks need are null for others, which is read
#: faster. For how many microseconds a task had been due is read where somebody counts; nothing of
#: one that was taken back, for it would tell of its first wait again.
CLAIMED = """t.task_data, t.id, t.name, t.queue, t.kind, t.attempts, t.max_attempts, t.timeout,
    t.progress_timeout, t.concurrency_key, t.grant_id::text, t.fencing_token, t.priority,
    CASE WHEN t.name = ANY(%(reported)s::text[]) THEN {CREATED} END,
    CASE WHEN t.name = ANY(%(reported)s::text[]) THEN {STARTED} END,
    {waited}, {trace}"""
WAITED = "CASE WHEN {STARTED} >= {clock} OR {DUE} > {STARTED} THEN {clock} - {DUE} END"

#: Of the bytes with the version and the variant of a UUID, what they are of a random one.
_VERSION = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
#: As ``json.loads`` does it, without a look at what may stand around a text.
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def serves(rows: TaskRows) -> bool:
    """Return True if these statements claim what ``rows`` would: all of a PostgreSQL database, by
    the conditions and columns that they are written after."""
    kind = type(rows)
    return (
        sql.serves(rows.db)
        and is_plain(rows.query)
        and kind.available is TaskRows.available
        and kind.granting is TaskRows.granting
    )


def take(
    rows: TaskRows,
    terms: Terms,
    queues: Sequence[str],
    kinds: Sequence[int],
    seats: Seats,
    cursor: ClaimCursor,
) -> tuple[list[ClaimedTask], bool]:
    """Grant ready tasks of these ``kinds`` that need no seat, as many as ``seats`` has room for.
    Returns them, and whether it came past tasks that need one."""
    places = [(queue, kind) for queue in queues for kind in kinds]
    claimed, are_keyed = _take(rows, terms, places, seats, cursor.after(places))
    if seats.room <= 0:
        cursor.go_on(claimed)
    elif cursor.end(kinds) and not (are_keyed or seats.passed_over):
        with keeping(claimed):
            more, are_keyed = _take(rows, terms, places, seats, None)
            claimed += more
    return claimed, are_keyed


def _take(
    rows: TaskRows,
    terms: Terms,
    places: Sequence[tuple[str, int]],
    seats: Seats,
    after: list[int | None] | None,
) -> tuple[list[ClaimedTask], bool]:
    queues, kinds = map(list, zip(*places, strict=True))
    values = {**_values(terms, queues, seats), "kinds": array_of(kinds)}
    if after is None:
        chosen = (LIMITED, ASKED, FOUND)
        return _claimed(rows, terms, seats, values, chosen, len(places))
    values["after"] = joined("NULL" if each is None else str(each) for each in after)
    parts = (CLAIM_ON, LIMITED, ASKED_AFTER, FOUND_AFTER, PASSED)
    sent_at, answers = _sent(rows, parts, values, seats, places=len(places))
    answers.sort()  # by what they begin with, in which no two are the same
    passed, now = answers[0][3:5] if answers else (0, 0)
    tasks = [answer[5:] for answer in answers]
    return _read(rows, terms, seats, sent_at, now, tasks, passed), bool(passed & 1)


def take_one(
    rows: TaskRows, terms: Terms, queue: str, key: int, seats: Seats
) -> tuple[list[ClaimedTask], bool]:
    """``take``, of the task with this ``key`` alone."""
    values = {**_values(terms, [queue], seats), "key": key}
    asked = "unnest(%(queues)s::text[]) AS asked (queue)"
    return _claimed(rows, terms, seats, values, (LIMITED, asked, FOUND_ONE), 1)


def _claimed(
    rows: TaskRows,
    terms: Terms,
    seats: Seats,
    values: dict[str, Any],
    chosen: tuple[str, str, str],
    places: int,
) -> tuple[list[ClaimedTask], bool]:
    sent_at, answers = _sent(rows, (CLAIM, *chosen, PASSED), values, seats, places=places)
    passed, now, data, *_ = answers[0]
    tasks = [] if data is None else [answer[2:-2] for answer in answers]
    return _read(rows, terms, seats, sent_at, now, tasks, passed), bool(passed & 1)


def _read(
    rows: TaskRows,
    terms: Terms,
    seats: Seats,
    sent_at: float,
    microseconds: int,
    tasks: list[tuple[Any, ...]],
    passed: int,
) -> list[ClaimedTask]:
    seats.passed_over = passed >= 2
    if not tasks:
        return []
    seats.take(len(tasks))
    now = EPOCH + timedelta(microseconds=microseconds)
    term = ClaimTerm(terms.holder, terms.ttl, now, now + terms.ttl, now, sent_at, rows.db)
    return [ClaimedTask(term, _scan(data, 0)[0], *columns) for data, *columns in tasks]


def claim(
    rows: TaskRows, terms: Terms, queues: Sequence[str], seats: Seats
) -> tuple[list[Task], bool]:
    """Grant ready tasks of every kind that need no seat, with every column, as model instances.
    Returns them, and whether there may be more."""
    values = _values(terms, queues, seats)
    parts = (CLAIM, SHARED, "", FOUND, PASSED_OF_SHARED)
    sent_at, answers = _sent(rows, parts, values, seats, places=len(queues), whole=True)
    read = reader(rows.model, rows.db)
    passed, now, *_ = answers[0]
    found = [columns for _, _, *columns, _, _ in answers if columns[read.key] is not None]
    tasks: list[Task] = read.rows(found)
    for task in tasks:
        task.now, task.sent_at = now, sent_at
    seats.take(len(tasks))
    return tasks, bool(passed)


def _values(terms: Terms, queues: Sequence[str], seats: Seats) -> dict[str, Any]:
    grants = bytearray(os.urandom(16 * seats.room))
    grants[6::16] = grants[6::16].translate(_VERSION)
    grants[8::16] = grants[8::16].translate(_VARIANT)
    if terms.request_id is not None:
        begin = terms.begin_of_grants
        ends = range(8, len(grants), 16)
        grants = bytearray(b"".join(begin + grants[at : at + 8] for at in ends))
    return {
        "holder": terms.holder,
        "ttl": terms.ttl,
        "queues": array_of(list(queues)),
        "noise": bytes(grants),
        "room": seats.room,
        "free": seats.free,
        "reported": array_of(registry.observed()),
    }


def _sent(
    rows: TaskRows,
    parts: tuple[str, ...],
    values: dict[str, Any],
    seats: Seats,
    *,
    places: int = 1,
    whole: bool = False,
) -> tuple[float, list[tuple[Any, ...]]]:
    """Return the moment at which a statement of these ``parts`` was sent, and its rows; ``whole``
    ones have every column."""
    connection: Any = connections[rows.db]
    most = 16
    while most < seats.room:  # so that few statements serve for all limits
        most *= 16
    timed, traced = is_heard("attempt.ran"), is_traced()

    def make() -> str:
        return _spelled(rows, parts, most, places, whole=whole, timed=timed, traced=traced)

    key = (parts, rows.model, most, places, whole, timed, traced)
    statement = cached_statement(key, make)
    text = planned(statement)
    sent_at = clock()
    answers = fetch_all(connection, text, values, known_as=statement)
    plan_took(clock() - sent_at, len(answers))
    return sent_at, answers


def _spelled(
    rows: TaskRows,
    parts: tuple[str, ...],
    most: int,
    places: int,
    *,
    whole: bool,
    timed: bool,
    traced: bool,
) -> str:
    text, chosen, asked, found, passed = parts
    connection = connections[rows.db]
    now = moment(DbNow, connection)
    microseconds = f"(SELECT {moment(DbMicroseconds, connection)})"  # once, not for each row
    fields = rows.model._meta.concrete_fields
    spelled = {
        **globals(),
        "chosen": chosen,
        "asked": asked,
        "found": found,
        "passed": passed,
        # A constant: of an array parameter a plan for any value expects ten, which seems so dear
        # that PostgreSQL never chooses it.
        "kinds": list(KINDS),
        "most": most,
        "places": places,
        "now": now,
        "microseconds": microseconds,
        "clock": now if whole else microseconds,
        "columns": ", ".join(f"t.{field.column}" for field in fields) if whole else CLAIMED,
        "waited": WAITED if timed else "NULL",
        "trace": "t.trace_context" if traced else "NULL",
        "granting": ", ".join(f"{name} = {text}" for name, text in GRANTING.items()),
    }
    while "{" in text:  # parts have parts
        text = text.format_map(spelled)
    # What has more than 4,096 characters the driver parses anew at every call.
    return " ".join(text.split())
