"""Faults on purpose."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import pytest

from leasing.holding import Hold
from leasing.holding.keeper import Keeper
from tasks.execution import runner
from tasks.execution.chaos import Chaos
from tasks.models import TaskStatus
from tests.factories import make_task
from tests.leasing.support import FakeClock, FakeStore, expire
from tests.limits import Limits
from tests.tasks.support import Handlers, kept, refusals, row_of


class Drawn(random.Random):
    """Draws what it is told."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value

    def uniform(self, low: float, high: float) -> float:
        return high


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the processes that would have been killed, and when."""
    planned: list[tuple[Any, ...]] = []

    class Timer(threading.Thread):
        def __init__(self, delay: float, call: Any, args: Any) -> None:
            super().__init__()
            planned.append((delay, call, *args))

        def run(self) -> None: ...

    monkeypatch.setattr(threading, "Timer", Timer)
    return planned


@pytest.mark.parametrize(
    ("drawn", "is_killed"), [(0.0, True), (0.0499, True), (0.1501, False), (0.99, False)]
)
def test_one_task_in_twenty_crashes_its_worker(
    drawn: float,
    is_killed: bool,
    hold: Hold,
    manual_keeper: Keeper,
    crashes: list[tuple[Any, ...]],
) -> None:
    with hold:
        held: Any = manual_keeper.holds[0]
        assert not Chaos(random=Drawn(drawn)).strike(held)
        assert held.due_at < float("inf")

    assert crashes == [(2.0, os.kill, os.getpid(), signal.SIGKILL)] * is_killed


@pytest.mark.parametrize("drawn", [0.05, 0.1499])
def test_one_task_in_ten_is_not_renewed_any_more(
    drawn: float,
    hold: Hold,
    crashes: list[tuple[Any, ...]],
    manual_keeper: Keeper,
    store: FakeStore,
    clock: FakeClock,
) -> None:
    with pytest.raises(Exception, match="was lost"), hold:
        held: Any = manual_keeper.holds[0]
        assert Chaos(random=Drawn(drawn)).strike(held)
        clock.advance(29)
        manual_keeper.renew_due()
        assert store.calls == []
        clock.advance(1)
        manual_keeper.declare_lost()
        assert hold.term.lost.is_set()

    assert crashes == []


@pytest.mark.django_db
@pytest.mark.usefixtures("connection_stays")
def test_the_result_of_a_stalled_task_is_handed_in_late_and_refused(
    handlers: Handlers,
    manual_keeper: Keeper,
    clock: FakeClock,
    limits: Limits,
) -> None:
    limits(lateness=0)
    task = make_task(name="jobs.echo", state="running")
    task.sent_at = clock()

    def work(ctx: Any, **data: Any) -> str:
        clock.advance(30)
        manual_keeper.declare_lost()
        expire(task)
        type(task).objects.recover()
        return "late"

    handlers["jobs.echo"] = work
    attempt = kept(task, manual_keeper)
    runner.run(attempt, chaos=Chaos(random=Drawn(0.1)))

    assert row_of(task)["status"] == TaskStatus.READY
    assert refusals(task) == ["complete"]


def test_shares_are_as_announced() -> None:
    assert (Chaos().crashes, Chaos().spikes) == (0.05, 0.10)
