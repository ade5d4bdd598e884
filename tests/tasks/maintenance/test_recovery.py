"""The controller that recovers: it sweeps until told to stop, whatever happens between."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import InterfaceError, OperationalError
from pytest_django import Settings

from leasing.functions import after
from tasks.maintenance import invariants, recovery
from tasks.models import Task
from tests.factories import TaskFactory
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import attempts, row_of


@pytest.mark.django_db
def test_a_sweep_goes_on_until_nothing_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "SWEEP_BATCH", 2)
    TaskFactory.create_batch(5, state="stuck")

    assert recovery.sweep() == 5
    assert not Task.objects.stuck().exists()
    assert recovery.sweep() == 0


@pytest.mark.django_db
@pytest.mark.parametrize("stuck", [0, 3])
def test_one_sweep_can_be_asked_for(stuck: int) -> None:
    tasks = TaskFactory.create_batch(stuck, state="stuck")
    running = TaskFactory(state="running")
    out = StringIO()

    call_command("run_recovery", "--once", stdout=out)

    assert f"{stuck} repaired" in out.getvalue()
    assert all(attempts(task) == [(1, "lost")] for task in tasks)
    assert row_of(running)["status"] == "running"


class Sweeps:
    """Stands for the sweep; stops the controller when it has swept often enough."""

    def __init__(self, *outcomes: Exception | int) -> None:
        self.outcomes = list(outcomes)
        self.stopping = threading.Event()

    def __call__(self) -> int:
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.stopping.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the controller would have paused; it does not."""
    waited: list[float] = []
    mine, wait = threading.current_thread(), threading.Event.wait

    def note(event: threading.Event, timeout: float | None = None) -> bool:
        # Of a thread's start, or of a worker's that has not quite ended.
        if timeout is None or threading.current_thread() is not mine:
            return wait(event, timeout)
        waited.append(timeout)
        return event.is_set()

    monkeypatch.setattr(threading.Event, "wait", note)
    monkeypatch.setattr("tasks.maintenance.recovery.random.uniform", lambda low, high: high)
    # Nothing here touches the database, and the test's own connection is none of our business.
    monkeypatch.setattr(recovery, "close_old_connections", lambda: None)
    monkeypatch.setattr("tasks.maintenance.recovery.connections.close_all", lambda: None)
    monkeypatch.setattr(
        "tasks.maintenance.recovery.housekeeping.run_until", lambda stopping, examine: None
    )
    return waited


def run(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_sweep", lambda look: (sweeps(), 1.5))
    recovery.run_until(sweeps.stopping)
    assert sweeps.outcomes == []


def test_it_sweeps_when_a_sweep_said_that_it_should(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Sweeps(0, 7, 0), monkeypatch)

    assert pauses == [1.5, 1.5, 1.5]


@pytest.mark.django_db
def test_the_next_sweep_is_when_the_next_deadline_is_over_or_before_long(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, database_clock: DatabaseClock
) -> None:
    monkeypatch.setattr("tasks.maintenance.recovery.random.uniform", lambda low, high: high)
    settings.TASK_QUEUE = {"SWEEP_EVERY": 3}
    assert recovery._sweep() == (0, 3)

    TaskFactory(state="running", ttl=30)
    assert recovery._sweep() == (0, 3)
    TaskFactory(state="running", ttl=2)
    assert recovery._sweep()[1] == pytest.approx(2 + recovery.SPREAD)
    TaskFactory(state="running", progress_timeout=1)
    assert recovery._sweep()[1] == pytest.approx(1 + recovery.SPREAD)

    database_clock.advance(1)
    assert recovery._sweep() == (1, recovery.SHORT_PAUSE)
    assert recovery._sweep()[1] == pytest.approx(1 + recovery.SPREAD)


@pytest.mark.parametrize(
    "error",
    [OperationalError("away"), InterfaceError("closed"), RuntimeError("a bug of ours")],
    ids=lambda error: type(error).__name__,
)
def test_it_goes_on_after_any_error_with_longer_and_longer_pauses(
    error: Exception, pauses: list[float], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    run(Sweeps(error, error, error, 0, error), monkeypatch)

    assert pauses == [2, 4, 8, 1.5, 2]
    # Where the database is away that is told once, until it is there again.
    told = 4 if isinstance(error, RuntimeError) else 2
    warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.message[:14] for each in warned] == ["a sweep failed"] * told


def test_no_pause_is_longer_than_half_a_minute(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Sweeps(*[OperationalError("away")] * 12), monkeypatch)

    assert max(pauses) == pauses[-1] == 30


def test_pauses_differ_so_that_controllers_spread_out(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        spans.append((low, high))
        return low

    monkeypatch.setattr("tasks.maintenance.recovery.random.uniform", draw)
    run(Sweeps(OperationalError("away")), monkeypatch)

    assert (spans, pauses) == ([(0.0, 2.0)], [0.2])


@pytest.mark.django_db(transaction=True)
def test_stopping_ends_its_pause(settings: Settings) -> None:
    settings.TASK_QUEUE = {"SWEEP_EVERY": 1000}
    stopping = threading.Event()
    controller = threading.Thread(target=recovery.run_until, args=(stopping,))

    controller.start()
    stopping.set()
    controller.join(20)

    assert not controller.is_alive()


def test_a_controller_that_was_stopped_before_sweeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopping = threading.Event()
    stopping.set()
    sweeps = Sweeps(0)
    monkeypatch.setattr(recovery, "_sweep", sweeps)

    recovery.run_until(stopping)

    assert sweeps.outcomes == [0]


@pytest.mark.usefixtures("pauses")
def test_whoever_waits_for_recovered_tasks_is_told_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeps = Sweeps(0, 3, OperationalError("away"), 0, 1)
    told: list[int] = []
    monkeypatch.setattr(recovery, "_sweep", lambda look: (sweeps(), 1.5))

    recovery.run_until(sweeps.stopping, lambda: told.append(len(sweeps.outcomes)))

    assert told == [3, 0]


@pytest.mark.django_db
def test_a_sweep_that_finds_nothing_is_one_query(django_assert_num_queries: Any) -> None:
    TaskFactory(state="running")

    with django_assert_num_queries(1):
        assert recovery.sweep() == 0


@pytest.mark.django_db
def test_a_sweep_takes_what_makes_no_progress_too() -> None:
    task = TaskFactory(state="running")
    long_ago = after(timedelta(seconds=-60))
    Task.objects.update(progress_timeout=timedelta(seconds=30), progressed_at=long_ago)

    assert recovery.sweep() == 1
    task.refresh_from_db()
    assert task.status == "ready"
