"""Giving back what a worker has claimed and never began."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from leasing.exceptions import LeaseLost
from tasks import signals
from tasks.models import Task, TaskStatus
from tasks.querysets import ends
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Kind
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import (
    Handlers,
    Reported,
    attempts,
    copy_of,
    end_by_another,
    instances_made,
    row_of,
    take_back,
    take_over,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("form")]

WHY = "its worker had no free slot for it"
#: What no two tasks have alike.
OWN = {
    *("id", "grant_id", "fencing_token", "unique_key", "enqueued_key"),
    *("created_at", "scheduled_at"),
}


def take() -> list[ClaimedTask]:
    return Task.objects.take("ann", limit=100)


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tasks whose workers were woken."""
    found: list[int] = []

    def notify(using: str, tasks: Any) -> None:
        found.extend(task.pk for task in tasks)

    monkeypatch.setattr(ends, "notify", notify)
    return found


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("unique_for", ["waiting", "running", "finished"])
def test_each_is_afterwards_as_an_instance_would_be(
    unique_for: str, database_clock: DatabaseClock
) -> None:
    for n in range(3):
        Task.objects.enqueue("jobs.echo", {}, unique_key=f"key:{n}", unique_for=unique_for)
    alone, *together = take()
    database_clock.advance(3)

    Task.objects.give_back_many([alone.task], WHY, begun=False)
    assert Task.objects.release_unstarted(together[::-1], WHY) == []

    expected = row_of(alone.task)
    assert (expected["status"], expected["attempts"], expected["grants"]) == ("ready", 0, 1)
    for each in together:
        row = row_of(each.task)
        same = {column: value for column, value in row.items() if column not in OWN}
        assert same == {column: expected[column] for column in same}
        assert bool(row["unique_key"]) == bool(expected["unique_key"])
        assert attempts(each.task) == []


@pytest.mark.usefixtures("unheard")
def test_what_is_given_back_late_leaves_the_deadline_that_has_passed(
    database_clock: DatabaseClock,
) -> None:
    make_task()
    (late,) = Task.objects.take("ann", ttl=7)
    database_clock.advance(9)

    assert Task.objects.release_unstarted([late], WHY) == []

    row = row_of(late.task)
    assert row["expires_at"] == database_clock.now - timedelta(seconds=2)
    assert row["released_at"] == database_clock.now


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("broken", [take_over, end_by_another, take_back])
def test_whose_term_is_over_is_refused_alone(broken: Callable[[Task], None]) -> None:
    make_tasks(2)
    late, good = take()
    broken(copy_of(late.task))
    before = row_of(late.task)

    ((refused, error),) = Task.objects.release_unstarted([late, good], WHY)

    assert refused is late and isinstance(error, LeaseLost)
    assert row_of(late.task) == before
    assert row_of(good.task)["status"] == TaskStatus.READY


@pytest.mark.usefixtures("unheard")
def test_of_two_attempts_of_one_task_that_which_is_over_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_task()
    (before,) = take()
    take_back(before.task)
    (now,) = take()
    caplog.clear()

    ((refused, error),) = Task.objects.release_unstarted([before, now], WHY)

    assert refused is before and isinstance(error, LeaseLost)
    assert row_of(now.task)["status"] == TaskStatus.READY
    assert sum("given back by ann" in each for each in caplog.messages) == 1


def test_what_was_to_be_cancelled_ends_and_others_are_notified(
    reported: Reported, notified: list[int]
) -> None:
    make_tasks(2)
    asked, other = take()
    Task.objects.filter(pk=asked.pk).cancel(by="olga")
    reported.clear()

    assert Task.objects.release_unstarted([asked, other], WHY) == []

    assert row_of(asked.task)["status"] == TaskStatus.CANCELLED
    assert notified == [other.pk]
    assert sorted((name, key) for name, key, _ in reported) == [
        ("cancelled", asked.pk),
        ("returned", other.pk),
    ]


@pytest.mark.usefixtures("unheard")
def test_who_listens_to_cancellations_alone_hears_of_these(notified: list[int]) -> None:
    make_tasks(2)
    asked, other = take()
    Task.objects.filter(pk=asked.pk).cancel(by="olga")
    heard: list[int] = []

    def hear(task: Task, **details: Any) -> None:
        heard.append(task.pk)

    signals.cancelled.connect(hear)
    try:
        assert Task.objects.release_unstarted([asked, other], WHY) == []
    finally:
        signals.cancelled.disconnect(hear)

    assert [row_of(each.task)["status"] for each in (asked, other)] == ["cancelled", "ready"]
    assert (heard, notified) == ([asked.pk], [other.pk])


@pytest.mark.usefixtures("unheard")
def test_a_row_of_another_kind_than_its_handler_gets_that(handlers: Handlers) -> None:
    async def well(ctx: Any, **data: Any) -> None: ...

    handlers["jobs.well"] = well
    make_tasks(2, name="jobs.well", data={})
    Task.objects.update(kind=Kind.THREAD.number)
    claimed = take()

    assert Task.objects.release_unstarted(claimed, WHY) == []

    assert set(Task.objects.ready().values_list("kind", flat=True)) == {Kind.COROUTINE.number}


@pytest.mark.usefixtures("unheard")
def test_a_row_without_a_handler_keeps_its_kind() -> None:
    make_tasks(2)
    Task.objects.update(name="jobs.of_others", kind=Kind.COROUTINE.number)
    claimed = take()

    assert Task.objects.release_unstarted(claimed, WHY) == []

    assert set(Task.objects.ready().values_list("kind", flat=True)) == {Kind.COROUTINE.number}


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_no_instance_is_made_where_nobody_but_the_log_listens(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    if "portable" in request.fixturenames or connection.vendor != "postgresql":
        pytest.skip("the portable form makes them")
    make_tasks(3)
    claimed = take()
    caplog.clear()
    caplog.set_level(level, "tasks")
    with instances_made() as made:
        assert Task.objects.release_unstarted(claimed, WHY) == []

    assert made == []
    said = [f"task:{each.id} given back by ann: {WHY}" for each in claimed]
    assert caplog.messages == (said if level == logging.INFO else [])
    assert Task.objects.ready().count() == 3
