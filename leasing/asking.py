"""Several questions to the database in one statement.

What an idle process wants to know every few seconds are a handful of small questions; asked
together they cost a round trip, and not one each.
"""

from __future__ import annotations

from typing import Any

from django.db import connections, models
from django.db.models import sql


def ask(model: type[models.Model], using: str, **questions: Any) -> dict[str, Any]:
    """What the database ``using`` answers to each of ``questions``: expressions that are of no
    row, as ``DbNow()``, ``Exists(rows)`` and ``Subquery(rows)`` of one column are. ``model`` is
    any of that database."""
    query: Any = sql.Query(model)
    compiler: Any = query.get_compiler(using)
    asked = [question.resolve_expression(query) for question in questions.values()]
    texts: list[str] = []
    params: list[Any] = []
    for each in asked:
        text, own = each.select_format(compiler, *compiler.compile(each))
        texts.append(text)
        params += own
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(texts)}", params)
        answers = [cursor.fetchone()]
    converters = compiler.get_converters(asked)
    if converters:
        answers = list(compiler.apply_converters(answers, converters))
    return dict(zip(questions, answers[0], strict=True))
