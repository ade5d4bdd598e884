"""The keeper's threads, on stores without a database."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from leasing import keeper as leasing_keeper
from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.hold.held_grant import HeldGrant, detach_all, keep_all
from leasing.keeper import Keeper
from leasing.runtime.alarm import CHECK_CLOCK_EVERY, Alarm
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


def test_no_thread_runs_before_the_first_hold(store: FakeStore) -> None:
    keeper = Keeper()
    assert keeper._threads == []

    with hold_of(store, keeper):
        threads = list(keeper._threads)
        assert [thread.name for thread in threads] == [
            "leasing-renewer",
            "leasing-watchdog",
        ]
        assert all(thread.daemon and thread.is_alive() for thread in threads)
    keeper.stop()

    wait_for(lambda: have_ended(threads))


def test_a_hold_is_renewed_again_and_again(store: FakeStore, live_keeper: Keeper) -> None:
    with hold_of(store, live_keeper) as hold:
        granted_until = hold.trusted_until
        wait_for(lambda: len(store.calls) >= 3)

        assert hold.trusted_until > granted_until
        assert hold.valid


def test_the_store_is_opened_once_on_the_renewing_thread_and_closed_there_at_the_end(
    store: FakeStore, live_keeper: Keeper
) -> None:
    with hold_of(store, live_keeper):
        wait_for(lambda: len(store.calls) >= 2)
        renewer = live_keeper._threads[0]
    wait_for(lambda: store.closed)

    assert (store.opened, store.closed) == ([renewer], [renewer])


def test_the_store_is_closed_also_when_the_last_hold_ends_during_a_renewal(
    store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    store.answer = hanging
    with hold_of(store, live_keeper):
        assert hanging.reached.wait(PATIENCE)
    hanging.let_go.set()

    wait_for(lambda: store.closed)


def test_connections_are_closed_after_a_note_when_nothing_is_held(
    live_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(leasing_keeper, "close_connections", lambda: steps.append("closed"))

    live_keeper.soon(lambda: steps.append("noted"))

    wait_for(lambda: "closed" in steps[steps.index("noted") :] if "noted" in steps else False)


def test_a_loss_is_told_in_time_while_the_renewal_hangs(
    store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    store.answer = hanging
    ended_at: list[float] = []
    sent_at = holder_clock()
    hold = hold_of(store, live_keeper, on_lost=lambda hold: ended_at.append(holder_clock()))
    with pytest.raises(LeaseLost, match="it was not renewed in time"), hold:
        assert hanging.reached.wait(PATIENCE)
        # Only now, however late the renewal came: it hangs while trust ends.
        trusted_until = hold._held.trusted_until = holder_clock() + 0.1
        with live_keeper._lock:
            live_keeper._watchdog_wakes.notify()
        assert hold.lost.wait(PATIENCE)
        wait_for(lambda: ended_at)

    assert not hanging.let_go.is_set()
    assert trusted_until <= ended_at[0] < sent_at + hold.ttl


def test_the_answer_of_a_renewal_that_hung_too_long_changes_nothing(
    store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    store.answer = hanging
    with override_settings(LEASING={**OFTEN, "MARGIN": 0.9}):
        hold = hold_of(store, live_keeper, ttl=1.0)
        with pytest.raises(LeaseLost), hold:
            assert hold.lost.wait(PATIENCE)
            hanging.let_go.set()
            wait_for(lambda: not live_keeper._holds)
            assert not hold.valid


def test_every_hold_of_a_silent_store_is_told_though_telling_the_ledger_fails(
    store: FakeStore, live_keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(grant: Any, reason: str) -> None:
        raise ConnectionError("the database is away")

    store.answer = store.fail
    store.lost = fail  # type: ignore[method-assign]
    reported: list[Any] = []
    with override_settings(LEASING={**OFTEN, "MARGIN": 0.9}):
        holds = [
            hold_of(
                store, live_keeper, key, ttl=1.0, on_lost=lambda h: reported.append(h._held.key)
            )
            for key in range(3)
        ]
        for hold in holds:
            hold.__enter__()
        wait_for(lambda: len(reported) == 3)

    assert sorted(reported) == [0, 1, 2]
    wait_for(lambda: "hold.callback_failed" in logged(caplog))


def test_a_hold_outlives_a_store_that_is_away_for_a_while(
    store: FakeStore, live_keeper: Keeper
) -> None:
    store.answer = store.fail
    with hold_of(store, live_keeper) as hold:
        wait_for(lambda: live_keeper.draining)
        trusted_until = hold.trusted_until
        store.answer = store.renew_all
        wait_for(lambda: hold.trusted_until > trusted_until)
        # A renewal that a loaded machine made slow counts as a failure too.
        wait_for(lambda: not live_keeper.draining)


def test_a_slow_callback_delays_neither_renewals_nor_the_watch(
    store: FakeStore, live_keeper: Keeper
) -> None:
    called, let_go = threading.Event(), threading.Event()

    def on_lost(hold: Hold) -> None:
        called.set()
        let_go.wait(PATIENCE)

    slow = hold_of(store, live_keeper, "slow", on_lost=on_lost)
    slow.__enter__()
    slow._held.mark_lost("thief has held it")
    try:
        assert called.wait(PATIENCE)
        with hold_of(store, live_keeper, "other") as other:
            before = other.trusted_until
            wait_for(lambda: other.trusted_until > before)
            # What is answered from now on gives no trust back.
            store.answer = store.all_busy
            count = len(store.calls)
            wait_for(lambda: len(store.calls) >= count + 2)
            other._held.trusted_until = 0.0
            with live_keeper._lock:
                live_keeper._watchdog_wakes.notify()
            assert other.lost.wait(PATIENCE)
            other._held.abandon()
    finally:
        let_go.set()


def test_a_callback_that_fails_is_logged_and_the_next_is_called(
    store: FakeStore, live_keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    def on_lost(hold: Hold) -> None:
        raise ZeroDivisionError

    reported: list[Hold] = []
    first = hold_of(store, live_keeper, 1, on_lost=on_lost)
    second = hold_of(store, live_keeper, 2, on_lost=reported.append)
    for hold in (first, second):
        hold.__enter__()
        hold._held.mark_lost("thief has held it")

    wait_for(lambda: reported)
    wait_for(lambda: "ZeroDivisionError" in caplog.text)


def test_notes_that_wait_do_not_hold_up_renewals(store: FakeStore, live_keeper: Keeper) -> None:
    """The database that does not take notes may still renew."""
    slow, tried = threading.Event(), threading.Event()

    def note() -> None:
        slow.wait(0.06)  # longer than the interval: a renewal is always due afterwards
        tried.set()
        raise ConnectionError("the database is away")

    with hold_of(store, live_keeper):
        live_keeper.soon(note)
        assert tried.wait(PATIENCE)
        count = len(store.calls)
        wait_for(lambda: len(store.calls) >= count + 5)
        assert live_keeper._notes


def test_a_note_is_tried_again_until_the_database_takes_it(live_keeper: Keeper) -> None:
    tries: list[int] = []

    def note() -> None:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError("the database is away")

    live_keeper.soon(note)

    wait_for(lambda: len(tries) == 2 and not live_keeper._notes)


def test_a_fault_in_one_round_is_logged_and_the_keeper_goes_on(
    store: FakeStore,
    live_keeper: Keeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = live_keeper.renew_due
    faults = [ZeroDivisionError("ours")]

    def renew_due() -> None:
        if faults:
            raise faults.pop()
        real()

    monkeypatch.setattr(live_keeper, "renew_due", renew_due)
    with caplog.at_level(logging.ERROR), hold_of(store, live_keeper):
        wait_for(lambda: store.calls)

    assert "keeper.failed" in logged(caplog)


# Wake-ups


@pytest.fixture
def asleep(store: FakeStore, live_keeper: Keeper) -> Iterator[Hold]:
    """A hold for long, whose keeper's threads sleep until somebody wakes them."""
    live_keeper.look_every = 10 * PATIENCE
    with (
        override_settings(LEASING={"MAX_TTL": 1e6}),
        hold_of(store, live_keeper, "long", ttl=1e5) as hold,
    ):
        # Before it was held they slept for as long as nothing comes.
        wait_for(
            lambda: sleep_of(live_keeper) > 5 * PATIENCE and latest_look(live_keeper) < math.inf
        )
        yield hold


