"""Races to end, to recover and to set ready, by real processes: exactly one wins each."""

from __future__ import annotations

import pytest

from tasks.models import Task, TaskStatus
from tests.conftest import Spawn
from tests.factories import make_tasks
from tests.races.support import race
from tests.tasks.support import attempts, row_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

ROUNDS = 10


def test_of_eight_completions_of_one_task_one_is_accepted(spawn: Spawn) -> None:
    tasks = make_tasks(ROUNDS, state="running")

    accepted = race(spawn, "complete", *[task.pk for task in tasks])

    assert [sum(accepted[str(task.pk)]) for task in tasks] == [1] * ROUNDS
    for task in tasks:
        assert row_of(task)["status"] == TaskStatus.SUCCEEDED
        assert row_of(task)["fencing_token"] == task.fencing_token


def test_of_eight_processes_that_recover_one_task_one_does(spawn: Spawn) -> None:
    tasks = make_tasks(ROUNDS, state="stuck")

    recovered = race(spawn, "recover", *[task.pk for task in tasks])

    assert [sum(recovered[str(task.pk)]) for task in tasks] == [1] * ROUNDS
    for task in tasks:
        assert attempts(task) == [(1, "lost")]
        assert row_of(task)["status"] == TaskStatus.READY


def test_eight_processes_that_sweep_recover_each_task_once(spawn: Spawn) -> None:
    tasks = make_tasks(30, state="stuck")

    recovered = race(spawn, "sweep", 4)["4"]

    assert sum(recovered) == len(tasks)
    assert all(attempts(task) == [(1, "lost")] for task in tasks)


def test_of_eight_operators_who_retry_one_task_one_does(spawn: Spawn) -> None:
    tasks = make_tasks(ROUNDS, state="failed")

    retried = race(spawn, "retry", *[task.pk for task in tasks])

    assert [sum(retried[str(task.pk)]) for task in tasks] == [1] * ROUNDS
    assert Task.objects.ready().filter(max_attempts=2).count() == ROUNDS


def test_of_eight_enqueues_under_one_key_one_is_stored(spawn: Spawn) -> None:
    keys = [f"report:{n}" for n in range(ROUNDS)]

    stored = race(spawn, "enqueue", *keys)

    assert [len(set(stored[key])) for key in keys] == [1] * ROUNDS
    assert Task.objects.count() == ROUNDS
    assert set(Task.objects.values_list("duplicates", flat=True)) == {7}
