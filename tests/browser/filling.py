"""A million rows in a minute: copies of rows that were made in the ordinary way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, models

from leasing.models import Lease, LeaseEvent
from tasks.models import Task
from tests.benchmarks.filling import copy, settle
from tests.browser import harbour
from tests.factories import make_task

TASKS, EVENTS, LEASES = 1_000_000, 1_000_000, 10_000
#: How many of a thousand tasks are in which state; the others have succeeded.
OF_A_THOUSAND = {"failed": 30, "cancelled": 20, "ready": 40, "scheduled": 5, "retrying": 10}
#: Days over which they are spread.
DAYS = 30


def fill() -> None:
    """A million tasks, a million events of leases, and ten thousand leases."""
    share = {state: TASKS // 1000 * count for state, count in OF_A_THOUSAND.items()}
    share["succeeded"] = TASKS - sum(share.values())
    with _without_indexes(Task, LeaseEvent):
        for state, count in share.items():
            task = make_task(state=state, holder="ann")
            back = f"- n * interval '{DAYS * 86_400 / count:f} seconds'"
            other = {"created_at": f"created_at {back}"}
            if state not in ("scheduled", "retrying"):
                other |= {"scheduled_at": f"scheduled_at {back}"}
            if state in ("failed", "cancelled", "succeeded"):
                other |= {"processed_at": f"processed_at {back}"}
            copy(task, count - 1, **other)
        lease = harbour.traded()
        copy(lease, LEASES - 1, resource="'pier:' || n")
        event = LeaseEvent.objects.latest("pk")
        copy(event, EVENTS, resource=f"'pier:' || n % {LEASES - 1}")
        # The last thousand happened to one lease.
        copy(event, 1000)
    for model in (Task, Lease, LeaseEvent):
        settle(model)


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
