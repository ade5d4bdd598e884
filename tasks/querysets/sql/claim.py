"""PostgreSQL's one-statement forms of claims.

A claim locks what it finds, grants, and answers in one round trip where the portable form takes
five. Conditions and columns are the portable form's own.

The grants are the database's random numbers. One number of this process with the key put into
it measures no faster, and whoever sees one grant of a claim could tell the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import BooleanField, CharField, DateTimeField, DurationField
from django.db.models.expressions import RawSQL

from leasing.functions import EPOCH, DbMicroseconds, DbNow
from leasing.runtime.clock import clock
from leasing.validation.terms import Terms
from tasks import registry, signals
from tasks.querysets.claimed import (
    COLUMNS,
    REPORTED_COLUMNS,
    TRACED_COLUMNS,
    ClaimedTask,
    ClaimTerm,
    keeping,
)
from tasks.querysets.sql.cursors import ClaimCursor, claim_cursor_of
from tasks.querysets.sql.statements import (
    MARKS,
    MICROSECONDS,
    cached_statement,
    compiled,
    inlined,
    key_of,
    plan,
    plan_took,
    table_of,
    update_of,
)
from tasks.runtime.tracepoints import points

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.base import TaskRows

#: Several queues are one look: one after the other in the order they are given, each by the
#: index, until there are enough. Tasks with a concurrency key are locked in their turn, but need
#: a seat; whether there were any the first column says, also where nothing was granted.
#:
#: The ``most`` that a claim like this asks for stands there as a constant, around and inside of
#: the limit, which is a parameter: by that alone the planner of a prepared statement would expect
#: a tenth of the table, find its plan too dear, and make another for every claim. Inside more may
#: be found than the limit; no more is locked, for a row is as it is asked for.
_CHOSEN = """
WITH chosen AS MATERIALIZED (
    SELECT * FROM (
        SELECT found.* FROM {asked}, LATERAL ({found}) AS found LIMIT %(limit)s
    ) AS within LIMIT {most}
)"""
_CLAIM = """{chosen},
granted AS ({update} RETURNING {columns}, {order})
SELECT {answer} FROM (
    SELECT EXISTS (SELECT 1 FROM chosen WHERE concurrency_key <> '') AS passed_over,
        {now} AS now
) AS said LEFT JOIN granted ON true ORDER BY _priority DESC, _scheduled_at, granted.id
"""
#: The same in rows that come in no order and begin with what it is, and without one where nothing
#: was granted: a quarter less work, for claims that look from the beginning where they find none.
_CLAIM_ON = """{chosen}
{update} RETURNING -priority::integer, date_part('epoch', scheduled_at), id,
    (SELECT EXISTS (SELECT 1 FROM chosen WHERE concurrency_key <> '')), (SELECT {now}), {answer}
