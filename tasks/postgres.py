"""PostgreSQL's one-statement forms of claims and completions.

A claim locks what it finds, grants, and answers in one round trip where the portable form takes
five. Conditions and columns are the portable form's own, compiled by Django once and then kept,
with every constant in place: a parameter would hide from the planner of a prepared statement
that a partial index serves. What differs from claim to claim stays a parameter.

The grants are the database's random numbers. One number of this process with the key put into
it measures no faster, and whoever sees one grant of a claim could tell the others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import BooleanField, CharField, DurationField, QuerySet, sql
from django.db.models.expressions import RawSQL

from leasing import postgres
from leasing.clock import clock
from leasing.functions import EPOCH, DbMicroseconds, DbNow
from leasing.terms import Terms
from tasks.taken import COLUMNS, Taken, Term

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.claim import Claiming
    from tasks.querysets.many import Batching

#: Several queues are one look: one after the other in the order they are given, each by the
#: index, until there are enough. Tasks with a concurrency key are locked in their turn, but need
#: a seat; whether there were any the first column says, also where nothing was granted.
_CLAIM = """
WITH chosen AS MATERIALIZED (
    SELECT found.* FROM unnest(%(queues)s::text[]) AS asked (name),
    LATERAL ({ready} LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS found LIMIT %(limit)s
),
granted AS ({update} RETURNING {columns}, {order})
SELECT {answer} FROM (
    SELECT EXISTS (SELECT 1 FROM chosen WHERE concurrency_key <> '') AS passed_over,
        {now} AS now
) AS said LEFT JOIN granted ON true ORDER BY _priority DESC, _scheduled_at, granted.id
"""
_ORDER = "priority AS _priority, scheduled_at AS _scheduled_at"
_CHOSEN = "{table}.id = ANY(ARRAY(SELECT id FROM chosen WHERE concurrency_key = ''))"

_COMPLETE = """
WITH mine AS MATERIALIZED ({locked} FOR NO KEY UPDATE)
{setting} FROM ROWS FROM (
    unnest(%(ids)s::bigint[]), unnest(%(grants)s::uuid[]), jsonb_array_elements(%(outputs)s::jsonb)
) AS given (id, grant_id, output)
WHERE {conditions} RETURNING {table}.id
"""
_GIVEN = "{table}.id = ANY({ids}::bigint[]) AND {table}.grant_id = ANY({grants}::uuid[])"
_OF_GRANT = (
    "{table}.id = ANY(ARRAY(SELECT id FROM mine))"
    " AND {table}.id = given.id AND {table}.grant_id = given.grant_id"
)
#: An output of nothing is a null, as in the portable form.
_OUTPUT = "NULLIF(given.output, 'null'::jsonb)"

#: Parameters, as they stand in what Django compiles: as nothing else that may stand there.
_MARKS = {name: f"<{name} {secrets.token_hex()}>" for name in ("holder", "ttl", "ids", "grants")}
_HOLDER: Any = RawSQL(f"{_MARKS['holder']}::varchar", [], output_field=CharField())
_TTL: Any = RawSQL(f"{_MARKS['ttl']}::interval", [], output_field=DurationField())

#: Kept statements, by what they depend on. As many as lanes and databases make, and not more
#: than _KEPT, whatever filters somebody claims with.
_statements: dict[Any, str] = {}
_KEPT = 100


def serves(using: str) -> bool:
    """Whether these statements can be sent to the database ``using``."""
    return postgres.serves(using)


def take(
    rows: Claiming, terms: Terms, queues: Sequence[str], limit: int
) -> tuple[list[Taken], bool]:
    """Grant up to ``limit`` ready tasks of ``rows`` that need no seat. Returns them, and whether
    it came past tasks that do."""
    statement = _kept("take", rows, _take_statement)
    sent_at = clock()
    with connections[rows.db].cursor() as cursor:
        cursor.execute(statement, _parameters(terms, queues, limit))
        answers = cursor.fetchall()
    passed_over, microseconds = answers[0][:2]
    if answers[0][2] is None:
        return [], passed_over
    now = EPOCH + timedelta(microseconds=microseconds)
    term = Term(terms.holder, terms.ttl, now, now + terms.ttl, now, sent_at, rows.db)
    loads = json.loads
    taken = [Taken(term, loads(data), *others) for _, _, data, *others in answers]
    return taken, passed_over


def claim(
    rows: Claiming, terms: Terms, queues: Sequence[str], limit: int
) -> tuple[list[Task], bool]:
    """``take``, with every column, as model instances."""
    statement = _kept("claim", rows, _claim_statement)
    sent_at = clock()
    manager: Any = rows.model._default_manager.using(rows.db)
    answers: list[Any] = list(manager.raw(statement, _parameters(terms, queues, limit)))
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


def _take_statement(rows: Claiming) -> str:
    columns = ("task_data", *COLUMNS)
    return _claiming(rows, columns, "passed_over, now, " + ", ".join(columns), DbMicroseconds())


def _claim_statement(rows: Claiming) -> str:
    columns = tuple(str(field.column) for field in rows.model._meta.concrete_fields)
    return _claiming(rows, columns, ", ".join((*columns, "passed_over", "now")), DbNow())


def _claiming(rows: Claiming, columns: Sequence[str], answer: str, now: Any) -> str:
    ready = rows.to_claim(RawSQL("asked.name", [])).available()
    target = rows._everything().available().filter(concurrency_key="")
    granting = {
        **rows.granting(Terms(_HOLDER, _TTL)),
        "grant_id": RawSQL("gen_random_uuid()", []),
    }
    table = _quoted(rows, rows.model._meta.db_table)
    return _CLAIM.format(
        ready=_inlined(rows, ready.only("pk", "concurrency_key").query),
        update=_update(target, _CHOSEN.format(table=table), granting),
        columns=", ".join(columns),
        order=_ORDER,
        answer=answer,
        now=rows.query.get_compiler(rows.db).compile(now)[0],
    )


def _update(target: QuerySet[Any], which: str, columns: dict[str, Any]) -> str:
    chosen: Any = RawSQL(which, [], output_field=BooleanField())
    query: Any = target.filter(chosen).query.chain(sql.UpdateQuery)
    query.add_update_values(columns)
    return _inlined(target, query)


def _inlined(rows: QuerySet[Any], query: Any) -> str:
    """What Django compiles, with the constants in their places."""
    ops: Any = connections[rows.db].ops
    text: str = ops.compose_sql(*query.get_compiler(rows.db).as_sql()).replace("%", "%%")
    for name, mark in _MARKS.items():
        text = text.replace(mark, f"%({name})s")
    return text


def _quoted(rows: QuerySet[Any], name: str) -> str:
    return str(connections[rows.db].ops.quote_name(name))


def _kept(what: str, rows: Any, compiled: Callable[[Any], str]) -> str:
    """The statement that ``compiled`` makes for ``rows``, made once for all that are like them."""
    query = rows.query
    if len(query.alias_map) > 1 or query.annotations or query.extra:
        return compiled(rows)
    compile_ = query.get_compiler(rows.db).compile
    try:
        # Tests set the clock.
        key = (what, rows.db, query.where, compile_(DbNow())[0], compile_(DbMicroseconds())[0])
        statement = _statements.get(key)
    except TypeError:  # a filter that cannot be told from others
        return compiled(rows)
    if statement is None:
        if len(_statements) >= _KEPT:
            _statements.clear()
        statement = _statements[key] = compiled(rows)
    return statement


# Completions


def complete(rows: Batching, items: Sequence[tuple[Taken, str]]) -> set[int]:
    """End well each task of ``items`` that its grant still holds, with the output, in JSON, that
    stands beside it. No key comes twice. Returns the keys of those that are ended.

    The rows are locked in the order of their keys before any is updated.
    """
    given = {
        "ids": f"{{{','.join([str(each.id) for each, _ in items])}}}",
        "grants": f"{{{','.join([each.grant_id.hex for each, _ in items])}}}",
        "outputs": f"[{','.join([output for _, output in items])}]",
    }
    with connections[rows.db].cursor() as cursor:
        cursor.execute(_kept("complete", rows._everything(), _complete_statement), given)
        return {key for (key,) in cursor.fetchall()}


def _complete_statement(rows: Batching) -> str:
    table = _quoted(rows, rows.model._meta.db_table)
    given: Any = RawSQL(_GIVEN.format(table=table, **_MARKS), [], output_field=BooleanField())
    columns = {**rows.completing(), "task_output": RawSQL(_OUTPUT, [])}
    update = _update(rows.holding(), _OF_GRANT.format(table=table), columns)
    setting, _, conditions = update.rpartition(" WHERE ")
    locked = rows.holding().filter(given).order_by("pk").only("pk")
    return _COMPLETE.format(
        locked=_inlined(rows, locked.query), setting=setting, conditions=conditions, table=table
    )
