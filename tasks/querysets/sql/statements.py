"""Statements that Django compiles once for all rows that are alike, with every constant in place.

A parameter would hide from the planner of a prepared statement that a partial index serves. What
differs from one use to the next stays a parameter.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.db import connections
from django.db.models import BooleanField, QuerySet, sql
from django.db.models.expressions import RawSQL

from leasing.functions import DbNow
from leasing.runtime import clock as holder_clock
from leasing.runtime.clock import clock
from tasks.querysets.claimed import is_traced

#: Parameters, as they stand in what Django compiles: as nothing else that may stand there.
_PARAMETERS = ("holder", "ttl", "ids", "grants", "outputs", "key", "noise", "free")
MARKS = {name: f"<{name} {secrets.token_hex()}>" for name in _PARAMETERS}

#: Seconds that a plan is used; and the seconds that a claim, and each task that it finds, may take
#: before a plan is made again.
PLAN_LASTS, SLOW, SLOW_EACH = 15.0, 0.02, 0.0004
#: Seconds after a slow claim in which others change nothing. To plan again makes ten statements
#: dear: where the disk is slow it would be all of them.
SLOW_LASTS = 1.0
_slow_claims, _slow_at = 0, float("-inf")

#: Kept statements, by what they depend on. As many as executors and databases make, and not more
#: than _KEPT, whatever filters somebody claims with.
statements: dict[Any, str] = {}
_KEPT = 100

#: A moment as a number, which is read much faster.
MICROSECONDS = "(EXTRACT(EPOCH FROM {moment}) * 1000000)::bigint"


def compiled(rows: QuerySet[Any], expression: Any) -> str:
    return str(rows.query.get_compiler(rows.db).compile(expression)[0])


def update_of(target: QuerySet[Any], which: str, columns: dict[str, Any]) -> str:
    chosen: Any = RawSQL(which, [], output_field=BooleanField())
    query: Any = target.filter(chosen).query.chain(sql.UpdateQuery)
    query.add_update_values(columns)
    return inlined(target, query)


def inlined(rows: QuerySet[Any], query: Any) -> str:
    """Return what Django compiles, with the constants in their places."""
    ops: Any = connections[rows.db].ops
    text: str = ops.compose_sql(*query.get_compiler(rows.db).as_sql()).replace("%", "%%")
    for name, mark in MARKS.items():
        text = text.replace(mark, f"%({name})s")
    return text


def table_of(rows: QuerySet[Any]) -> str:
    return str(connections[rows.db].ops.quote_name(rows.model._meta.db_table))


def shortened(rows: QuerySet[Any], text: str) -> str:
    """Return ``text`` with a short name for the table of ``rows``, where no filter of a caller
    stands in it: psycopg parses what has more than 4,096 characters anew at every call, which takes
    a quarter of the CPU time of a claim."""
    if rows.query.where:
        return text
    table = table_of(rows)
    named = re.sub(rf"\b(FROM|UPDATE) {table}(?= WHERE | SET )", rf"\1 {table} AS t", text)
    named = named.replace(f"{table}.", "t.").replace(f"UPDATE OF {table} ", "UPDATE OF t ")
    return re.sub(r"\s+", " ", named)


def key_of(rows: QuerySet[Any]) -> Any:
    """Return what tells ``rows`` from others with another filter; None where nothing does."""
    query = rows.query
    if len(query.alias_map) > 1 or query.annotations or query.extra:
        return None
    if not query.where:
        return rows.db, None  # as most: to compare two of them takes long
    try:
        hash(query.where)
    except TypeError:
        return None
    return rows.db, query.where


def cached_statement(what: Any, rows: Any, make: Callable[[Any], str]) -> str:
    """The statement that ``make`` returns for ``rows``, made once for all that are like them."""
    like = key_of(rows)
    if like is None:
        return make(rows)
    # Tests set the clock. What is traced is read with a column more.
    moment = None if holder_clock.stand_in is None else compiled(rows, DbNow())
    key = (what, like, moment, is_traced())
    statement = statements.get(key)
    if statement is None:
        if len(statements) >= _KEPT:
            statements.clear()
        statement = statements[key] = make(rows)
    return statement


def plan() -> str:
    """Return a comment that changes every PLAN_LASTS seconds, and as soon as a claim was slow: the
    statement that ends with it is then another one, and planned again.

    Where statements are prepared, one that was planned for an empty table may read all of a full
    one, until something analyzes the table. To plan each claim takes longer than to claim, and a
    task that was just enqueued waits for it.
    """
    return f"-- {int(clock() // PLAN_LASTS)}.{_slow_claims}"


def planned(statement: str) -> str:
    """Return ``statement`` with the comment of ``plan``: the same object for as long as that is the
    same, for by this the driver knows a statement that it has sent before."""
    return _commented(statement, plan())


@lru_cache(maxsize=_KEPT)
def _commented(statement: str, comment: str) -> str:
    return statement + comment


def plan_took(seconds: float, found: int) -> None:
    """Note for how many ``seconds`` a claim took that ``found`` so many. After a slow one, whatever
    the reason, others are planned again; but not again and again."""
    global _slow_claims, _slow_at
    if seconds > SLOW + SLOW_EACH * found:
        now = clock()
        if not 0 <= now - _slow_at < SLOW_LASTS:
            _slow_claims, _slow_at = _slow_claims + 1, now
