"""PostgreSQL's way to store many tasks that differ in their data alone.

The first is stored as any task is. The rest are copies of its row, made by the database, with
data and concurrency of their own: a few values a task travel, where an INSERT of Django's carries
every column, and one plan serves them all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

if TYPE_CHECKING:
    from tasks.models import Task

#: The columns in which the copies differ, as the arrays have them.
OWN = {
    "task_data": "each.task_data::jsonb",
    "concurrency_key": "each.concurrency_key",
    "concurrency_limit": "each.concurrency_limit",
}

_COPY = """\
INSERT INTO {table} ({columns})
SELECT {values}
FROM {table} AS first, unnest(%s::text[], %s::text[], %s::smallint[])
    WITH ORDINALITY AS each (task_data, concurrency_key, concurrency_limit, number)
WHERE first.id = %s
ORDER BY each.number
RETURNING id
"""


def serves(using: str) -> bool:
    """Whether ``store`` works on the database ``using``."""
    return connections[using].vendor == "postgresql"


def store(tasks: Sequence[Task], using: str, batch: int) -> None:
    """Store the new ``tasks``, which differ in their data and concurrency alone, in their order;
    within the caller's transaction."""
    first, *rest = tasks
    first.save(using=using, force_insert=True)
    for start in range(0, len(rest), batch):
        _copy(first, rest[start : start + batch], using)


def _copy(first: Task, tasks: Sequence[Task], using: str) -> None:
    names = [str(f.column) for f in first._meta.concrete_fields if not f.primary_key]
    quote = connections[using].ops.quote_name
    statement = _COPY.format(
        table=quote(first._meta.db_table),
        columns=", ".join(quote(name) for name in names),
        values=", ".join(OWN.get(name, f"first.{quote(name)}") for name in names),
    )
    own: list[list[Any]] = [
        [json.dumps(task.task_data) for task in tasks],
        [task.concurrency_key for task in tasks],
        [task.concurrency_limit for task in tasks],
    ]
    with connections[using].cursor() as cursor:
        cursor.execute(statement, [*own, first.pk])
        keys = [key for (key,) in cursor.fetchall()]
    given = {name: first.__dict__[name] for name in ("created_at", "scheduled_at")}
    for task, key in zip(tasks, keys, strict=True):
        task.__dict__.update(given, id=key)
        task._state.adding = False
        task._state.db = using
