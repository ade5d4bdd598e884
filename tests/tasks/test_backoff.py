"""The wait before the next attempt: pure arithmetic."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from tasks.retry import Exponential, longest_pause, usual_pause
from tests.tasks.support import Drawing


def bound(attempt: int, base: float = 1.0, cap: float = 3600.0) -> float:
    return Exponential(base, cap, jitter=0)(ValueError(), attempt)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 1), (2, 2), (3, 4), (4, 8), (12, 2048), (13, 3600), (32_767, 3600)],
)
def test_the_bound_doubles_with_each_attempt_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert bound(attempt) == longest_pause(attempt) == seconds


def test_the_bound_begins_with_the_base() -> None:
    assert [bound(attempt, base=0.5, cap=3) for attempt in (1, 2, 3, 4)] == [0.5, 1, 2, 3]


def test_a_base_above_the_cap_is_cut() -> None:
    assert bound(1, base=10, cap=3) == 3


def test_no_base_is_no_pause() -> None:
    assert bound(9, base=0) == 0


def test_the_pause_is_drawn_from_nothing_up_to_the_bound(
    settings: Settings, drawing: Drawing
) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 1, "cap": 60}}
    drawing(lambda low, high: low)
    assert usual_pause(3) == 0
    drawing(lambda low, high: high)
    assert usual_pause(3) == 4


@given(
    attempt=st.integers(1, 32_767),
    base=st.floats(0, 1e6),
    cap=st.floats(0, 1e6),
)
def test_no_pause_is_negative_or_beyond_the_cap(attempt: int, base: float, cap: float) -> None:
    assert 0 <= Exponential(base, cap)(ValueError(), attempt) <= cap


def test_pauses_differ_so_that_tasks_that_failed_together_come_back_apart(
    drawing: Drawing,
) -> None:
    drawing(random.uniform)  # as outside of tests
    assert len({usual_pause(5) for _ in range(20)}) > 1
