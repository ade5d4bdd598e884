"""A worker whose database is away for a while."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from logging import DEBUG, ERROR, INFO, WARNING

import pytest
from django.db import connection

from leasing.holding.keeper import Keeper
from tasks.models import TaskStatus, Worker
from tests.factories import make_task
from tests.processes import wait_for
from tests.tasks.support import row_of
from tests.tasks.workers import working

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick", "on_postgresql"),
]


@contextmanager
def outage() -> Iterator[None]:
    """End every connection but the test's own, and refuse others."""
    connection.ensure_connection()
    name = str(connection.settings_dict["NAME"])
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            with connection.cursor() as own:
                own.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            yield
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_an_outage_makes_one_line_however_often_each_service_fails_and_one_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    services = ("worker.claim_failed", "recovery.failed", "notifications.failed")

    def events(*levels: int) -> Counter[str]:
        records = [each for each in caplog.records if each.levelno in levels]
        return Counter(getattr(each, "event", "") for each in records)

    with caplog.at_level(DEBUG, "leasing"), caplog.at_level(DEBUG, "tasks"), working():
        # At work, and connected.
        wait_for(lambda: events(INFO)["lease.acquired"] and Worker.objects.exists())
        caplog.clear()
        with outage():
            wait_for(lambda: min(events(DEBUG, WARNING)[each] for each in services) > 2)
            began = events(WARNING, ERROR)
        task = make_task(name="jobs.echo", data={})
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: events(INFO)["outage.ended"])

    # Renewals have a line of their own: they fail for other reasons too.
    assert [count for event, count in began.items() if not event.startswith("keeper.")] == [1]


def test_a_look_without_a_statement_does_not_count_as_the_end_of_an_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)

    def count(event: str) -> int:
        return [getattr(each, "event", "") for each in caplog.records].count(event)

    with caplog.at_level(DEBUG, "leasing"), caplog.at_level(DEBUG, "tasks"), working() as worker:
        wait_for(lambda: count("lease.acquired") and Worker.objects.exists())
        with outage():
            wait_for(lambda: count("worker.claim_failed"))
            # From its first renewal that fails a worker claims nothing.
            monkeypatch.setattr(Keeper, "draining", True)
            failed = count("worker.claim_failed")
            wait_for(lambda: count("worker.claim_failed") > failed + 2)
            assert "Claims are failing." in worker.health.read().stalled
        wait_for(lambda: "Claims are failing." not in worker.health.read().stalled)
