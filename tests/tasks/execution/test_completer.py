"""The thread that stores what came of attempts."""

from __future__ import annotations

import sys
import threading
from collections import deque
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_django import Settings

from leasing.keeper import Keeper
from leasing.runtime.threads import replaced
from tasks.execution import completer
from tasks.execution.completer import Completer
from tests.leasing.support import FakeClock
from tests.processes import wait_for


class Result:
    """The outcome that a slot hands in."""

    execution = object()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the outcomes that were stored, in their order."""
    found: list[Any] = []
    monkeypatch.setattr(completer, "store_outcomes", lambda batch, *_: found.extend(batch))
    return found


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.django_db
@pytest.mark.parametrize("again", ["wake", "replace_stuck_writer"])
def test_results_wait_while_there_can_be_no_thread_more(
    again: str, stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = Completer(lambda: False, bool)
    result: Any = Result()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        storing.put(result)
        storing.wake()
    assert (stored, storing.executions) == ([], [Result.execution])

    getattr(storing, again)()

    wait_for(lambda: stored == [result] and not storing.executions)
    storing.close()


def test_it_closes_with_the_thread_that_has_stored_all(stored: list[Any]) -> None:
    """Or the process would end with a connection open."""
    storing = Completer(lambda: False, lambda batch: threading.Event().wait(0.2))
    result: Any = Result()
    storing.put(result)
    storing.wake()
    writer = storing._writer
    assert writer is not None
    wait_for(lambda: stored == [result] and not storing.executions)

    storing.close(patience=30)

    assert not writer.is_alive()


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("can_start", [True, False])
def test_a_thread_that_cannot_be_started_again_is_not_said_to_have_been(
    can_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing = Completer(lambda: False, bool)
    with monkeypatch.context() as patched:
        patched.setattr(Completer, "_next", lambda storing: sys.exit())
        storing.wake()
        wait_for(lambda: not storing.is_alive())
    count = replaced["task-results"]

    with monkeypatch.context() as patched:
        if not can_start:
            patched.setattr(threading.Thread, "start", refuse)
        storing.tend()

    assert replaced["task-results"] == count + can_start
    storing.close()


def test_a_result_whose_storing_begins_meanwhile_is_not_missed() -> None:
    """Or a worker could take it for stored, and end before it is."""
    storing = Completer(lambda: False, bool)
    result: Any = Result()

    class Looked(dict[Any, Any]):
        """Begins to store what waits as soon as somebody has looked at what is under way."""

        def values(self) -> Any:
            found = list(super().values())
            self[threading.current_thread()] = list(storing._waiting)
            storing._waiting.clear()
            return found

    class Left(deque[Any]):
        """The same, once somebody has looked at what waits."""

        def copy(self) -> Any:
            found = deque(self)
            dict.__setitem__(storing._under_way, threading.current_thread(), list(found))
            self.clear()
            return found

    for moving in ("_under_way", "_waiting"):
        storing._under_way, storing._waiting = {}, deque()
        setattr(storing, moving, Looked() if moving == "_under_way" else Left())
        storing.put(result)

        assert set(storing.executions) == {Result.execution}


@pytest.mark.parametrize(
    ("come", "waited", "stored_together"),
    [(0, 0.005, 1), (23, 0.005, 24), (25, 0.02, 101), (200, 0.015, 601)],
)
def test_a_result_waits_for_more_the_longer_the_more_come(
    come: int, waited: float, stored_together: int, holder_clock: FakeClock
) -> None:
    holder_clock.now = began_at = 1000.0
    storing = Completer(lambda: True, bool)

    def wait(seconds: float) -> None:
        holder_clock.now += seconds
        storing._waiting.extend([Result()] * come)  # type: ignore[list-item]

    storing._wakes = SimpleNamespace(wait=wait)  # type: ignore[assignment]
    storing._waiting.append(Result())  # type: ignore[arg-type]

    storing._wait_for_batch()

    assert holder_clock.now - began_at == pytest.approx(waited)
    assert len(storing._waiting) == stored_together


class Late(Result):
    """A result that was handed in at 1000 seconds."""

    ended_at = 1000.0

    def __init__(self, is_lost: bool = False, ttl: float = 30.0) -> None:
        hold = SimpleNamespace(is_lost=is_lost, ttl=ttl)
        self.execution: Any = SimpleNamespace(hold=hold)


@pytest.fixture
def stuck(holder_clock: FakeClock) -> Any:
    """Asks whether a completer is stuck at a moment with a result that is under way, or waits."""

    def is_stuck(now: float, result: Late, *, is_away: bool = False, waits: bool = False) -> bool:
        storing = Completer(lambda: False, bool)
        under_way: Any = {threading.current_thread(): [result]}
        storing._waiting, storing._under_way = deque(), under_way
        if waits:
            storing._waiting, storing._under_way = deque([result]), {}  # type: ignore[list-item]
        storing._note_database(is_away)
        for moment in (1045.0, now):
            holder_clock.now = moment
            answer = storing.is_stuck()
            storing._note_database(False)
        return answer

    return is_stuck


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_not_stored_for_three_ttl_means_that_the_worker_is_stuck(
    waits: bool, stuck: Any
) -> None:
    assert not stuck(1090.0, Late(), waits=waits)
    assert stuck(1090.1, Late(), waits=waits)


def test_lost_answers_do_not_mean_that_a_worker_of_short_ttls_is_stuck(
    stuck: Any, settings: Settings
) -> None:
    """Each is cut off at ANSWER_TIMEOUT, and the result is sent again."""
    settings.TASK_QUEUE = {"ANSWER_TIMEOUT": 15}

    assert not stuck(1030.0, Late(ttl=4))
    assert stuck(1030.1, Late(ttl=4))


def test_what_is_not_stored_and_not_renewed_either_means_nothing(stuck: Any) -> None:
    """Somebody may have locked its row."""
    assert not stuck(9999.0, Late(is_lost=True))


def test_the_time_without_a_database_does_not_count(stuck: Any) -> None:
    assert not stuck(1045 + 90.0, Late(), is_away=True)
    assert stuck(1045 + 90.1, Late(), is_away=True)


def test_the_time_without_renewals_does_not_count(
    stuck: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count()
    monkeypatch.setattr(Keeper, "draining", property(lambda self: next(looks) in (0, 2)))

    assert not stuck(1045 + 90.0, Late())
    assert stuck(1045 + 90.1, Late())
