"""Services that tick: their turns on a thread, and what they do when a tick fails."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import InterfaceError, OperationalError

from leasing.runtime import services, threads
from leasing.runtime.event_logger import Event
from leasing.runtime.services import Service, run_services
from tests.leasing.support import FakeClock
from tests.logs import logged

pytestmark = pytest.mark.usefixtures("_longest_pauses")

AWAY, BUG = OperationalError("away"), RuntimeError("a bug of ours")


@pytest.fixture
def _longest_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


class Log:
    work_failed = Event("leasing", logging.WARNING, "Work failed; will retry: %(error)s")


def service(tick: Callable[[], float], **options: Any) -> Service:
    made = Service(tick, Log.work_failed, **options)
    made.failures = threads.Streak(longest=options.get("longest", 15), outage=threads.Outage())
    return made


def ticking(ticks: list[str], name: str, pause: float, **options: Any) -> Service:
    """Notes in ``ticks`` that it did."""

    def tick() -> float:
        ticks.append(name)
        return pause

    return service(tick, **options)


def failing(*outcomes: Exception | float, **options: Any) -> Service:
    """Ticks with these outcomes."""
    return service(Mock(side_effect=outcomes), **options)


def steps(made: Service, count: int) -> list[float]:
    return [made.step() for _ in range(count)]


# A tick


@pytest.mark.parametrize("error", [AWAY, InterfaceError("closed"), BUG], ids=repr)
def test_after_a_failure_it_pauses_twice_as_long_each_time(error: Exception) -> None:
    made = failing(error, error, error, 1.5, error)

    assert steps(made, 5) == [1, 2, 4, 1.5, 1]
    assert made.is_failing


def test_no_pause_is_longer_than_the_longest() -> None:
    assert max(steps(failing(*[AWAY] * 12), 12)) == threads.LONGEST_PAUSE
    assert max(steps(failing(*[AWAY] * 12, longest=3), 12)) == 3


def test_an_outage_is_logged_once_and_a_bug_each_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        steps(failing(AWAY, AWAY, BUG, BUG), 4)

    assert caplog.messages == [
        "Work failed; will retry: away",
        *["Work failed; will retry: a bug of ours"] * 2,
    ]
    assert [bool(each.exc_info) for each in caplog.records] == [False, True, True]
    assert set(logged(caplog)) == {"work.failed"}


def test_what_it_expects_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        steps(failing(BUG, BUG, expected=(RuntimeError,)), 2)

    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_what_it_does_not_survive_is_raised() -> None:
    made = failing(AWAY, BUG, survives=(OperationalError,))

    assert made.step()
    with pytest.raises(RuntimeError):
        made.step()


# Turns


class Ended(threading.Event):
    """Nobody waits for it: the clock goes on instead. It is set when that comes to ``end``."""

    def __init__(self, clock: FakeClock, end: float) -> None:
        super().__init__()
        self._clock, self._end = clock, clock() + end

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0)
        if self._clock() >= self._end:
            self.set()
        return self.is_set()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    clock = FakeClock()
    monkeypatch.setattr(services, "system_clock", clock)
    yield clock


def test_services_of_a_thread_take_turns_each_in_its_time(time: FakeClock) -> None:
    ticks: list[str] = []
    often, seldom = ticking(ticks, "often", 2.0), ticking(ticks, "seldom", 5.5, starts_in=3.0)

    run_services([often, seldom], Ended(time, 9))

    assert ticks == ["often", "often", "seldom", "often", "often", "often", "seldom"]


def test_one_that_has_much_to_do_holds_up_no_other_for_longer_than_a_tick(time: FakeClock) -> None:
    ticks: list[str] = []

    def work() -> float:
        time.advance(1.0)
        ticks.append("busy")
        return 0.0

    run_services([service(work), ticking(ticks, "urgent", 3.0)], Ended(time, 8))

    busy = ["busy"]
    assert ticks == [*busy, "urgent", *busy * 4, "urgent", *busy * 3]


def test_one_whose_tick_takes_long_is_left_to_another_thread_that_takes_it(
    time: FakeClock,
) -> None:
    ticks: list[str] = []
    moved: list[tuple[Service, float]] = []

    def work(name: str, seconds: float) -> Service:
        def tick() -> float:
            time.advance(seconds)
            ticks.append(name)
            return 2.0

        return service(tick, close=lambda: ticks.append(f"{name} closed"))

    quick, slow, stays = work("quick", 1.0), work("slow", 1.5), work("stays", 1.5)

    def moves(service: Service, pause: float) -> bool:
        moved.append((service, pause))
        return service is slow

    run_services([quick, slow, stays], Ended(time, 7.5), moves=moves)

    assert ticks == ["quick", "slow", "stays", "quick", "stays", "quick closed", "stays closed"]
    assert moved == [(slow, 2.0), (stays, 2.0), (stays, 2.0)]


def test_one_that_fails_holds_up_no_other(time: FakeClock) -> None:
    ticks: list[str] = []

    run_services([failing(*[BUG] * 9), ticking(ticks, "goes on", 1.0)], Ended(time, 4.5))

    assert ticks == ["goes on"] * 5


def test_after_the_end_nothing_ticks_and_all_is_closed(time: FakeClock) -> None:
    ended, calls = Ended(time, 9), Mock(return_value=1.0)
    ended.set()

    run_services([service(calls.tick, close=calls.close), service(calls.tick)], ended)

    calls.close.assert_called_once_with()
    calls.tick.assert_not_called()


def test_somebody_is_called_after_every_tick(time: FakeClock) -> None:
    after = Mock()

    run_services([failing(1.0, BUG, 1.0, 1.0)], Ended(time, 3.5), after)

    assert after.call_count == 4


def test_the_end_ends_a_pause() -> None:
    ended, ticked = threading.Event(), threading.Event()
    work = [failing(1000.0)]
    thread = threading.Thread(target=run_services, args=(work, ended, ticked.set))
    thread.start()
    assert ticked.wait(20)
    ended.set()
    thread.join(20)

    assert not thread.is_alive()
