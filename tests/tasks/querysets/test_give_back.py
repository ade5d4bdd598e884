"""Handing a task back unfinished."""

from __future__ import annotations

import pytest

from tasks.models import Task, TaskStatus
from tests.factories import claimed, make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import Reported, attempt, attempts, make_due, row_of

pytestmark = pytest.mark.django_db


def test_a_task_given_back_is_ready_at_once_and_no_attempt_is_spent(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="ann")
    before = row_of(task)
    database_clock.advance(3)
    reported.clear()

    answer = Task.objects.give_back(task, "its worker was stopped")

    assert answer is task
    assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}
    assert (task.status, task.attempts) == (TaskStatus.READY, 0)
    assert task.released_at == task.expires_at == database_clock.now
    assert (task.scheduled_at, task.started_at) == (before["scheduled_at"], before["started_at"])
    assert (task.processed_at, task.last_error) == (None, "")
    assert list(Task.objects.ready()) == [task]
    assert reported == [("returned", task.pk, {"reason": "its worker was stopped"})]


def test_attempts_that_failed_stay_counted() -> None:
    task = make_task(state="retrying")
    make_due(task)

    Task.objects.give_back(claimed(task, "bob"), "again")

    assert row_of(task)["attempts"] == 1
    assert attempts(task) == [(1, "failed"), (2, "returned")]


def test_a_task_returned_again_and_again_does_not_fill_its_history() -> None:
    task, other = make_task(), make_task(state="returned")
    Task.objects.give_back(claimed(task, "ann"), "no handler")
    Task.objects.give_back(claimed(task, "ann"), "its worker was stopped")
    Task.objects.fail(claimed(task, "ann"), "no handler")
    make_due(task)
    for _ in range(3):
        latest = claimed(task, "bob")
        Task.objects.give_back(latest, "no handler")

    kept = list(task.attempt_set.values_list("outcome", "error", "holder"))
    assert kept == [
        ("returned", "its worker was stopped", "ann"),
        ("failed", "no handler", "ann"),
        ("returned", "no handler", "bob"),
    ]
    assert task.attempt_set.get(outcome="returned", error="no handler").grant_id == latest.grant_id
    assert attempts(other) == [(1, "returned")]


@pytest.mark.parametrize("others", [0, 2])
def test_the_history_says_nothing_of_attempts_that_had_not_begun(
    others: int, reported: Reported
) -> None:
    task = make_task(state="returned")
    told = row_of(task)["attempts"], attempts(task)
    mine = [claimed(task, "ann"), *make_tasks(others, state="running")]
    reported.clear()

    given, refused = Task.objects.give_back_many(mine, "its worker was stopped", begun=False)

    assert (given, refused) == (mine, [])
    assert (row_of(task)["attempts"], attempts(task)) == told == (0, [(1, "returned")])
    assert all(row_of(each)["attempts"] == 0 for each in mine)
    assert [attempts(each) for each in mine[1:]] == [[]] * others
    assert {name for name, _, _ in reported} == {"returned"} and len(reported) == len(mine)


def test_releasing_the_row_gives_the_task_back() -> None:
    task = make_task(state="running", holder="ann")

    Task.objects.release(task)

    assert (task.status, task.attempts) == (TaskStatus.READY, 0)
    assert attempt(task).error == "released by its holder"