"""
_LOCKED = "{ready} LIMIT {most} FOR NO KEY UPDATE OF {table} SKIP LOCKED"
_ASKED = "unnest(%(queues)s::text[]) AS asked (name)"

#: The same from a place in the index on: behind the entry of a task that was claimed before. Of
#: its two parts one has nothing to do; which, is decided before it looks at a row.
_ASKED_AFTER = """unnest(%(queues)s::text[], %(after)s::bigint[]) AS asked (name, after)
    LEFT JOIN LATERAL (
        SELECT id, priority, scheduled_at FROM {table} WHERE id = asked.after LIMIT 1
    ) AS mark ON true"""
_FOUND_AFTER = "SELECT * FROM ({first}) AS first UNION ALL SELECT * FROM ({further}) AS further"
_FIRST = "asked.after IS NULL"
_FURTHER = (
    "{table}.priority = mark.priority"
    " AND ({table}.scheduled_at, {table}.id) > (mark.scheduled_at, mark.id)"
)
_ORDER = "priority AS _priority, scheduled_at AS _scheduled_at"
_OF_CHOSEN = "{table}.id = ANY(ARRAY(SELECT id FROM chosen WHERE concurrency_key = ''))"

#: Columns that few tasks need: reading them takes longer than reading a null.
_IF_REPORTED = "CASE WHEN name = ANY(%(reported)s::text[]) THEN {value} END"
#: For how many microseconds a task had been due; nothing of one that was taken back, for it
#: would tell of its first wait again.
_WAITED = "CASE WHEN {started} >= {now} OR {due} > {started} THEN {now} - {due} END"

_ONE = "{table}.id = {key}::bigint"

_HOLDER: Any = RawSQL(f"{MARKS['holder']}::varchar", [], output_field=CharField())
_TTL: Any = RawSQL(f"{MARKS['ttl']}::interval", [], output_field=DurationField())

#: As ``json.loads`` does it, without a look at what may stand around a text.
_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once


def take(
    rows: TaskRows, terms: Terms, queues: Sequence[str], limit: int
) -> tuple[list[ClaimedTask], bool]:
    """Grant up to ``limit`` ready tasks of ``rows`` that need no seat. Returns them, and whether
    it came past tasks that do."""
    key = key_of(rows)
    claim_cursor = ClaimCursor() if key is None else claim_cursor_of(key)
    after = claim_cursor.after(queues)
    claimed, passed_over = _take(rows, terms, queues, limit, after)
    if len(claimed) < limit:
        claim_cursor.end()
        if after is not None and not passed_over:
            with keeping(claimed):
                more, passed_over = _take(rows, terms, queues, limit - len(claimed), None)
                claimed += more
    else:
        claim_cursor.go_on(claimed)
    return claimed, passed_over


def _take(
    rows: TaskRows,
    terms: Terms,
    queues: Sequence[str],
    limit: int,
    after: list[int | None] | None,
) -> tuple[list[ClaimedTask], bool]:
    parameters = {**_parameters(terms, queues, limit), "reported": registry.observed()}
    if after is None:
        statement = _timed("take", rows, _take_statement, limit)
        return _answered(rows, terms, statement, parameters)
    statement = _timed("take after", rows, _take_after_statement, limit)
    sent_at, answers = _answers(rows, statement, parameters | {"after": after})
    if not answers:
        return [], False
    answers.sort()  # by what they begin with, in which no two are the same
    return _claimed(rows, terms, sent_at, [answer[3:] for answer in answers])


def take_one(rows: TaskRows, terms: Terms, queue: str, key: int) -> tuple[list[ClaimedTask], bool]:
    """``take``, of the task with this ``key`` alone."""
    parameters = {**_parameters(terms, [queue], 1), "reported": registry.observed(), "key": key}
    return _answered(rows, terms, _timed("take one", rows, _take_one_statement, 1), parameters)


def _timed(what: str, rows: TaskRows, compiled: Callable[..., str], limit: int) -> str:
    # How long they have waited is read where somebody counts, and nowhere else.
    timed, most = signals.claimed.is_counted, _most(limit)
    return cached_statement((what, timed, most), rows, partial(compiled, timed=timed, most=most))


def _most(limit: int) -> int:
    """Return the limit of a claim, rounded so that few statements serve for all of them."""
    most = 16
    while most < limit:
        most *= 16
    return most


def _answers(
    rows: TaskRows, statement: str, parameters: dict[str, Any]
) -> tuple[float, list[tuple[Any, ...]]]:
    """Return the moment at which the statement was sent, and its rows."""
    statement += plan()
    sent_at = clock()
    with connections[rows.db].cursor() as cursor:
        cursor.execute(statement, parameters)
        answers = cursor.fetchall()
    plan_took(clock() - sent_at, len(answers))
    return sent_at, answers


def _answered(
    rows: TaskRows, terms: Terms, statement: str, parameters: dict[str, Any]
) -> tuple[list[ClaimedTask], bool]:
    sent_at, answers = _answers(rows, statement, parameters)
    passed_over, _, data, *_ = answers[0]
    return ([], passed_over) if data is None else _claimed(rows, terms, sent_at, answers)


def _claimed(
    rows: TaskRows, terms: Terms, sent_at: float, answers: list[tuple[Any, ...]]
) -> tuple[list[ClaimedTask], bool]:
    passed_over, microseconds, *_ = answers[0]
    now = EPOCH + timedelta(microseconds=microseconds)
    term = ClaimTerm(terms.holder, terms.ttl, now, now + terms.ttl, now, sent_at, rows.db)
    return [ClaimedTask(term, _read(data), *others) for _, _, data, *others in answers], passed_over


def _read(data: str) -> dict[str, Any]:
    value: dict[str, Any] = _scan(data, 0)[0]
    return value


def claim(
    rows: TaskRows, terms: Terms, queues: Sequence[str], limit: int
) -> tuple[list[Task], bool]:
    """``take``, with every column, as model instances."""
    most = _most(limit)
    statement = (
        cached_statement(("claim", most), rows, partial(_claim_statement, most=most)) + plan()
    )
    sent_at = clock()
    manager: Any = rows.model._default_manager.using(rows.db)
    answers: list[Any] = list(manager.raw(statement, _parameters(terms, queues, limit)))
    plan_took(clock() - sent_at, len(answers))
    passed_over = answers[0].passed_over
    tasks: list[Task] = [task for task in answers if task.pk is not None]
    for task in tasks:
        task.sent_at = sent_at
        del task.passed_over  # type: ignore[attr-defined]
    return tasks, passed_over


def _parameters(terms: Terms, queues: Sequence[str], limit: int) -> dict[str, Any]:
    return {
        "holder": terms.holder,
        "ttl": terms.ttl,
        "queues": list(queues),
        "limit": limit,
    }


def _take_statement(rows: TaskRows, *, timed: bool, most: int) -> str:
    return _taking(rows, _ASKED, _locked(rows, most), timed, most)


def _take_after_statement(rows: TaskRows, *, timed: bool, most: int) -> str:
    table = table_of(rows)
    first, further = (
        _locked(rows, most, RawSQL(which.format(table=table), [], output_field=BooleanField()))
        for which in (_FIRST, _FURTHER)
    )
    found = _FOUND_AFTER.format(first=first, further=further)
    chosen = _CHOSEN.format(asked=_ASKED_AFTER.format(table=table), found=found, most=most)
    now = compiled(rows, DbMicroseconds())
    answer = _reported(rows, timed, due="scheduled_at", now=f"(SELECT {now})")
    return _CLAIM_ON.format(
        chosen=chosen, update=_granting(rows), now=now, answer=", ".join(answer)
    )


def _take_one_statement(rows: TaskRows, *, timed: bool, most: int) -> str:
    one = _ONE.format(table=table_of(rows), key=MARKS["key"])
    locked = _locked(rows, most, RawSQL(one, [], output_field=BooleanField()))
    return _taking(rows, _ASKED, locked, timed, most)


def _taking(rows: TaskRows, asked: str, found: str, timed: bool, most: int) -> str:
    traced = () if points.tracer is None else TRACED_COLUMNS
    columns = ("task_data", *COLUMNS, *REPORTED_COLUMNS, *traced)
    answer = ("passed_over", "now", *_reported(rows, timed, due="_scheduled_at", now="now"))
    chosen = _CHOSEN.format(asked=asked, found=found, most=most)
    return _claiming(rows, chosen, columns, answer, DbMicroseconds())


def _reported(rows: TaskRows, timed: bool, *, due: str, now: str) -> tuple[str, ...]:
    """Return the columns of a ``ClaimedTask``."""
    traced = () if points.tracer is None else TRACED_COLUMNS
    reported = (_IF_REPORTED.format(value=value) for value in _reported_values(rows))
    # By their places: what is traced comes after this, also where this is not asked for.
    waited = [_waited(due, now)] if timed else ["NULL"] if traced else []
    return ("task_data", *COLUMNS, *reported, *waited, *traced)


def _waited(due: str, now: str) -> str:
    due, started = (MICROSECONDS.format(moment=column) for column in (due, "started_at"))
    return _WAITED.format(due=due, started=started, now=now)


def _reported_values(rows: TaskRows) -> Iterator[str]:
    for name in REPORTED_COLUMNS:
        is_moment = isinstance(rows.model._meta.get_field(name), DateTimeField)
        yield MICROSECONDS.format(moment=name) if is_moment else name


def _claim_statement(rows: TaskRows, *, most: int) -> str:
    columns = tuple(str(field.column) for field in rows.model._meta.concrete_fields)
    chosen = _CHOSEN.format(asked=_ASKED, found=_locked(rows, most), most=most)
    return _claiming(rows, chosen, columns, (*columns, "passed_over", "now"), DbNow())


def _locked(rows: TaskRows, most: int, *which: Any) -> str:
    ready = rows.to_claim(RawSQL("asked.name", [])).available().filter(*which)
    locked = inlined(rows, ready.only("pk", "concurrency_key").query)
    return _LOCKED.format(ready=locked, most=most, table=table_of(rows))


def _claiming(
    rows: TaskRows, chosen: str, columns: Sequence[str], answer: Sequence[str], now: Any
) -> str:
    return _CLAIM.format(
        chosen=chosen,
        update=_granting(rows),
        columns=", ".join(columns),
        order=_ORDER,
        answer=", ".join(answer),
        now=compiled(rows, now),
    )


def _granting(rows: TaskRows) -> str:
    # What is chosen is locked, and was ready when it was: that need not be asked again. It would
    # have PostgreSQL take the index of ready tasks for that of the chosen, and read all of them.
    granting = {
        **rows.granting(Terms(_HOLDER, _TTL)),
        "grant_id": RawSQL("gen_random_uuid()", []),
    }
    return update_of(rows._everything(), _OF_CHOSEN.format(table=table_of(rows)), granting)
