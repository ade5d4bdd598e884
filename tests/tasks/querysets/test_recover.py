"""Taking tasks from holders that are gone, and from those that are not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from tasks.models import AttemptOutcome, Task, TaskStatus
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, expire, just_before_the_update
from tests.tasks.support import (
    Drawing,
    Reported,
    attempt,
    attempts,
    end_well,
    grant_to,
    prolong,
    row_of,
    take_back,
    take_over,
)

pytestmark = pytest.mark.django_db


def test_many_tasks_of_one_holder_take_no_more_statements_than_few() -> None:
    def statements(count: int) -> int:
        tasks = make_tasks(count, state="running", holder="ann")
        other = make_task(state="running", holder="bob")
        for task in (*tasks, other):
            expire(task)
        with CaptureQueriesContext(connection) as queries:
            assert Task.objects.recover() == count + 1
        errors = {row_of(task)["last_error"] for task in tasks}
        assert errors == {"ann did not renew its lease in time"}
        assert row_of(other)["last_error"] == "bob did not renew its lease in time"
        return len(queries)

    assert statements(30) == statements(2)


def test_a_stuck_task_is_ready_again_under_a_raised_token(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="ann", ttl=30)
    database_clock.advance(31)
    before = row_of(task)
    reported.clear()

    assert Task.objects.recover() == 1

    after = row_of(task)
    assert after["status"] == TaskStatus.READY
    assert after["fencing_token"] > before["fencing_token"]
    assert after["last_error"] == "ann did not renew its lease in time"
    changed = {column for column, value in after.items() if before[column] != value}
    assert changed == {"status", "fencing_token", "last_error", "scheduled_at"}
    details = {
        "holder": "ann",
        "reason": "ann did not renew its lease in time",
        "kind": "expired",
        "silent_for": timedelta(seconds=31),
        "overdue_for": timedelta(seconds=1),
    }
    assert reported == [("recovered", task.pk, details)]


def test_a_task_is_stuck_from_its_deadline_on(database_clock: DatabaseClock) -> None:
    task = make_task(state="running", ttl=30)

    database_clock.now = task.expires_at - timedelta(microseconds=1)
    assert (list(Task.objects.stuck()), list(Task.objects.lapsed())) == ([], [])
    assert Task.objects.recover() == 0

    database_clock.now = task.expires_at
    assert (list(Task.objects.stuck()), list(Task.objects.lapsed())) == ([task], [task])
    assert Task.objects.recover() == 1


def test_each_lost_task_waits_a_pause_of_its_own_as_if_it_had_failed(
    database_clock: DatabaseClock, settings: Settings, drawing: Drawing
) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 10.0, "cap": 600.0}}
    draws = iter([0.1, 0.5, 1.0])
    drawing(lambda low, high: next(draws) * high)
    tasks = make_tasks(3, state="running", ttl=30)
    Task.objects.filter(pk=tasks[2].pk).update(attempts=4)
    database_clock.advance(31)

    Task.objects.recover()

    starts = [row_of(task)["scheduled_at"] for task in tasks]
    assert [(start - database_clock.now).total_seconds() for start in starts] == [1, 5, 80]


def test_the_lost_attempt_is_written_down() -> None:
    task = make_task(state="stuck", holder="ann")
    before = row_of(task)
    start = database_now("default")

    Task.objects.recover()

    record = attempt(task)
    assert (record.number, record.holder, record.outcome) == (1, "ann", AttemptOutcome.LOST)
    assert (record.grant_id, record.fencing_token) == (before["grant_id"], before["fencing_token"])
    assert record.started_at == before["acquired_at"]
    assert start <= record.ended_at <= database_now("default")
    assert record.error == "ann did not renew its lease in time"


def test_a_task_that_was_lost_in_its_last_attempt_is_failed(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="ann", max_attempts=1, unique_key="k")
    database_clock.advance(31)
    before = row_of(task)
    reported.clear()

    assert Task.objects.recover() == 1

    after = row_of(task)
    assert (after["status"], after["processed_at"]) == (TaskStatus.FAILED, database_clock.now)
    assert after["unique_key"] is None
    assert after["fencing_token"] > before["fencing_token"]
    assert attempts(task) == [(1, "lost")]
    assert [name for name, _, _ in reported] == ["recovered", "failed"]


@pytest.mark.parametrize(
    "state",
    [
        "ready",
        "scheduled",
        "running",
        "succeeded",
        "failed",
        "cancelled",
        "retrying",
        "recovered",
        "returned",
    ],
)
def test_what_is_not_stuck_is_left_alone(state: str) -> None:
    stuck, task = make_task(state="stuck"), make_task(state=state)
    before = row_of(task), attempts(task)

    assert Task.objects.recover() == 1

    assert (row_of(task), attempts(task)) == before
    assert row_of(stuck)["status"] == TaskStatus.READY


def test_no_more_are_recovered_at_once_than_asked_for() -> None:
    tasks = make_tasks(5, state="stuck")

    assert [Task.objects.recover(2) for _ in range(4)] == [2, 2, 1, 0]
    assert [len(attempts(task)) for task in tasks] == [1] * 5


def test_a_grant_takes_its_own_row_only() -> None:
    """No grant is ever given twice; if one were, the key would still tell the rows apart."""
    one, two = make_tasks(2, state="stuck")
    Task.objects.filter(pk=two.pk).update(grant_id=one.grant_id)
    before = row_of(two)

    assert Task.objects.recover(1) == 1

    assert row_of(one)["status"] == TaskStatus.READY
    assert (row_of(two), attempts(two)) == (before, [])


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_is_told_to_nobody(reported: Reported) -> None:
    task = make_task(state="stuck")
    reported.clear()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Task.objects.recover()
        raise ZeroDivisionError

    assert reported == []
    assert attempts(task) == []
    assert Task.objects.recover() == 1


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_task_that_someone_has_locked_is_passed_over(other_session: OtherSession) -> None:
    """Its holder may be completing it: recovery neither waits for it nor takes it."""
    locked, free = make_tasks(2, state="stuck")
    other_session.begin()
    other_session.run(lambda: Task.objects.select_for_update().get(pk=locked.pk))

    assert Task.objects.recover() == 1

    assert row_of(free)["status"] == TaskStatus.READY
    assert row_of(locked)["status"] == TaskStatus.RUNNING


def test_a_hundred_tasks_cost_few_statements_beside_their_errors(
    django_assert_max_num_queries: Any,
) -> None:
    make_tasks(30, state="stuck")

    with django_assert_max_num_queries(30 + 12):
        assert Task.objects.recover() == 30


# T5: what changed between the reading and the update is not touched. As on a database without
# row locks; with them nothing can come between.

CHANGES: list[tuple[str, Callable[[Task], None]]] = [
    ("renewed", prolong),
    ("completed", end_well),
    ("taken over by another, who is stuck too", take_over),
]


@pytest.fixture(params=["alone", "among others"])
def others(request: pytest.FixtureRequest) -> int:
    """Return the number of other stuck tasks, to which nothing happens."""
    count = 2 if request.param == "among others" else 0
    make_tasks(count, state="stuck", queue="default")
    return count


@pytest.mark.parametrize("max_attempts", [1, 3])
@pytest.mark.parametrize("change", [pytest.param(do, id=what) for what, do in CHANGES])
def test_a_task_that_changed_since_it_was_read_is_not_recovered(
    change: Callable[[Task], None], max_attempts: int, others: int, reported: Reported
) -> None:
    task = make_task(state="stuck", max_attempts=max_attempts)
    after: dict[str, Any] = {}
    reported.clear()

    def meanwhile() -> None:
        change(task)
        after.update(row_of(task))

    with just_before_the_update(meanwhile):
        assert Task.objects.recover() == others

    assert row_of(task) == after
    assert attempts(task) == []
    assert task.pk not in [pk for _, pk, _ in reported]


def test_what_another_sweep_has_just_recovered_is_recovered_once(reported: Reported) -> None:
    task = make_task(state="stuck")
    reported.clear()

    with just_before_the_update(lambda: take_back(task)):
        assert Task.objects.recover() == 0

    assert attempts(task) == []
    assert reported == []


# Revoke


def test_an_operator_can_take_a_task_from_a_holder_that_is_well(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="ann", ttl=30)
    before = row_of(task)
    database_clock.advance(5)
    reported.clear()

    assert Task.objects.filter(pk=task.pk).revoke("wrong printer", "root") == 1

    after = row_of(task)
    assert (after["status"], after["expires_at"]) == (TaskStatus.READY, database_clock.now)
    assert after["fencing_token"] > before["fencing_token"]
    assert after["scheduled_at"] == before["scheduled_at"]  # it may start at once
    assert after["last_error"] == "revoked by root: wrong printer"
    assert (attempts(task), attempt(task).error) == ([(1, "lost")], after["last_error"])
    assert [name for name, _, _ in reported] == ["recovered"]
    with pytest.raises(LeaseLost, match="it was recovered"):
        Task.objects.complete(task)


def test_revoking_the_last_attempt_leaves_a_failed_task() -> None:
    task = make_task(state="running", max_attempts=1)

    assert Task.objects.revoke() == 1

    assert row_of(task)["status"] == TaskStatus.FAILED
    assert row_of(task)["last_error"] == "revoked by an operator"


@pytest.mark.parametrize("state", ["ready", "scheduled", "succeeded", "failed", "cancelled"])
def test_what_nobody_holds_cannot_be_revoked(state: str) -> None:
    task = make_task(state=state)
    before = row_of(task)

    assert Task.objects.revoke() == 0
    assert row_of(task) == before


@pytest.mark.parametrize("change", [end_well, take_over, take_back])
def test_a_task_that_changed_since_the_operator_saw_it_is_not_revoked(
    change: Callable[[Task], None],
) -> None:
    task = make_task(state="running")
    after: dict[str, Any] = {}

    def meanwhile() -> None:
        change(task)
        after.update(row_of(task))

    with just_before_the_update(meanwhile):
        assert Task.objects.revoke() == 0

    assert row_of(task) == after
    assert attempts(task) == []


# Retry


@pytest.mark.parametrize("state", ["failed", "given_up", "cancelled"])
def test_an_operator_can_set_ready_again_what_has_ended_badly(
    state: str, database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state=state)
    before = row_of(task)
    database_clock.advance(60)
    reported.clear()

    assert Task.objects.filter(pk=task.pk).retry(by="root") == 1

    after = row_of(task)
    assert (after["status"], after["processed_at"]) == (TaskStatus.READY, None)
    assert after["scheduled_at"] == database_clock.now
    changed = {column for column, value in after.items() if before[column] != value}
    assert changed <= {"status", "processed_at", "scheduled_at", "max_attempts"}
    assert reported == [("retried", task.pk, {"by": "root"})]
    assert len(Task.objects.claim("bob")) == 1


def test_a_retry_adds_an_attempt_only_where_they_were_used_up() -> None:
    failed, given_up = make_task(state="failed"), make_task(state="given_up", max_attempts=5)

    Task.objects.retry()

    assert (row_of(failed)["attempts"], row_of(failed)["max_attempts"]) == (1, 2)
    assert (row_of(given_up)["attempts"], row_of(given_up)["max_attempts"]) == (1, 5)


def test_the_history_survives_a_retry() -> None:
    task = make_task(state="failed")
    Task.objects.retry()
    (task,) = Task.objects.claim("bob")
    Task.objects.fail(task, "no luck")

    assert attempts(task) == [(1, "failed"), (2, "failed")]
    assert row_of(task)["status"] == TaskStatus.FAILED


@pytest.mark.parametrize(
    "state", ["ready", "scheduled", "running", "stuck", "succeeded", "retrying"]
)
def test_what_has_not_ended_badly_is_not_retried(state: str, reported: Reported) -> None:
    task = make_task(state=state)
    before = row_of(task)
    reported.clear()

    assert Task.objects.retry() == 0

    assert row_of(task) == before
    assert reported == []


def test_a_task_that_was_retried_and_claimed_meanwhile_is_left_to_its_holder() -> None:
    task = make_task(state="failed")

    def meanwhile() -> None:
        Task.objects.filter(pk=task.pk).retry()
        grant_to(task, "bob")

    with just_before_the_update(meanwhile):
        assert Task.objects.retry() == 0

    assert (row_of(task)["status"], row_of(task)["holder"]) == (TaskStatus.RUNNING, "bob")
