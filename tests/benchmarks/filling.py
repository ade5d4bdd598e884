"""Many rows in little time: copies of one that was made in the ordinary way."""

from __future__ import annotations

from django.db import connection, models

from tasks.models import Task


def copy(row: models.Model, count: int, **other: str) -> None:
    """Make ``count`` copies of ``row``; ``other`` gives columns of theirs as SQL, in which ``n``
    counts from 1."""
    meta = row._meta
    fields = [field for field in meta.concrete_fields if not field.primary_key]
    columns = [str(field.column) for field in fields]
    values = ", ".join(other.get(column, f'"{column}"') for column in columns)
    names = ", ".join(f'"{column}"' for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{meta.db_table}" ({names}) SELECT {values}'
            f' FROM "{meta.db_table}", generate_series(1, {count:d}) AS n WHERE id = {row.pk:d}'
            if connection.vendor == "postgresql"
            else f"WITH RECURSIVE counter (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter"
            f' WHERE n < {count:d}) INSERT INTO "{meta.db_table}" ({names}) SELECT {values}'
            f' FROM "{meta.db_table}", counter WHERE id = {row.pk:d}'
        )


def tasks(count: int, *, name: str = "bench.nothing", queue: str | None = None) -> None:
    """Have ``count`` tasks ready, and the table as it is after a while of ordinary life."""
    first = Task.objects.enqueue(name, {"n": 1}, queue=queue)
    copies_of_task(first, count - 1)


def copies_of_task(first: Task, count: int, **other: str) -> None:
    """``copy``, for a task."""
    if count > 0:
        copy(first, count, **other)
    settle(Task)


def settle(model: type[models.Model]) -> None:
    """Do to the table of ``model`` the work of autovacuum after a minute."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f'VACUUM ANALYZE "{model._meta.db_table}"')
        else:
            cursor.execute("ANALYZE")


def forget_tasks() -> None:
    """Remove all tasks."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f'TRUNCATE "{Task._meta.db_table}" CASCADE')
        else:
            Task.objects.all().delete()