def sleep_of(keeper: Keeper) -> float:
    """For how many seconds both threads would sleep from now on."""
    alarms = (keeper._renewer_wakes, keeper._watchdog_wakes)
    return min(alarm._looks_at for alarm in alarms) - holder_clock()


def latest_look(keeper: Keeper) -> float:
    return max(keeper._renewer_wakes._looks_at, keeper._watchdog_wakes._looks_at)


def test_a_hold_that_is_due_before_the_renewer_would_look_is_renewed_in_time(
    store: FakeStore, live_keeper: Keeper, asleep: Hold
) -> None:
    with override_settings(LEASING=OFTEN), hold_of(store, live_keeper, "short", ttl=30) as short:
        wait_for(lambda: any("short" in call for call in store.calls))
        assert short.valid


def test_a_hold_whose_trust_ends_before_the_watchdog_would_look_is_lost_in_time(
    store: FakeStore, live_keeper: Keeper, asleep: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From the beginning: one renewal would make it due again.
    monkeypatch.setattr(live_keeper, "next_due", lambda *args: math.inf)
    short = hold_of(store, live_keeper, "short", ttl=0.3).__enter__()

    assert short.lost.wait(PATIENCE)


def test_a_request_that_hangs_is_cut_off_though_the_watchdog_slept(
    store: FakeStore, live_keeper: Keeper, asleep: Hold, hanging: Hanging
) -> None:
    store.answer = hanging
    with override_settings(LEASING=OFTEN):
        short = hold_of(store, live_keeper, "short", ttl=30)
        short.__enter__()
        short._held.trusted_until = asleep._held.trusted_until  # it is the request that has to end

        assert hanging.reached.wait(PATIENCE)
        wait_for(lambda: store.aborted)
        hanging.let_go.set()
        short._held.abandon()


def test_holds_that_come_and_go_long_before_they_are_due_wake_nobody(
    store: FakeStore, live_keeper: Keeper, asleep: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    with monkeypatch.context() as patch:
        for alarm in (live_keeper._renewer_wakes, live_keeper._watchdog_wakes):
            patch.setattr(alarm, "notify", lambda: woken.append("woken"))
        holds = [hold_of(store, live_keeper, key, ttl=2e5).__enter__() for key in range(3)]
        for hold in holds:
            hold._held.abandon()

    assert woken == []
    assert store.calls == []


def test_holds_that_were_granted_together_are_renewed_together(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    grants = [granted(key, sent_at=clock()) for key in range(3)]
    kept = [HeldGrant(store, grant, keeper=manual_keeper) for grant in grants]
    keep_all(kept)
    assert all(held.valid and held.trusted_until == clock() + 29.4 for held in kept)

    clock.advance(15)
    manual_keeper.renew_due()

    assert [len(call) for call in store.calls] == [3]
    detach_all(kept)
    assert manual_keeper.holds == []


def test_the_line_is_closed_also_when_the_last_hold_goes_just_before_the_renewer_sleeps(
    monkeypatch: pytest.MonkeyPatch, store: FakeStore
) -> None:
    keeper = Keeper(threads=False)
    slept: list[float | None] = []
    monkeypatch.setattr(keeper._renewer_wakes, "sleep", lambda now, wait: slept.append(wait))
    with hold_of(store, keeper):
        monkeypatch.setattr(keeper, "_until_due", lambda: None)
        assert keeper._wait_for_work(threading.Event())
        assert slept == []

    assert keeper._wait_for_work(threading.Event())
    assert slept == [None]


def test_a_thread_that_was_just_needed_lingers_for_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = Alarm(threading.RLock())
    slept: list[float | None] = []
    woken: list[float] = []
    monkeypatch.setattr(alarm, "notify", lambda: woken.append(alarm._looks_at))

    def wait(seconds: float | None) -> bool:
        slept.append(seconds)
        alarm.set_for(100.0 + 2 * CHECK_CLOCK_EVERY)
        return False

    monkeypatch.setattr(alarm, "wait", wait)
    for seconds in (None, 0.5, None, None, 0.5):
        alarm.sleep(100.0, seconds)

    assert slept == [None, 0.5, CHECK_CLOCK_EVERY, None, 0.5]
    assert woken == [math.inf, math.inf]  # while it would sleep for ever


def test_a_hold_that_is_gone_when_the_thread_looks_makes_it_linger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alarm = Alarm(threading.RLock())
    slept: list[float | None] = []
    woken = iter([True, False, False])

    def wait(seconds: float | None) -> bool:
        slept.append(seconds)
        return next(woken)

    monkeypatch.setattr(alarm, "wait", wait)
    for _ in range(3):
        alarm.sleep(100.0, None)

    assert slept == [None, CHECK_CLOCK_EVERY, None]


# Threads that can't be started, and that end


class Thin:
    """A process that can start no thread of the names in ``without``."""

    def __init__(self, *without: str) -> None:
        self.without = set(without)
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        if thread.name in self.without:
            raise RuntimeError("can't start new thread")
        self._start(thread)


@pytest.mark.parametrize("name", ["leasing-renewer", "leasing-watchdog"])
def test_without_its_threads_nothing_is_held_until_they_can_be_started(
    name: str, store: FakeStore, live_keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    thin, begun = Thin(name), []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: thin.start(thread))

    def acquire() -> Any:
        begun.append(1)
        return iter(())

    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Hold(store, acquire, keeper=live_keeper).__enter__()
    assert not begun  # nothing was granted that nobody holds
    late = Hold(store, keeper=live_keeper)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        late._begin_term(granted("late", sent_at=holder_clock())).keep()
    assert live_keeper.draining and not live_keeper.holds and not late.valid
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once

    thin.without.clear()
    with hold_of(store, live_keeper) as hold:
        granted_until = hold.trusted_until
        wait_for(lambda: hold.trusted_until > granted_until)
        hold._held.trusted_until = 0.0
        assert hold.lost.wait(PATIENCE)
        hold._held.abandon()


def test_a_note_waits_until_there_can_be_a_thread(
    live_keeper: Keeper, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = threading.Event()
    with monkeypatch.context() as patched:
        thin = Thin("leasing-renewer")
        patched.setattr(threading.Thread, "start", lambda thread: thin.start(thread))
        live_keeper.soon(noted.set)

    with hold_of(store, live_keeper):
        assert noted.wait(PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("place", "fails"), [(0, "renew_due"), (1, "declare_lost")])
def test_a_thread_of_the_keeper_that_ends_is_started_again_by_the_other(
    place: int,
    fails: str,
    store: FakeStore,
    live_keeper: Keeper,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = getattr(live_keeper, fails)
    exits = [SystemExit()]
    count = replaced[("leasing-renewer", "leasing-watchdog")[place]]

    def fail() -> None:
        if exits and threading.current_thread() is ended:
            raise exits.pop()
        real()

    with hold_of(store, live_keeper) as hold:
        ended = live_keeper._threads[place]
        wait_for(lambda: store.calls)
        monkeypatch.setattr(live_keeper, fails, fail)
        wait_for(lambda: live_keeper._threads[place] is not ended)
        calls = len(store.calls)
        wait_for(lambda: len(store.calls) > calls)
        hold._held.trusted_until = 0.0
        assert hold.lost.wait(PATIENCE)
        hold._held.abandon()

    assert "thread.replaced" in logged(caplog, thread_name=ended.name)
    assert replaced[ended.name] == count + 1
    assert (ended in store.closed) is (place == 0)


def test_a_fault_of_the_watchdogs_does_not_end_it(
    store: FakeStore, live_keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [ZeroDivisionError("ours")]
    real = live_keeper.cut_off

    def cut_off() -> None:
        if faults:
            raise faults.pop()
        real()

    monkeypatch.setattr(live_keeper, "cut_off", cut_off)
    with hold_of(store, live_keeper) as hold:
        watchdog = live_keeper._threads[1]
        hold._held.trusted_until = 0.0
        assert hold.lost.wait(PATIENCE)
        wait_for(lambda: not faults)
        assert live_keeper._threads[1] is watchdog
        hold._held.abandon()
