"""The keeper's threads: how they begin, wake, fail and end. On stores without a database."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import override_settings

from leasing.exceptions import LeaseLost
from leasing.holding import Hold
from leasing.holding import keeper as leasing_keeper
from leasing.holding.keeper import CHECK_CLOCK_EVERY, Alarm, Keeper
from leasing.holding.term import Term, keep_all
from leasing.runtime.clock import clock as holder_clock
from leasing.runtime.threads import replaced
from tests.leasing.support import (
    OFTEN,
    PATIENCE,
    FakeClock,
    FakeStore,
    Hanging,
    granted,
    have_ended,
    hold_of,
)
from tests.logs import logged
from tests.processes import wait_for

pytestmark = pytest.mark.usefixtures("often")

NAMES = ("leasing-renewer", "leasing-watchdog")


@pytest.fixture
def others() -> set[threading.Thread]:
    """The threads that ran before."""
    return {*threading.enumerate()}


def threads_beside(others: set[threading.Thread]) -> list[threading.Thread]:
    """The keeper's threads that have begun since, the renewer first."""
    begun = [each for each in threading.enumerate() if each not in others and each.name in NAMES]
    return sorted(begun, key=lambda thread: thread.name)


def renewed_again(store: FakeStore, hold: Term | None = None) -> None:
    """Wait for another renewal, and for more trust in ``hold``."""
    count, until = len(store.calls), hold.trusted_until if hold else -1.0
    wait_for(lambda: len(store.calls) > count and (not hold or hold.trusted_until > until))


def test_the_threads_run_from_the_first_hold_to_the_stop_and_again_with_the_next(
    store: FakeStore, others: set[threading.Thread]
) -> None:
    keeper = Keeper()
    keeper.stop(PATIENCE)
    assert threads_beside(others) == []

    for _ in range(2):
        hold = hold_of(store, keeper)
        with hold as term:
            threads = threads_beside(others)
            assert [thread.name for thread in threads] == [*NAMES]
            assert all(thread.daemon for thread in threads)
            renewed_again(store, term)
        hold.__enter__()
        keeper.stop(PATIENCE)
        assert have_ended(threads)
    keeper.stop(PATIENCE)


@pytest.mark.parametrize("ends_during_a_renewal", [False, True])
def test_the_store_is_opened_and_closed_once_on_the_renewing_thread(
    ends_during_a_renewal: bool,
    store: FakeStore,
    live_keeper: Keeper,
    hanging: Hanging,
    others: set[threading.Thread],
) -> None:
    with hold_of(store, live_keeper):
        for _ in range(2):
            renewed_again(store)
        if ends_during_a_renewal:
            store.answer = hanging
            assert hanging.reached.wait(PATIENCE)
        renewer, _ = threads_beside(others)
    hanging.let_go.set()
    wait_for(lambda: store.closed)

    assert (store.opened, store.closed) == ([renewer], [renewer])


