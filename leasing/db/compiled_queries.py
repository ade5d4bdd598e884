"""Several questions to the database in one statement, which is compiled once.

What an idle process wants to know every few seconds are a handful of small questions; asked
together they cost a round trip, and not one each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from django.db import connections, models
from django.db.models import sql

from leasing.db.cached_cursors import fetch_all
from leasing.db.row_reader import conversions_of, convert, instance_of
from leasing.db.statements import Statement, cached_statement


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

    def compiled() -> tuple[str, list[Any], dict[str, Any]]:
        asked = {
            name: each.resolve_expression(compiler.query) for name, each in questions().items()
        }
        texts: list[str] = []
        params: list[Any] = []
        for each in asked.values():
            text, own = each.select_format(compiler, *compiler.compile(each))
            texts.append(text)
            params += own
        return f"SELECT {', '.join(texts)}", params, asked

    statement, params, asked = cached_statement((query_scalars, model, using, about), compiled)
    with connections[using].cursor() as cursor:
        cursor.execute(statement, params)
        (answer,) = _converted(cursor.fetchall(), compiler, list(asked.values()))
    return dict(zip(asked, answer, strict=True))


def query_rows(about: Hashable, make: Callable[[], models.QuerySet[Any]]) -> list[Any]:
    """Return the rows of what ``make`` returns, a queryset of ``values_list`` without a value that
    changes from call to call: it is compiled once for all calls with an equal ``about``."""
    *_, answers = _answered((query_rows, about), make, {})
    return list(map(tuple, answers))


def query_instance(
    about: Hashable, make: Callable[[], models.QuerySet[Any]], values: Mapping[str, Any]
) -> Any:
    """Return the first of ``query_instances``; None if there is none."""
    found = query_instances(about, make, values)
    return found[0] if found else None


def query_instances(
    about: Hashable, make: Callable[[], models.QuerySet[Any]], values: Mapping[str, Any]
) -> list[Any]:
    """Return the rows of what ``make`` returns, a queryset with markers for ``values``. They have
    the columns that are asked for, and annotations; it is compiled once for all calls with an equal
    ``about``."""
    model, using, names, answers = _answered((query_instances, about), make, values)
    return [instance_of(model, using, dict(zip(names, answer, strict=True))) for answer in answers]


def _answered(
    about: Hashable, make: Callable[[], models.QuerySet[Any]], values: Mapping[str, Any]
) -> tuple[type[models.Model], str, list[str], Sequence[Sequence[Any]]]:
    """Return the model, the database, the names of the columns and the rows of what ``make``
    returns."""

    def compiled() -> tuple[type[models.Model], str, Statement, list[Any], list[str], Any]:
        rows = make()
        compiler = rows.query.get_compiler(rows.db)
        text, params = compiler.as_sql()
        connection = compiler.connection
        columns = [column for column, *_ in compiler.select]
        names = [alias or column.target.attname for column, _, alias in compiler.select]
        is_kept = connection.vendor == "postgresql"
        conversions = conversions_of(columns, rows.db) if is_kept else None
        statement = Statement(text, params, connection)
        return rows.model, rows.db, statement, columns, names, conversions

    model, using, statement, columns, names, conversions = cached_statement(about, compiled)
    connection = connections[using]
    params = statement.filled(values, connection)
    if conversions is not None:
        answers = convert(fetch_all(connection, statement.sql, params), conversions, connection)
    else:
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, params)
            answers = _converted(cursor.fetchall(), sql.Query(None).get_compiler(using), columns)
    return model, using, names, answers


def _converted(answers: list[Any], compiler: Any, columns: list[Any]) -> list[Any]:
    converters = compiler.get_converters(columns)
    return list(
        map(tuple, compiler.apply_converters(answers, converters) if converters else answers)
    )
