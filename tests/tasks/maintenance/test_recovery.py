"""Recovery: what a sweep takes back, and when the next one is."""

from __future__ import annotations

import random
from io import StringIO
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from pytest_django import Settings

from tasks.maintenance import recovery
from tasks.models import Task, TaskStatus
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.limits import Limits
from tests.tasks.support import attempts, row_of

pytestmark = pytest.mark.django_db


def test_a_sweep_goes_on_until_nothing_is_stuck(limits: Limits) -> None:
    limits(sweep_batch=2)
    make_tasks(5, state="stuck")

    assert recovery.sweep() == 5
    assert not Task.objects.stuck().exists()
    assert recovery.sweep() == 0


@pytest.mark.parametrize("stuck", [0, 3])
def test_one_sweep_can_be_asked_for(stuck: int) -> None:
    tasks = make_tasks(stuck, state="stuck")
    running = make_task(state="running")
    out = StringIO()

    call_command("run_recovery", "--once", stdout=out)

    assert (f"{stuck} repaired" if stuck else "Nothing to repair") in out.getvalue()
    assert all(attempts(task) == [(1, "lost")] for task in tasks)
    assert row_of(running)["status"] == "running"


@pytest.mark.django_db(transaction=True)
def test_the_next_sweep_is_when_the_next_deadline_is_over_or_before_long(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, database_clock: DatabaseClock
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    settings.TASK_QUEUE = {"SWEEP_EVERY": 3}
    assert recovery.service(ttl=2).step() == 2
    sweep = recovery.service().step
    assert sweep() == 3

    make_task(state="running", ttl=30)
    assert sweep() == 3
    make_task(state="running", ttl=2)
    assert sweep() == pytest.approx(2 + recovery.SPREAD)
    make_task(state="running", progress_timeout=1)
    assert sweep() == pytest.approx(1 + recovery.SPREAD)

    database_clock.advance(1)
    assert (sweep(), Task.objects.running().count()) == (recovery.SHORT_PAUSE, 2)
    assert sweep() == pytest.approx(1 + recovery.SPREAD)


@pytest.mark.django_db(transaction=True)
def test_a_sweep_that_takes_long_goes_on_in_the_next_tick(
    database_clock: DatabaseClock, limits: Limits
) -> None:
    make_tasks(5, state="stuck")
    limits(sweep_batch=2)
    limits(longest_tick=0.0)
    controller = recovery.service()

    assert [controller.step() for _ in range(2)] == [0.0, 0.0]
    assert Task.objects.filter(status=TaskStatus.READY).count() == 4
    assert recovery.sweep() == 1


@pytest.mark.django_db(transaction=True)
def test_a_slow_sweep_that_recovers_nothing_pauses(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    make_task(state="stuck")
    batches = Mock(return_value=0)  # another process has the rows locked
    monkeypatch.setattr(recovery, "in_batches", batches)
    limits(longest_tick=0.0)

    assert recovery.service().step() == recovery.SHORT_PAUSE


def test_a_sweep_that_finds_nothing_is_one_query(django_assert_num_queries: Any) -> None:
    make_task(state="running")

    with django_assert_num_queries(1):
        assert recovery.sweep() == 0