def test_connections_are_closed_after_a_note_when_nothing_is_held(
    live_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(leasing_keeper, "close_connections", lambda: steps.append("closed"))

    live_keeper.soon(lambda: steps.append("noted"))

    wait_for(lambda: "closed" in steps[steps.index("noted") :] if "noted" in steps else False)


# Renewals that hang or fail


@pytest.mark.parametrize("fault", ["hangs", "fails"])
def test_a_loss_is_reported_in_time_while_the_store_does_not_answer(
    fault: str, store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    def fail(grant: Any, reason: str) -> None:
        raise ConnectionError("the database is away")

    store.answer = hanging if fault == "hangs" else store.fail
    store.lost = fail  # type: ignore[method-assign]
    ended_at: list[float] = []
    with override_settings(LEASING={**OFTEN, "MARGIN": 0.9}):
        # So that they are trusted for two thirds of a second.
        holds = [
            hold_of(store, live_keeper, key, 1.0, lambda _: ended_at.append(holder_clock()))
            for key in range(3)
        ]
        sent_at = holder_clock()
        for hold in holds:
            hold.__enter__()
        wait_for(lambda: len(ended_at) == 3)
        assert not hanging.let_go.is_set()
        hanging.let_go.set()

    assert all(hold.term.lost for hold in holds)
    assert sent_at + 1 / 3 < min(ended_at)
    wait_for(lambda: not live_keeper.holds)
    assert not any(hold.term.valid for hold in holds), "the late answer changes nothing"


def test_a_hold_outlives_a_store_that_is_away_for_a_while(
    store: FakeStore, live_keeper: Keeper
) -> None:
    def open_in_vain() -> None:
        raise ConnectionError("no route")

    real, store.open = store.open, open_in_vain  # type: ignore[method-assign]
    with hold_of(store, live_keeper) as hold:
        wait_for(lambda: live_keeper.draining)
        assert not store.calls
        store.open = real  # type: ignore[method-assign]
        store.answer = store.fail
        renewed_again(store)
        assert live_keeper.draining
        trusted_until = hold.trusted_until
        store.answer = store.renew_all
        wait_for(lambda: hold.trusted_until > trusted_until)
        # A renewal that a loaded machine made slow counts as a failure too.
        wait_for(lambda: not live_keeper.draining)


def test_the_watchdog_cuts_off_by_itself(
    store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    store.answer = hanging
    with hold_of(store, live_keeper):
        wait_for(lambda: store.aborted == 1)
        assert live_keeper.draining
        hanging.let_go.set()
        wait_for(lambda: not live_keeper.draining)


# Callbacks and notes


def test_callbacks_that_are_slow_or_fail_delay_neither_renewals_nor_the_watch_nor_others(
    store: FakeStore, live_keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    called, let_go = threading.Event(), threading.Event()
    reported: list[Term] = []

    def is_slow(hold: Term) -> None:
        called.set()
        let_go.wait(PATIENCE)
        raise ZeroDivisionError

    slow = hold_of(store, live_keeper, "slow", on_lost=is_slow).__enter__()
    store.answer = store.lose_all
    try:
        assert called.wait(PATIENCE)
        store.answer = store.renew_all
        other = hold_of(store, live_keeper, "other", on_lost=reported.append)
        with pytest.raises(LeaseLost), other:
            before = other.term.trusted_until
            wait_for(lambda: other.term.trusted_until > before)
            store.answer = store.lose_all
            assert other.term.lost.wait(PATIENCE)
        wait_for(lambda: reported == [other.term])
    finally:
        let_go.set()
    wait_for(lambda: "ZeroDivisionError" in caplog.text)
    assert slow.lost


def test_notes_that_fail_are_tried_again_and_hold_up_no_renewals(
    store: FakeStore, live_keeper: Keeper
) -> None:
    """The database that does not take notes may still renew."""
    tries: list[int] = []

    def note() -> None:
        tries.append(len(store.calls))
        threading.Event().wait(0.06)  # longer than the interval: a renewal is always due afterwards
        if len(tries) < 2:
            raise ConnectionError("the database is away")

    with hold_of(store, live_keeper):
        live_keeper.soon(note)
        wait_for(lambda: len(tries) == 2)
        assert tries[1] >= tries[0] + 5


# Faults of the threads themselves


@pytest.fixture
def without() -> Iterator[Callable[[str], None]]:
    """Takes the name of a thread that cannot be started, or of none."""
    refused: list[str] = [""]
    start = threading.Thread.start

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == refused[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_or_not)
        yield lambda name: refused.__setitem__(0, name)


@pytest.mark.parametrize("name", NAMES)
def test_without_its_threads_nothing_is_held_until_they_can_be_started(
    name: str,
    store: FakeStore,
    live_keeper: Keeper,
    without: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    without(name)
    begun, noted = [], threading.Event()

    def acquire() -> Any:
        begun.append(1)
        return iter(())

    live_keeper.soon(noted.set)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Hold(store, acquire, keeper=live_keeper).__enter__()
    assert not begun  # nothing was granted that nobody holds
    assert live_keeper.draining and not live_keeper.holds
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once

    without("")
    with pytest.raises(LeaseLost), hold_of(store, live_keeper) as hold:
        renewed_again(store)
        assert noted.wait(PATIENCE) and not live_keeper.draining
        store.answer = store.lose_all
        assert hold.lost.wait(PATIENCE)


def test_what_is_granted_while_a_thread_ends_that_cannot_be_started_again_is_not_held(
    store: FakeStore, live_keeper: Keeper, without: Callable[[str], None]
) -> None:
    hold = hold_of(store, live_keeper)
    acquire = hold._acquire
    assert acquire is not None

    def stops_meanwhile() -> Any:
        live_keeper.stop(PATIENCE)
        without(NAMES[0])
        return acquire()

    late = Hold(store, stops_meanwhile, keeper=live_keeper)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        late.__enter__()

    assert live_keeper.draining and not live_keeper.holds and not late.term.valid


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit(), ZeroDivisionError("ours")], ids=["end", "fault"])
@pytest.mark.parametrize(("place", "work"), [(0, "renew_due"), (1, "cut_off")])
def test_a_thread_of_the_keeper_survives_a_fault_and_is_replaced_when_it_ends(
    place: int,
    work: str,
    error: BaseException,
    store: FakeStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    others: set[threading.Thread],
) -> None:
    jumped: list[float] = []
    keeper = Keeper(clock=lambda: holder_clock() + sum(jumped))
    keeper.look_every = 0.01
    real, errors, count = getattr(keeper, work), [error], replaced[NAMES[place]]
    begun: list[threading.Thread] = []

    def fail() -> None:
        if errors and store.calls and threading.current_thread() in begun:
            raise errors.pop()
        real()

    is_end = isinstance(error, SystemExit)
    monkeypatch.setattr(keeper, work, fail)
    with caplog.at_level(logging.ERROR), pytest.raises(LeaseLost):
        with hold_of(store, keeper) as hold:
            begun += threads_beside(others)
            wait_for(lambda: not errors)
            if is_end:
                wait_for(lambda: not begun[place].is_alive())
                wait_for(lambda: len(threads_beside(others)) == 2)
            renewed_again(store)
            assert (begun[0] in store.closed) is (is_end and place == 0)
            jumped.append(60)
            assert hold.lost.wait(PATIENCE), "the watchdog is at work"

        assert (threads_beside(others)[place] is begun[place]) is not is_end
    assert replaced[NAMES[place]] == count + is_end
    assert ("thread.replaced" if is_end else "keeper.failed") in logged(caplog)
    keeper.stop(PATIENCE)


# Wake-ups


def test_a_hold_wakes_threads_that_sleep_beside_a_longer_one(
    store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    live_keeper.look_every = 10 * PATIENCE
    long_ones = FakeStore()
    with override_settings(LEASING={"MAX_TTL": 1e6, "JITTER": 0}):
        hold_of(long_ones, live_keeper, "long", ttl=1e5).__enter__()
        with override_settings(LEASING=OFTEN):
            # Until the long one is due nobody wakes by himself.
            short = hold_of(store, live_keeper, "short").__enter__()
            renewed_again(store)
            store.answer = hanging
            wait_for(lambda: store.aborted)
            hanging.let_go.set()
            short.release()


def test_a_hold_that_nobody_renews_is_lost_in_time_though_the_watchdog_slept(
    store: FakeStore,
) -> None:
    looks: list[str] = []

    def clock() -> float:
        looks.append(threading.current_thread().name)
        return holder_clock()

    keeper = Keeper(clock=clock)
    keeper.start()
    # It looks at the clock under the lock, and leaves that when it sleeps.
    wait_for(lambda: "leasing-watchdog" in looks)
    held = granted(sent_at=holder_clock(), store=store)
    keep_all([held], keeper)
    held.detach()
    held.due_at = math.inf
    held.resume(holder_clock() + 0.01)

    assert held.lost.wait(PATIENCE)
    keeper.stop()


@pytest.mark.parametrize("beside_a_long_one", [False, True])
def test_holds_that_come_and_go_long_before_they_are_due_seldom_wake_the_renewer(
    beside_a_long_one: bool, store: FakeStore
) -> None:
    looks: Counter[str] = Counter()

    def clock() -> float:
        looks[threading.current_thread().name] += 1
        return holder_clock()

    keeper = Keeper(clock=clock)
    with override_settings(LEASING={"MAX_TTL": 1e6}):
        if beside_a_long_one:
            hold_of(store, keeper, "long", ttl=1e5).__enter__()
        with hold_of(store, keeper, "first", ttl=2e5):
            wait_for(lambda: looks["leasing-renewer"])
        for key in range(300):
            with hold_of(store, keeper, key, ttl=2e5):
                pass
    keeper.stop(PATIENCE)

    assert looks["leasing-renewer"] < 100
    assert store.calls == []


@pytest.mark.parametrize(
    ("asked", "is_woken", "slept"),
    [
        ([None, 0.5, None, None, 0.5], [False] * 5, [None, 0.5, CHECK_CLOCK_EVERY, None, 0.5]),
        ([None] * 3, [True, False, False], [None, CHECK_CLOCK_EVERY, None]),
    ],
    ids=["after its last work", "after a hold that was gone when it looked"],
)
def test_a_thread_lingers_for_one_look(
    asked: list[float | None], is_woken: list[bool], slept: list[float | None]
) -> None:
    waits: list[float | None] = []

    class Waiting(Alarm):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return is_woken[len(waits) - 1]

    alarm = Waiting(threading.RLock())
    for seconds in asked:
        alarm.sleep(100.0, seconds)

    assert waits == slept


def test_a_jump_of_the_clock_is_noticed_while_the_threads_wait(store: FakeStore) -> None:
    """As when the machine was suspended."""
    now = FakeClock()
    keeper = Keeper(clock=now)
    reported: list[Term] = []
    with override_settings(LEASING={}):
        hold = hold_of(store, keeper, ttl=3600, on_lost=reported.append)
        hold.__enter__()
    now.advance(7200)

    assert hold.term.lost.wait(PATIENCE)
    wait_for(lambda: reported == [hold.term])
    keeper.stop()


# Stopping and resting


def test_what_was_noted_last_is_written_before_the_keeper_stops() -> None:
    keeper, first, go_on = Keeper(), threading.Event(), threading.Event()
    written: list[int] = []

    def note() -> None:
        first.set()
        go_on.wait(PATIENCE)

    keeper.soon(note)
    assert first.wait(PATIENCE)
    keeper.soon(lambda: written.append(1))
    threading.Timer(0.05, go_on.set).start()
    keeper.stop(PATIENCE)

    assert written == [1]


def test_a_thread_that_outlasts_the_stop_ends_when_it_can(
    store: FakeStore, hanging: Hanging, others: set[threading.Thread]
) -> None:
    """It must not go on along with the threads of the next start."""
    keeper = Keeper()
    store.answer = hanging
    hold_of(store, keeper).__enter__()
    threads = threads_beside(others)
    assert hanging.reached.wait(PATIENCE)

    keeper.stop(0.01)
    hanging.let_go.set()

    wait_for(lambda: have_ended(threads))


def test_stopping_from_a_callback_does_not_wait_for_itself(store: FakeStore) -> None:
    keeper, done = Keeper(), threading.Event()

    def on_lost(hold: Term) -> None:
        keeper.stop(PATIENCE)
        done.set()

    store.answer = store.lose_all
    hold_of(store, keeper, on_lost=on_lost).__enter__()

    assert done.wait(PATIENCE)


def test_a_keeper_rests_while_it_holds_nothing_and_starts_again_with_the_next_hold(
    store: FakeStore, others: set[threading.Thread]
) -> None:
    keeper = Keeper()
    with hold_of(store, keeper):
        threads = threads_beside(others)
        keeper.stop_if_idle(PATIENCE)
        assert threads_beside(others) == threads
        renewed_again(store)
    noted, reported = threading.Event(), threading.Event()
    keeper.soon(noted.set)
    keeper.call(reported.set)

    keeper.stop_if_idle(PATIENCE)

    assert have_ended(threads) and noted.is_set() and reported.is_set()
    with hold_of(store, keeper):
        renewed_again(store)
    keeper.stop(PATIENCE)


def test_what_is_held_while_a_keeper_goes_to_rest_is_renewed(store: FakeStore) -> None:
    keeper, ending, go_on = Keeper(), threading.Event(), threading.Event()

    def end_late() -> None:
        ending.set()
        go_on.wait(PATIENCE)

    keeper.call(end_late)  # the keeper waits for it when it rests
    assert ending.wait(PATIENCE)
    resting = threading.Thread(target=keeper.stop_if_idle, args=(PATIENCE,))
    resting.start()
    with hold_of(store, keeper):
        go_on.set()
        resting.join(PATIENCE)
        renewed_again(store)
    keeper.stop(PATIENCE)
