"""The texts of PostgreSQL's one-statement claims, compiled from the portable form's conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.db.models import BooleanField, CharField, DateTimeField, DurationField
from django.db.models.expressions import RawSQL

from leasing.functions import DbMicroseconds, DbNow
from leasing.validation.terms import Terms
from tasks.querysets.base import CLAIM_COLUMNS
from tasks.querysets.claimed import COLUMNS, REPORTED_COLUMNS, TRACED_COLUMNS, is_traced
from tasks.querysets.sql.statements import (
    MARKS,
    MICROSECONDS,
    compiled,
    inlined,
    shortened,
    table_of,
    update_of,
)
from tasks.registry import KINDS

if TYPE_CHECKING:
    from tasks.querysets.base import TaskRows

#: Several queues and kinds are one look: one after the other in the order they are given, each by
#: the index, until there are enough for the request that they belong to. Tasks with a concurrency
#: key are locked in their turn, but need a seat; and of what may not wait for a slot only the first
#: are granted, as many as begin at once or soon. Whether there were such the first column says,
#: also where nothing was granted: 1 for keys, and a bit for each request that came past others.
#:
#: The ``most`` that a claim like this asks for stands there as a constant, around and inside of the
#: limits, which are parameters, and so does the number of requests: by these parameters alone the
#: planner of a prepared statement would expect a tenth of the table, or several requests where
#: there is one, find its plan too dear, and make another for every claim. Inside more may be found
#: than the limit; no more is locked, for a row is as it is asked for.
_CHOSEN = """
WITH chosen AS MATERIALIZED (
    SELECT id, request, concurrency_key <> '' AS is_keyed, attempts > 0 AS has_run,
        attempts = 0 AND max_attempts > 1 AS may_wait
    FROM (
        SELECT within.*, request.number AS request
        FROM (
            SELECT * FROM unnest(%(rooms)s::int[])
                WITH ORDINALITY AS r (room, number) LIMIT {requests}
        ) AS request, LATERAL (
            SELECT found.* FROM {asked}, LATERAL ({found}) AS found
            WHERE asked.request = request.number LIMIT request.room
        ) AS within LIMIT {most}
    ) AS limited
), at_once AS MATERIALIZED (
    SELECT first.id FROM (
        SELECT * FROM unnest(%(free)s::int[], %(soon)s::int[])
            WITH ORDINALITY AS r (free, soon, number) LIMIT {requests}
    ) AS request, LATERAL (
        SELECT bool_or(has_run) AS has_run FROM chosen WHERE chosen.request = request.number
    ) AS known, LATERAL (
        SELECT id FROM chosen WHERE chosen.request = request.number AND NOT is_keyed
        LIMIT CASE WHEN known.has_run THEN request.free ELSE request.soon END
    ) AS first
)"""
_SAID = """(SELECT coalesce(bit_or(CASE
    WHEN is_keyed THEN 1 WHEN may_wait OR id IN (SELECT id FROM at_once) THEN 0
    ELSE 1 << request::int END), 0) FROM chosen)"""
_OF_CHOSEN = """{table}.id = ANY(ARRAY(
    SELECT id FROM chosen WHERE NOT is_keyed AND (may_wait OR id IN (SELECT id FROM at_once))
))"""
_LOCKED = "{ready} LIMIT {most} FOR NO KEY UPDATE OF {table} SKIP LOCKED"
_ASKED = """unnest(%(requests)s::int[], %(queues)s::text[], %(kinds)s::smallint[])
    AS asked (request, queue, kind)"""

#: A claim of any kind, in the order of all of them: what comes first is looked at without a lock,
#: and says how many of each kind there are to be. Where others lock some of it meanwhile, or there
#: are keys, the caller is told to look again. Of what may not wait for a slot, only what is among
#: the first ``free`` is granted.
_SHARED = """
WITH first AS MATERIALIZED (
    SELECT * FROM (
        SELECT queue, kind FROM unnest(%(queues)s::text[]) AS each (queue), LATERAL (
            SELECT asked.kind FROM unnest(ARRAY{kinds}::smallint[]) AS kinds (kind), LATERAL (
                SELECT each.queue, kinds.kind
            ) AS asked, LATERAL (
                SELECT * FROM ({seen} LIMIT {most}) AS within LIMIT %(limit)s
            ) AS seen ORDER BY priority DESC, scheduled_at, seen.id LIMIT %(limit)s
        ) AS merged LIMIT %(limit)s
    ) AS within LIMIT {most}
), chosen AS MATERIALIZED (
    SELECT *, concurrency_key <> '' AS is_keyed FROM (
        SELECT found.* FROM (
            SELECT queue, kind, count(*) AS share FROM first GROUP BY queue, kind
        ) AS asked, LATERAL (SELECT * FROM ({found}) AS locked LIMIT asked.share) AS found
        LIMIT {most}
    ) AS limited
)"""
_SAID_OF_SHARED = """(SELECT CASE
    WHEN count(*) < (SELECT count(*) FROM first) OR bool_or(is_keyed) THEN 1 ELSE 0
END FROM chosen)"""
_CHOSEN_ONE = """
WITH chosen AS MATERIALIZED (
    SELECT found.id, concurrency_key <> '' AS is_keyed
    FROM unnest(%(queues)s::text[]) AS asked (queue), LATERAL ({found}) AS found
)"""
_SAID_OF_ONE = "(SELECT count(*) FROM chosen WHERE is_keyed)"
#: Of all kinds, those that may wait, and the first that begin at once.
_OF_SHARED = """{table}.id = ANY(ARRAY(
    SELECT id FROM chosen WHERE NOT is_keyed AND (attempts = 0 AND max_attempts > 1 OR id IN (
        SELECT id FROM chosen ORDER BY priority DESC, scheduled_at, id LIMIT {free}
    ))
))"""
_OF_UNKEYED = "{table}.id = ANY(ARRAY(SELECT id FROM chosen WHERE NOT is_keyed))"

_CLAIM = """{chosen},
granted AS ({update} RETURNING {columns}, {order})
SELECT {answer} FROM (
    SELECT {said} AS passed_over, {now} AS now
) AS said LEFT JOIN granted ON true ORDER BY _priority DESC, _due, granted.id
"""
#: The same in rows that come in no order and begin with what it is, and without one where nothing
#: was granted: a quarter less work, for claims that look from the beginning where they find none.
_CLAIM_ON = """{chosen}
{update} RETURNING -priority::integer, date_part('epoch', scheduled_at), id,
    {said}, (SELECT {now}), {answer}
