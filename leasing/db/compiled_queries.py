"""Queries without values of a call, which Django compiles once.

What an idle process wants to know every few seconds are a handful of small questions; asked
together they cost a round trip, and not one each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from django.db import connections, models
from django.db.models import sql

from leasing.db.row_reader import instance_of
from leasing.db.statements import cached_statement, fetch_all


def query_scalars(
    model: type[models.Model],
    using: str,
    about: Hashable,
    questions: Callable[[], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the value that the database ``using`` computes for each of ``questions``: expressions
    that are of no row, as ``DbNow()``, ``Exists(rows)`` and ``Subquery(rows)`` of one column are.
    ``model`` is any of that database. The expressions are compiled once for all calls with an equal
    ``about``."""
    compiler: Any = sql.Query(model).get_compiler(using)

    def compiled() -> tuple[str, Any, dict[str, Any]]:
        asked = {
            name: each.resolve_expression(compiler.query) for name, each in questions().items()
        }
        texts: list[str] = []
        params: list[Any] = []
        for each in asked.values():
            text, own = each.select_format(compiler, *compiler.compile(each))
            texts.append(text)
            params += own
        return *_filled(compiler, f"SELECT {', '.join(texts)}", params), asked

    text, params, asked = cached_statement((query_scalars, model, using, about), compiled)
    (answer,) = _answers(using, text, params, list(asked.values()))
    return dict(zip(asked, answer, strict=True))


def query_rows(about: Hashable, make: Callable[[], models.QuerySet[Any]]) -> list[Any]:
    """Return the rows of what ``make`` returns, a queryset of ``values_list``, compiled once for
    all calls with an equal ``about``."""
    *_, answers = _queried((query_rows, about), make)
    return answers


def query_instances(about: Hashable, make: Callable[[], models.QuerySet[Any]]) -> list[Any]:
    """Return the rows of what ``make`` returns, a queryset, with the columns that are asked for,
    and annotations; it is compiled once for all calls with an equal ``about``."""
    model, using, names, answers = _queried((query_instances, about), make)
    return [instance_of(model, using, dict(zip(names, answer, strict=True))) for answer in answers]


def _queried(
    about: Hashable, make: Callable[[], models.QuerySet[Any]]
) -> tuple[type[models.Model], str, list[str], list[Any]]:
    """Return the model, the database, the names of the columns and the rows of what ``make``
    returns."""

    def compiled() -> tuple[Any, ...]:
        rows = make()
        compiler = rows.query.get_compiler(rows.db)
        text, params = _filled(compiler, *compiler.as_sql())
        names = [alias or column.target.attname for column, _, alias in compiler.select]
        columns = [column for column, *_ in compiler.select]
        return rows.model, rows.db, names, text, params, columns

    model, using, names, text, params, columns = cached_statement(about, compiled)
    return model, using, names, _answers(using, text, params, columns)


def _filled(compiler: Any, text: str, params: Sequence[Any]) -> tuple[str, Any]:
    """Return the statement; PostgreSQL's with its constants in the text: whoever plans it knows
    them, and nobody prepares them again."""
    if compiler.connection.vendor != "postgresql":
        return text, params
    return str(compiler.connection.ops.compose_sql(text, params)), None


def _answers(using: str, text: str, params: Any, columns: list[Any]) -> list[Any]:
    connection = connections[using]
    if connection.vendor == "postgresql":
        answers = fetch_all(connection, text, params)
    else:
        with connection.cursor() as cursor:
            cursor.execute(text, params)
            answers = cursor.fetchall()
    compiler: Any = sql.Query(None).get_compiler(using)
    converters = compiler.get_converters(columns)
    if converters:
        answers = compiler.apply_converters(answers, converters)
    return list(map(tuple, answers))
