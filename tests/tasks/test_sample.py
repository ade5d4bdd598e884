"""The sample workload."""

from __future__ import annotations

import time
from typing import Any

import pytest

from leasing.exceptions import LeaseLost
from tasks import sample
from tasks.exceptions import GiveUp
from tasks.testing.context import FakeContext
from tests.leasing.support import FakeClock


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch, holder_clock: FakeClock) -> list[float]:
    """Return the sleeps of the handler; the clock moves instead."""
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        holder_clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return naps


@pytest.mark.parametrize(
    ("seconds", "naps"), [(0, []), (0.5, [0.5]), (2.5, [1, 1, 0.5]), (60, [1] * 60)]
)
def test_it_sleeps_as_long_as_it_is_told_and_says_so(
    seconds: float, naps: list[float], slept: list[float]
) -> None:
    ctx: Any = FakeContext()
    output = sample.sleep(ctx, sleep_duration_seconds=seconds)

    assert output == {"slept_seconds": seconds}
    assert slept == pytest.approx(naps)


@pytest.mark.parametrize("seconds", [-1, 60.1, "1", None, True, [1], float("nan"), float("inf")])
def test_a_duration_that_is_out_of_bounds_is_given_up(seconds: Any, slept: list[float]) -> None:
    ctx: Any = FakeContext()
    with pytest.raises(GiveUp, match="from 0 to 60"):
        sample.sleep(ctx, sleep_duration_seconds=seconds)

    assert slept == []


def test_it_wakes_up_within_a_second_of_losing_its_task(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep  # the one of the fixture
    ctx: Any = FakeContext()

    def lose_in_the_third(seconds: float) -> None:
        sleep(seconds)
        if len(slept) == 3:
            ctx.lose("revoked")

    monkeypatch.setattr(time, "sleep", lose_in_the_third)

    with pytest.raises(LeaseLost):
        sample.sleep(ctx, sleep_duration_seconds=60)

    assert len(slept) == 3
