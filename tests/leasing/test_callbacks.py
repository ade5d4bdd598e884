"""The threads of users' callbacks: one that hangs, fails or exits delays no other for long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from leasing.runtime.event_lines import log
from leasing.runtime.threads import BACKLOG, HANGS_AFTER, MAX_THREADS, CallbackThreads
from tests.leasing.support import PATIENCE, FakeClock
from tests.processes import wait_for

NAME = "callbacks-of-a-test"


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == NAME]


class Gate:
    """A callback that hangs until it is let go."""

    def __init__(self) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self.let_go.wait(PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.let_go.set()


def test_callbacks_that_exit_or_are_slow_delay_no_other(gate: Gate) -> None:
    calls, reported = CallbackThreads(NAME), threading.Event()
    for _ in range(MAX_THREADS):
        calls.call(partial(sys.exit, 1))
    for _ in range(MAX_THREADS - 1):
        calls.call(gate)
    calls.call(reported.set)

    assert reported.wait(PATIENCE)
    gate.let_go.set()
    calls.stop(PATIENCE)
    assert not threads()


def test_callbacks_one_after_the_other_share_a_thread() -> None:
    calls, ran_on = CallbackThreads(NAME, patience=PATIENCE), set()
    for _ in range(5):
        reported = threading.Event()
        calls.call(lambda: ran_on.add(threading.get_ident()))
        calls.call(reported.set)
        assert reported.wait(PATIENCE)
    calls.stop(PATIENCE)

    assert len(ran_on) == 1


def test_callbacks_are_called_in_order_unless_one_hangs(gate: Gate) -> None:
    reported: list[int] = []
    calls = CallbackThreads(NAME, patience=0.01)
    for number in range(50):
        calls.call(partial(reported.append, number))
    wait_for(lambda: len(reported) == 50)
    calls.call(gate)
    assert gate.reached.wait(PATIENCE)
    calls.call(partial(reported.append, 50))

    def look() -> bool:
        calls.ensure_running()
        return len(reported) == 51

    wait_for(look)
    gate.let_go.set()
    calls.stop(PATIENCE)

    assert reported == [*range(51)]


def test_what_is_submitted_behind_callbacks_that_hang_is_dropped_in_the_end(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[int] = []
    calls = CallbackThreads(NAME, patience=PATIENCE, most=3)
    calls.call(gate)
    for number in range(4):
        calls.call(partial(reported.append, number))
    gate.let_go.set()
    calls.stop(PATIENCE)

    assert reported == [0, 1]
    assert calls.dropped == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_callbacks_are_behind_while_many_wait_although_some_end(
    holder_clock: FakeClock, gate: Gate
) -> None:
    calls, second = CallbackThreads(NAME, patience=PATIENCE), Gate()
    calls.call(gate)
    calls.call(second)
    for _ in range(BACKLOG - 1):
        calls.call(bool)
    assert not calls.is_behind, "none has ended yet"

    gate.let_go.set()
    assert second.reached.wait(PATIENCE)
    assert calls.is_behind
    holder_clock.advance(HANGS_AFTER)
    assert not calls.is_behind, "the next one hangs"

    second.let_go.set()
    wait_for(lambda: not calls.is_behind)
    calls.stop(PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_callbacks_that_has_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, reported = CallbackThreads(NAME, patience=PATIENCE), threading.Event()

    def end() -> None:
        raise SystemExit

    monkeypatch.setattr(log, "hold_callback_failed", lambda **_: end())
    calls.call(end)
    wait_for(lambda: not threads())
    monkeypatch.undo()
    calls.call(reported.set)

    assert reported.wait(PATIENCE)
    calls.stop(PATIENCE)
