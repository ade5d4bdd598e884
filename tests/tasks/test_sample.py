"""The sample workload."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from leasing.exceptions import LeaseLost
from leasing.holding import Hold
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term
from tasks import sample
from tasks.exceptions import GiveUp
from tasks.execution.context import Context
from tasks.models import Task
from tests.leasing.support import FakeClock, FakeStore, hold_of


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch, holder_clock: FakeClock) -> list[float]:
    """Return the sleeps of the handler; the clock moves instead."""
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        holder_clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return naps


@pytest.fixture
def hold(manual_keeper: Keeper, store: FakeStore) -> Hold:
    return hold_of(store, manual_keeper, ttl=100)


def context(hold: Term) -> Context:
    return Context(Task(), hold, threading.Event())


@pytest.mark.parametrize(
    ("seconds", "naps"), [(0, []), (0.5, [0.5]), (2.5, [1, 1, 0.5]), (60, [1] * 60)]
)
def test_it_sleeps_as_long_as_it_is_told_and_says_so(
    seconds: float, naps: list[float], hold: Hold, slept: list[float]
) -> None:
    with hold:
        output = sample.sleep(context(hold.term), sleep_duration_seconds=seconds)

    assert output == {"slept_seconds": seconds}
    assert slept == pytest.approx(naps)


@pytest.mark.parametrize("seconds", [-1, 60.1, "1", None, True, [1], float("nan"), float("inf")])
def test_a_duration_that_is_out_of_bounds_is_given_up(
    seconds: Any, hold: Hold, slept: list[float]
) -> None:
    with hold, pytest.raises(GiveUp, match="from 0 to 60"):
        sample.sleep(context(hold.term), sleep_duration_seconds=seconds)

    assert slept == []


def test_it_wakes_up_within_a_second_of_losing_its_task(
    hold: Hold, slept: list[float], manual_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep  # the one of the fixture

    def lose_in_the_third(seconds: float) -> None:
        sleep(seconds)
        if len(slept) == 3:
            hold.term.mark_lost("revoked")

    monkeypatch.setattr(time, "sleep", lose_in_the_third)

    with pytest.raises(LeaseLost), hold:
        sample.sleep(context(hold.term), sleep_duration_seconds=60)

    assert len(slept) == 3
