"""The history of a queue: what its attempts took, and how late their renewals were."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leasing.diagnosis import ttl
from leasing.management.commands import leases
from tasks.diagnosis.ttl import history_of_queue
from tasks.models import Task, TaskAttempt
from tests.factories import make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.limits import Limits

pytestmark = pytest.mark.django_db


def run(clock: DatabaseClock, length: float, renewals: int = 0, queue: str = "default") -> None:
    """Run a task that takes so many seconds, and renew it so often in even steps."""
    Task.objects.enqueue("jobs.echo", queue=queue)
    (task,) = Task.objects.claim("worker-1", queues=[queue], ttl=30)
    for _ in range(renewals):
        clock.now += timedelta(seconds=length / (renewals + 1))
        Task.objects.heartbeat(task)
    clock.now += timedelta(seconds=length / (renewals + 1))
    Task.objects.complete(task)


def test_the_history_of_a_queue_is_that_of_its_attempts(
    database_clock: DatabaseClock, settings: Any
) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "QUEUES": ["default", "mail"]}
    run(database_clock, 5)
    run(database_clock, 60, renewals=3)
    run(database_clock, 7, queue="mail")

    found = history_of_queue("default")

    assert sorted(found.lengths) == [5.0, 60.0]
    assert [each.renewals for each in found.heartbeats] == [3]
    # Every 15 s, where 10 were planned.
    assert found.heartbeats[0].delay() == pytest.approx(5)
    assert (found.ttl, found.lost) == (30.0, 0)
    assert history_of_queue("mail").lengths == [7.0]
    assert history_of_queue("none").lengths == []


def test_attempts_count_that_failed_and_not_those_that_were_cut_short() -> None:
    failed, lost, returned = make_tasks(3, state="running")
    Task.objects.fail(failed, "no ink")
    Task.objects.give_back(returned, "the worker stops")
    Task.objects.filter(pk=lost.pk).revoke()
    (attempt,) = failed.attempt_set.all()
    started_at = attempt.ended_at - timedelta(seconds=3)
    TaskAttempt.base_objects.filter(pk=attempt.pk).update(started_at=started_at)

    found = history_of_queue("default")

    assert found.lengths == [3.0]
    assert found.lost == 1


def test_the_history_of_a_queue_is_two_statements_with_a_limit() -> None:
    with CaptureQueriesContext(connection) as queries:
        history_of_queue("default")

    assert [f"LIMIT {ttl.NEWEST}" in query["sql"] for query in queries] == [True, True]


def test_what_has_ended_is_read_by_its_index() -> None:
    with CaptureQueriesContext(connection) as queries:
        history_of_queue("default")
    statement = queries[0]["sql"]

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # An empty table is read whole; so is what no index can serve.
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_sort = off")
            cursor.execute(f"EXPLAIN {statement}")
        else:
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}")
        plan = str(cursor.fetchall())

    assert "leasing_tasks_task_ended" in plan
    assert "Sort" not in plan and "TEMP B-TREE" not in plan


def test_the_command_suggests_a_ttl_for_a_queue(
    limits: Limits, database_clock: DatabaseClock
) -> None:
    limits(fewest=2)
    run(database_clock, 60, renewals=3)
    with pytest.raises(CommandError, match=r"queue default .* 1 attempt that .* of 1 attempt\."):
        ran("--queue", "default")
    run(database_clock, 48, renewals=3)

    assert json.loads(ran("--queue", "default", "--json"))["heartbeat"] == {
        "samples": 2,
        "p99": pytest.approx(5, abs=0.01),
        "max": pytest.approx(5, abs=0.01),
    }
    printed = ran("--queue", "default")
    # 5 s and what the round trip takes, margin and pause: 0.2 s and 38 % of it.
    assert "the queue default: a ttl of 9 s is suggested; the latest had 30 s." in printed
    assert "before the lease is lost, and what a dead holder had is free after 9 s." in printed


def test_a_site_without_tasks_has_no_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl, "readers", {})
    monkeypatch.setattr(leases, "readers", {})

    with pytest.raises(CommandError, match='needs the app "tasks"'):
        ran("--queue", "default")


def ran(*arguments: str) -> str:
    out = StringIO()
    call_command("leases", "ttl", *arguments, stdout=out)
    return out.getvalue()