"""

#: The same from a place in the index on: behind the entry of a task that was claimed before. Of
#: its two parts one has nothing to do; which, is decided before it looks at a row.
_ASKED_AFTER = """unnest(
        %(requests)s::int[], %(queues)s::text[], %(kinds)s::smallint[], %(after)s::bigint[]
    ) AS asked (request, queue, kind, after)
    LEFT JOIN LATERAL (
        SELECT id, priority, scheduled_at FROM {table} WHERE id = asked.after LIMIT 1
    ) AS mark ON true"""
_FOUND_AFTER = "SELECT * FROM ({first}) AS first UNION ALL SELECT * FROM ({further}) AS further"
_FIRST = "asked.after IS NULL"
_FURTHER = (
    "{table}.priority = mark.priority"
    " AND ({table}.scheduled_at, {table}.id) > (mark.scheduled_at, mark.id)"
)
_ORDER = "priority AS _priority, scheduled_at AS _due"

#: Columns that few tasks need: reading them takes longer than reading a null.
_IF_REPORTED = "CASE WHEN name = ANY(%(reported)s::text[]) THEN {value} END"
#: For how many microseconds a task had been due; nothing of one that was taken back, for it
#: would tell of its first wait again.
_WAITED = "CASE WHEN {started} >= {now} OR {due} > {started} THEN {now} - {due} END"

_ONE = "{table}.id = {key}::bigint"
_QUEUE = RawSQL("asked.queue", [])
#: The columns that are read of what is locked.
_SEEN = ("pk", "concurrency_key", "attempts", "max_attempts")
_SEEN_IN_ORDER = (*_SEEN, "priority", "scheduled_at")

#: Each grant is sixteen of the bytes that come with the request, by the place of the row's key
#: among those that were chosen: the database takes longer to make one than to enter it in an index.
_GRANT = """encode(substring({noise}::bytea FROM 16 * width_bucket(
    {table}.id, ARRAY(SELECT id FROM chosen ORDER BY id)
) - 15 FOR 16), 'hex')::uuid"""

_HOLDER: Any = RawSQL(f"{MARKS['holder']}::varchar", [], output_field=CharField())
_TTL: Any = RawSQL(f"{MARKS['ttl']}::interval", [], output_field=DurationField())


def take_statement(rows: TaskRows, *, timed: bool, most: int | str, requests: int | str) -> str:
    found = _locked(rows, most)
    chosen = _CHOSEN.format(asked=_ASKED, found=found, most=most, requests=requests)
    return _taking(rows, chosen, _OF_CHOSEN, _SAID, timed)


def take_after_statement(
    rows: TaskRows, *, timed: bool, most: int | str, requests: int | str
) -> str:
    table = table_of(rows)
    first, further = (
        _locked(rows, most, RawSQL(which.format(table=table), [], output_field=BooleanField()))
        for which in (_FIRST, _FURTHER)
    )
    found = _FOUND_AFTER.format(first=first, further=further)
    asked = _ASKED_AFTER.format(table=table)
    chosen = _CHOSEN.format(asked=asked, found=found, most=most, requests=requests)
    now = compiled(rows, DbMicroseconds())
    answer = _reported(rows, timed, due="scheduled_at", now=f"(SELECT {now})")
    text = _CLAIM_ON.format(
        chosen=chosen,
        update=_granting(rows, _OF_CHOSEN),
        said=_SAID,
        now=now,
        answer=", ".join(answer),
    )
    return shortened(rows, text)


def take_one_statement(rows: TaskRows, *, timed: bool, most: int | str) -> str:
    one = RawSQL(_ONE.format(table=table_of(rows), key=MARKS["key"]), [])
    one.output_field = BooleanField()
    chosen = _CHOSEN_ONE.format(
        found=_locking(rows, rows.to_claim_of(_QUEUE).available().filter(one), most)
    )
    return _taking(rows, chosen, _OF_UNKEYED, _SAID_OF_ONE, timed)


def _taking(rows: TaskRows, chosen: str, which: str, said: str, timed: bool) -> str:
    traced = TRACED_COLUMNS if is_traced() else ()
    columns = ("task_data", *COLUMNS, *REPORTED_COLUMNS, *traced)
    answer = ("passed_over", "now", *_reported(rows, timed, due="_due", now="now"))
    return _claiming(rows, chosen, which, said, columns, answer, DbMicroseconds())


def _reported(rows: TaskRows, timed: bool, *, due: str, now: str) -> tuple[str, ...]:
    """Return the columns of a ``ClaimedTask``."""
    traced = TRACED_COLUMNS if is_traced() else ()
    reported = (_IF_REPORTED.format(value=value) for value in _reported_values(rows))
    # By their places: what is traced comes after this, also where this is not asked for.
    waited = [_waited(due, now)] if timed else ["NULL"] if traced else []
    own = ("grant_id::text" if column == "grant_id" else column for column in COLUMNS)
    return ("task_data", *own, *reported, *waited, *traced)


def _waited(due: str, now: str) -> str:
    due, started = (MICROSECONDS.format(moment=column) for column in (due, "started_at"))
    return _WAITED.format(due=due, started=started, now=now)


def _reported_values(rows: TaskRows) -> Iterator[str]:
    for name in REPORTED_COLUMNS:
        is_moment = isinstance(rows.model._meta.get_field(name), DateTimeField)
        yield MICROSECONDS.format(moment=name) if is_moment else name


def claim_statement(rows: TaskRows, *, most: int | str) -> str:
    columns = tuple(str(field.column) for field in rows.model._meta.concrete_fields)
    seen = inlined(rows, _to_claim(rows).only(*CLAIM_COLUMNS).query)
    found = _locking(rows, _to_claim(rows), most, _SEEN_IN_ORDER)
    chosen = _SHARED.format(kinds=list(KINDS), seen=seen, found=found, most=most)
    answer = ("passed_over", "now", "granted.*")
    return _claiming(rows, chosen, _OF_SHARED, _SAID_OF_SHARED, columns, answer, DbNow())


def _to_claim(rows: TaskRows) -> TaskRows:
    return rows.to_claim(_QUEUE, RawSQL("asked.kind", [])).available()


def _locked(rows: TaskRows, most: int | str, *which: Any) -> str:
    return _locking(rows, _to_claim(rows).filter(*which), most)


def _locking(
    rows: TaskRows, ready: TaskRows, most: int | str, columns: Sequence[str] = _SEEN
) -> str:
    seen = inlined(rows, ready.only(*columns).query)
    return _LOCKED.format(ready=seen, most=most, table=table_of(rows))


def _claiming(
    rows: TaskRows,
    chosen: str,
    which: str,
    said: str,
    columns: Sequence[str],
    answer: Sequence[str],
    now: Any,
) -> str:
    text = _CLAIM.format(
        chosen=chosen,
        update=_granting(rows, which),
        columns=", ".join(columns),
        order=_ORDER,
        answer=", ".join(answer),
        said=said,
        now=compiled(rows, now),
    )
    return shortened(rows, text)


def _granting(rows: TaskRows, which: str) -> str:
    # What is chosen is locked, and was ready when it was: that need not be asked again. It would
    # have PostgreSQL take the index of ready tasks for that of the chosen, and read all of them.
    table = table_of(rows)
    granting = {
        **rows.granting(Terms(_HOLDER, _TTL)),
        "grant_id": RawSQL(_GRANT.format(table=table, noise=MARKS["noise"]), []),
    }
    which = which.format(table=table, free=MARKS["free"])
    update = update_of(rows._everything(), which, granting)
    now = compiled(rows, DbMicroseconds())
    return update.replace(now, f"(SELECT {now})")  # once, and not for each row
