"""Races to claim, by real processes."""

from __future__ import annotations

import pytest

from tasks.models import Task, TaskStatus
from tests.conftest import Spawn
from tests.factories import make_tasks
from tests.races.support import race

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

TASKS = 60


def test_eight_processes_that_empty_one_queue_claim_each_task_once(spawn: Spawn) -> None:
    tasks = Task.objects.enqueue_many("jobs.echo", [{}] * TASKS)

    claimed = race(spawn, "claim", "default")["default"]

    assert sorted(sum(claimed, [])) == [task.pk for task in tasks]
    assert sum(map(bool, claimed)) > 1, "one process alone is no race"
    rows = Task.objects.filter(status=TaskStatus.RUNNING, attempts=1, grants=1)
    assert rows.count() == TASKS
    assert rows.values("grant_id").distinct().count() == TASKS


def test_what_eight_processes_recover_while_they_claim_is_claimed_once_more(
    spawn: Spawn,
) -> None:
    """Each claim sweeps first, because none of the processes has done so before."""
    stuck = make_tasks(10, state="stuck", name="jobs.echo", data={})
    ready = make_tasks(10, name="jobs.echo", data={})

    claimed = race(spawn, "claim", "default")["default"]

    assert sorted(sum(claimed, [])) == sorted(task.pk for task in (*stuck, *ready))
    assert Task.objects.running().filter(attempts=2).count() == len(stuck)
    assert all(task.attempt_set.count() == 1 for task in stuck)
