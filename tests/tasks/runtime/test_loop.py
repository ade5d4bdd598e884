"""The event loop of a parent, and of probes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from tasks.runtime.loop import Loop, LoopThread
from tests.leasing.support import FakeClock
from tests.processes import wait_for


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.abandon()


def test_timers_are_called_in_the_order_of_their_moments(
    loop: Loop, holder_clock: FakeClock
) -> None:
    called: list[str] = []
    loop.call_later(2, lambda: called.append("second"))
    loop.call_later(1, lambda: called.append("first"))
    loop.call_later(9, lambda: called.append("later"))

    holder_clock.now += 3
    loop.step()

    assert called == ["first", "second"]


def test_what_repeats_is_called_at_once_and_again(loop: Loop, holder_clock: FakeClock) -> None:
    called: list[float] = []
    holder_clock.now = 100.0
    loop.repeat(5, lambda: called.append(holder_clock.now))
    holder_clock.now += 5
    loop.step()

    assert called == [100.0, 105.0]


def test_readers_are_called_until_they_are_removed(loop: Loop) -> None:
    ours, theirs = socket.socketpair()
    heard: list[bytes] = []
    loop.add_reader(ours, lambda: heard.append(ours.recv(10)))

    theirs.send(b"one")
    loop.step()
    loop.remove(ours)
    theirs.send(b"two")
    loop.call_later(0, lambda: None)
    loop.step()

    assert heard == [b"one"]
    ours.close()
    theirs.close()


def test_a_reader_that_another_has_removed_is_not_called(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def only(place: int) -> None:
        called.append(place)
        for ours, _ in pairs:
            loop.remove(ours)

    for place, (ours, theirs) in enumerate(pairs):
        loop.add_reader(ours, lambda place=place: only(place))  # type: ignore[misc]
        theirs.send(b"word")
    loop.step()

    assert len(called) == 1
    for pair in pairs:
        for each in pair:
            each.close()


def test_signals_are_heard_by_the_loop_and_do_afterwards_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    loop, heard = Loop(), []
    loop.on_signal([signal.SIGUSR1], lambda: heard.append(1))

    os.kill(os.getpid(), signal.SIGUSR1)
    loop.step()
    loop.abandon()
    loop.abandon()

    assert heard == [1]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_what_is_registered_is_closed_when_the_loop_is_abandoned() -> None:
    loop = Loop()
    ours, theirs = socket.socketpair()
    loop.add_reader(ours, lambda: None)

    loop.abandon()

    assert theirs.recv(1) == b""
    theirs.close()


def test_a_callback_that_fails_does_not_end_the_loop(
    loop: Loop, holder_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    def fail() -> None:
        raise RuntimeError("no luck")

    loop.call_later(0, fail)
    loop.call_later(0, lambda: called.append(1))
    loop.step()

    assert called == [1]
    assert "no luck" in caplog.text


def test_a_thread_runs_its_loop_until_its_end() -> None:
    ended, called = threading.Event(), threading.Event()
    thread = LoopThread("a", ended)
    thread.loop.repeat(0.01, called.set)
    ours, theirs = socket.socketpair()
    thread.loop.add_reader(ours, lambda: None)

    called.clear()
    thread.ensure_running()
    assert called.wait(10)
    ended.set()
    wait_for(lambda: not thread.is_alive())

    assert theirs.recv(1) == b""
    theirs.close()
