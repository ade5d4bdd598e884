"""The end of the keeper's threads."""

from __future__ import annotations

import threading

import pytest

from leasing import keeper as leasing_keeper
from leasing.hold import Hold
from leasing.keeper import Keeper
from leasing.runtime.alarm import Alarm
from tests.leasing.support import PATIENCE, FakeStore, Hanging, have_ended, hold_of
from tests.processes import wait_for

pytestmark = pytest.mark.usefixtures("often")


def test_stopping_ends_all_threads_and_nothing_is_renewed_afterwards(
    store: FakeStore,
) -> None:
    keeper = Keeper()
    hold_of(store, keeper).__enter__()
    threads = list(keeper._threads)
    wait_for(lambda: store.calls)

    keeper.stop(PATIENCE)

    assert have_ended(threads)
    assert store.closed == [threads[0]]
    assert keeper._threads == []


def test_what_was_noted_last_is_written_before_the_keeper_stops() -> None:
    keeper = Keeper()
    keeper.soon(lambda: None)
    wait_for(lambda: not keeper._notes)
    written: list[int] = []

    with keeper._lock:
        keeper.soon(lambda: written.append(1))
        keeper._stopped.set()
    keeper.stop(PATIENCE)

    assert written == [1]


def test_a_keeper_that_was_stopped_starts_again_with_the_next_hold(store: FakeStore) -> None:
    keeper = Keeper()
    with hold_of(store, keeper):
        pass
    keeper.stop(PATIENCE)

    with hold_of(store, keeper):
        calls = len(store.calls)
        wait_for(lambda: len(store.calls) > calls)
    keeper.stop(PATIENCE)


def test_a_thread_that_outlasts_the_stop_ends_when_it_can(
    store: FakeStore, hanging: Hanging
) -> None:
    """It must not go on along with the threads of the next start."""
    keeper = Keeper()
    store.answer = hanging
    hold_of(store, keeper).__enter__()
    threads = list(keeper._threads)
    assert hanging.reached.wait(PATIENCE)

    keeper.stop(0.01)
    hanging.let_go.set()

    wait_for(lambda: have_ended(threads))


def test_stopping_twice_or_before_any_hold_is_no_error() -> None:
    keeper = Keeper()
    keeper.stop(PATIENCE)
    keeper.stop(PATIENCE)


def test_stopping_from_a_callback_does_not_wait_for_itself(store: FakeStore) -> None:
    keeper = Keeper()
    done = threading.Event()

    def on_lost(hold: Hold) -> None:
        keeper.stop(PATIENCE)
        done.set()

    hold = hold_of(store, keeper, on_lost=on_lost)
    hold.__enter__()
    hold._held.mark_lost("thief has held it")

    assert done.wait(PATIENCE)


# At rest


def test_a_keeper_that_holds_nothing_rests_and_starts_again_with_the_next_hold(
    store: FakeStore,
) -> None:
    keeper = Keeper()
    with hold_of(store, keeper):
        threads = list(keeper._threads)
    noted, reported = threading.Event(), threading.Event()
    keeper.soon(noted.set)
    keeper.call(reported.set)

    keeper.rest(PATIENCE)

    assert have_ended(threads) and noted.is_set() and reported.is_set()
    with hold_of(store, keeper):
        calls = len(store.calls)
        wait_for(lambda: len(store.calls) > calls)
    keeper.stop(PATIENCE)


def test_a_keeper_that_holds_something_does_not_rest(store: FakeStore) -> None:
    keeper = Keeper()
    with hold_of(store, keeper) as hold:
        threads = list(keeper._threads)

        keeper.rest(PATIENCE)

        assert keeper.holds == [hold._held] and keeper._threads == threads
        calls = len(store.calls)
        wait_for(lambda: len(store.calls) > calls)
    keeper.stop(PATIENCE)


def test_what_is_held_while_a_keeper_goes_to_rest_is_renewed(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper()
    with hold_of(store, keeper):
        pass
    hold = hold_of(store, keeper)
    with monkeypatch.context() as patch:
        patch.setattr(leasing_keeper, "_end", lambda *ended: hold.__enter__())
        keeper.rest(PATIENCE)

    wait_for(lambda: store.calls)
    assert keeper.holds == [hold._held]
    keeper.stop(PATIENCE)


def test_a_thread_that_ends_late_does_not_keep_its_successor_asleep(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, late, wait = Keeper(), threading.Event(), Alarm.wait
    asleep: set[threading.Thread] = set()
    ending: set[threading.Thread] = set()

    def wakes_late(alarm: Alarm, timeout: float | None = None) -> bool:
        asleep.add(threading.current_thread())
        woken = wait(alarm, timeout)
        if threading.current_thread() in ending:
            alarm.release()
            late.wait(PATIENCE)
            alarm.acquire()
        return woken

    monkeypatch.setattr(Alarm, "wait", wakes_late)
    with hold_of(store, keeper):
        wait_for(lambda: len(asleep) == 2)
    ending.update(asleep)
    with monkeypatch.context() as patch:
        patch.setattr(leasing_keeper, "_end", lambda *ended: None)
        keeper.rest(PATIENCE)
    keeper.start()
    wait_for(lambda: len(asleep - ending) == 2)
    late.set()
    for each in ending:
        each.join(PATIENCE)

    with hold_of(store, keeper, ttl=0.3):
        wait_for(lambda: store.calls)
    keeper.stop(PATIENCE)
