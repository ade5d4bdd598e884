"""A million rows in a minute: copies of rows that were made in the ordinary way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.db import connection, models

from leasing.models import Lease, LeaseEvent
from tasks.models import Task
from tests.browser import harbour
from tests.factories import TaskFactory

TASKS, EVENTS, LEASES = 1_000_000, 1_000_000, 10_000
#: How many of a thousand tasks are in which state; the others have succeeded.
OF_A_THOUSAND = {"dead": 30, "cancelled": 20, "ready": 40, "scheduled": 5, "retrying": 10}
#: Days over which they are spread.
DAYS = 30


def fill() -> None:
    """A million tasks, a million events of leases, and ten thousand leases."""
    share = {state: TASKS // 1000 * count for state, count in OF_A_THOUSAND.items()}
    share["succeeded"] = TASKS - sum(share.values())
    with _without_indexes(Task, LeaseEvent), connection.cursor() as cursor:
        for state, count in share.items():
            task = TaskFactory(state=state, holder="ann")
            back = f"- n * interval '{DAYS * 86_400 / count:f} seconds'"
            other = {"created_at": f"created_at {back}"}
            if state not in ("scheduled", "retrying"):
                other |= {"scheduled_at": f"scheduled_at {back}"}
            if state in ("dead", "cancelled", "succeeded"):
                other |= {"processed_at": f"processed_at {back}"}
            cursor.execute(_copies(task, count - 1, other))
        lease = harbour.traded()
        cursor.execute(_copies(lease, LEASES - 1, {"resource": "'pier:' || n"}))
        event = LeaseEvent.objects.latest("pk")
        spread = {"resource": f"'pier:' || n % {LEASES - 1}"}
        cursor.execute(_copies(event, EVENTS, spread))
        # The last thousand happened to one lease.
        cursor.execute(_copies(event, 1000, {}))
    with connection.cursor() as cursor:
        for model in (Task, Lease, LeaseEvent):
            cursor.execute(f'VACUUM ANALYZE "{model._meta.db_table}"')


@contextmanager
def _without_indexes(*tables: type[models.Model]) -> Iterator[None]:
    """Indexes are made at once faster than row by row."""
    indexes = [(model, index) for model in tables for index in model._meta.indexes]
    with connection.schema_editor() as editor:
        for model, index in indexes:
            editor.remove_index(model, index)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            for model, index in indexes:
                editor.add_index(model, index)


def _copies(row: models.Model, count: int, other: dict[str, str]) -> str:
    """SQL that makes ``count`` copies of ``row``, with ``other`` as SQL for columns of theirs, in
    which ``n`` counts from 1."""
    table = row._meta.db_table
    columns = list(_columns(row))
    values = ", ".join(other.get(column, f'"{column}"') for column in columns)
    names = ", ".join(f'"{column}"' for column in columns)
    return (
        f'INSERT INTO "{table}" ({names}) SELECT {values}'
        f' FROM "{table}", generate_series(1, {count:d}) AS n WHERE id = {row.pk:d}'
    )


def _columns(row: models.Model) -> Iterable[str]:
    return (str(field.column) for field in row._meta.concrete_fields if not field.primary_key)
