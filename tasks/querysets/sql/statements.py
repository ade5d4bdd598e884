"""Statements that Django compiles once for all rows that are alike, with every constant in place.

A parameter would hide from the planner of a prepared statement that a partial index serves. What
differs from one use to the next stays a parameter.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.models import BooleanField, QuerySet, sql
from django.db.models.expressions import RawSQL

from leasing.functions import DbNow
from leasing.runtime import clock as holder_clock
from tasks.querysets.claimed import is_traced

#: Parameters, as they stand in what Django compiles: as nothing else that may stand there.
_PARAMETERS = ("holder", "ttl", "ids", "grants", "outputs", "key", "noise", "free")
MARKS = {name: f"<{name} {secrets.token_hex()}>" for name in _PARAMETERS}

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
