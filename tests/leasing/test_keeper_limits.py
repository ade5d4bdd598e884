"""Nothing that is slow, hangs or jumps keeps the keeper from the rest of its holds."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings

from leasing import keeper as keeper_module
from leasing.hold import Hold
from leasing.keeper import Keeper, keeper
from leasing.models import Lease
from leasing.runtime import callbacks, notes
from leasing.runtime.callbacks import MAX_THREADS, CallbackThreads
from leasing.signals import lost
from tests.conftest import Spawn
from tests.leasing.support import (
    PATIENCE,
    FakeClock,
    FakeStore,
    Hanging,
    enter,
    hold_of,
    row_hold,
)
from tests.logs import logged
from tests.plugin import DATABASE
from tests.processes import wait_for
from tests.proxy import Proxy
from tests.races.test_losing import socket_folder

# A request that hangs


def test_a_request_that_outlasts_its_limit_is_cut_off_once(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 1, ttl=30)

    def hang(grants: Any) -> Any:
        for seconds, times in ((7.4, 0), (0.2, 1), (10, 1)):
            clock.advance(seconds)
            manual_keeper.cut_off()
            assert store.aborted == times
            assert manual_keeper.draining == bool(times)
        raise ConnectionError("cut off")

    store.answer = hang
    clock.advance(12)
    manual_keeper.renew_due()
    manual_keeper.cut_off()

    assert store.aborted == 1
    assert manual_keeper.draining, "the failure itself has opened the breaker"


def test_a_note_that_hangs_is_cut_off_too(manual_keeper: Keeper, clock: FakeClock) -> None:
    aborted: list[bool] = []

    def hang() -> None:
        clock.advance(notes.NOTE_LIMIT * keeper_module.CUT_OFF)
        manual_keeper.cut_off()

    manual_keeper.soon(hang, lambda: aborted.append(True))
    manual_keeper._write_notes()

    assert aborted == [True]
    assert not manual_keeper.draining


@pytest.mark.usefixtures("often")
def test_the_watchdog_cuts_off_by_itself(
    store: FakeStore, live_keeper: Keeper, hanging: Hanging
) -> None:
    store.answer = hanging
    with hold_of(store, live_keeper):
        wait_for(lambda: store.aborted == 1)
        assert live_keeper.draining
        hanging.let_go.set()
        wait_for(lambda: not live_keeper.draining)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="there is no network to SQLite")
def test_a_hold_outlives_a_connection_whose_answers_never_come(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = socket_folder(request.config.stash[DATABASE].url)
    if not folder:
        pytest.skip("the server that was given has no socket here")
    proxy = Proxy(tmp_path, Path(folder))
    lease = Lease.objects.acquire("crane:1", ttl=3)
    Lease.objects.release(lease)

    def renewals() -> int:
        return Lease.objects.get(pk=lease.pk).renewals

    # For connections that are still to be made: that of the keeper.
    monkeypatch.setitem(connections.settings["default"], "HOST", str(proxy.folder))
    often = override_settings(LEASING={"JITTER": 0, "RENEW_EVERY": 1})
    with often, Lease.objects.hold("crane:1", ttl=30) as hold:
        wait_for(lambda: renewals() >= 1)
        caplog.clear()
        proxy.swallow_so_far()
        # It drains for moments only, which a loaded machine may look away for: the log stays.
        wait_for(lambda: "keeper.cut_off" in logged(caplog))
        count = renewals()
        wait_for(lambda: renewals() > count)
        wait_for(lambda: not keeper.draining)
        hold.ensure()
    keeper.stop()
    proxy.close()


# A short hold next to a long one


def test_each_hold_has_the_limit_of_its_own_interval(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 1, ttl=1)
    enter(store, manual_keeper, 2, ttl=9)
    enter(store, manual_keeper, 3, ttl=10)
    for hold in manual_keeper.holds:
        hold.due_at = clock.now

    manual_keeper.renew_due()

    assert [list(call) for call in store.calls] == [[1], [2, 3]]
    assert store.timeouts == [keeper_module.SHORTEST_LIMIT, 1.5]


def test_a_hold_lasts_on_a_slow_database_whatever_short_ones_are_taken_beside_it(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, "long", ttl=9)

    def answer_slowly(grants: Any) -> Any:
        limit = store.timeouts[-1]
        clock.advance(min(limit, 0.4))
        if limit < 0.4:
            raise ConnectionError("it took too long")
        return store.renew_all(grants)

    store.answer = answer_slowly
    ends_at = clock.now + 60
    while clock.now < ends_at:
        enter(store, manual_keeper, clock.now, ttl=1)
        while any(each is not hold._held for each in manual_keeper.holds):
            clock.advance(0.01)
            manual_keeper.renew_due()
            manual_keeper.declare_lost()

    assert hold.valid


def hanging(
    store: FakeStore, keeper: Keeper, clock: FakeClock, step: float
) -> Callable[[Any], Any]:
    """An answer that never comes: the keeper looks every ``step`` seconds until it is cut off."""

    def answer(grants: Any) -> Any:
        while not store.aborted:
            clock.advance(step)
            keeper.cut_off()
        raise ConnectionError("cut off")

    return answer


def test_a_request_that_hangs_gives_way_to_the_last_chance_of_a_shorter_hold(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    hangs, fine = store, FakeStore()
    (long,) = enter(hangs, manual_keeper, 1, ttl=9)
    long._held.due_at = clock.now
    (short,) = enter(fine, manual_keeper, 1, ttl=1)
    began_at = clock.now

    hangs.answer = hanging(hangs, manual_keeper, clock, 0.01)
    manual_keeper.renew_due()
    assert clock.now - began_at < 0.5 < 1.5 * keeper_module.CUT_OFF
    clock.now = max(clock.now, short._held.due_at)
    manual_keeper.renew_due()

    assert short.valid
    assert short.trusted_until > clock.now + 0.5


@pytest.mark.parametrize("why_not", ["it had its chance", "it is not due", "its own renewals fail"])
def test_a_request_gives_way_to_nobody_whom_that_would_not_help(
    why_not: str, store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    other = FakeStore()
    (short,) = enter(other, manual_keeper, 1, ttl=1)
    short._held.due_at = clock.now
    other.answer = other.all_busy
    if why_not == "it had its chance":
        clock.now = short.trusted_until - 0.3
    elif why_not == "it is not due":
        short._held.due_at = math.inf
    else:
        other.answer = other.fail
    enter(store, manual_keeper, 1, ttl=9)[0]._held.due_at = clock.now
    began_at = clock.now

    store.answer = hanging(store, manual_keeper, clock, 0.1)
    manual_keeper.renew_due()

    assert clock.now - began_at >= 1.5 * keeper_module.CUT_OFF


# Callbacks


def test_a_callback_that_exits_keeps_nobody_else_from_being_told() -> None:
    callback_threads, reported = CallbackThreads(), threading.Event()
    callback_threads.call(partial(sys.exit, 1))
    callback_threads.call(reported.set)

    assert reported.wait(PATIENCE)
    callback_threads.stop(PATIENCE)


def test_slow_callbacks_delay_no_other() -> None:
    callback_threads, go_on, reported = CallbackThreads(), threading.Event(), threading.Event()
    for _ in range(MAX_THREADS - 1):
        callback_threads.call(partial(go_on.wait, PATIENCE))
    callback_threads.call(reported.set)

    assert reported.wait(PATIENCE)
    go_on.set()
    callback_threads.stop(PATIENCE)


def test_callbacks_one_after_the_other_share_a_thread() -> None:
    callback_threads, threads = CallbackThreads(), set()
    for _ in range(5):
        reported = threading.Event()
        callback_threads.call(lambda: threads.add(threading.get_ident()))
        callback_threads.call(reported.set)
        reported.wait(PATIENCE)
        wait_for(lambda: not callback_threads._pending)
    callback_threads.stop(PATIENCE)

    assert len(threads) <= 2


def test_receivers_are_called_in_order_unless_a_callback_hangs() -> None:
    reported: list[int] = []
    callback_threads, let_go = CallbackThreads(patience=0.01), threading.Event()
    for number in range(50):
        callback_threads.call(partial(reported.append, number))
    wait_for(lambda: len(reported) == 50)
    callback_threads.call(partial(let_go.wait, PATIENCE))
    wait_for(lambda: callback_threads._busy_since)
    callback_threads.call(partial(reported.append, 50))

    def look() -> bool:
        callback_threads.tend()
        return len(reported) == 51

    wait_for(look)
    let_go.set()
    callback_threads.stop(PATIENCE)

    assert reported == [*range(51)]


def test_what_is_told_behind_callbacks_that_hang_is_dropped_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported: list[int] = []
    callback_threads, let_go = CallbackThreads(patience=PATIENCE, most=3), threading.Event()
    callback_threads.call(partial(let_go.wait, PATIENCE))
    for number in range(4):
        callback_threads.call(partial(reported.append, number))
    let_go.set()
    callback_threads.stop(PATIENCE)

    assert reported == [0, 1]
    assert callback_threads.dropped == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_callback_threads_is_behind_while_much_waits_and_gets_on(
    holder_clock: FakeClock,
) -> None:
    callback_threads = CallbackThreads()
    for pending, ended_at, is_behind in (
        (callbacks.BACKLOG - 1, holder_clock.now, False),
        (callbacks.BACKLOG, holder_clock.now - callbacks.HANGS_AFTER, False),
        (callbacks.BACKLOG, holder_clock.now - callbacks.HANGS_AFTER + 0.1, True),
    ):
        callback_threads._pending, callback_threads._ended_at = pending, ended_at
        assert callback_threads.is_behind is is_behind


def test_a_thread_of_callbacks_that_has_ended_is_replaced() -> None:
    callback_threads, reported = CallbackThreads(patience=PATIENCE), threading.Event()
    gone = threading.Thread(target=bool)
    gone.start()
    gone.join()
    callback_threads._threads.append(gone)
    callback_threads._busy_since[gone] = 0.0
    callback_threads.call(reported.set)

    assert reported.wait(PATIENCE)
    callback_threads.stop(PATIENCE)


@pytest.mark.django_db
def test_who_hears_late_of_a_loss_hears_of_the_term_that_was_lost(
    manual_keeper: Keeper, monkeypatch: pytest.MonkeyPatch, notes: Keeper
) -> None:
    later: list[Any] = []
    monkeypatch.setattr(manual_keeper, "call", lambda tale, **_: later.append(tale))
    reported: list[tuple[Any, str]] = []

    def receiver(lease: Lease, reason: str, **_: Any) -> None:
        reported.append((lease.grant_id, reason))

    hold = row_hold(manual_keeper)
    hold.__enter__()
    grant_id = hold.grant_id
    hold._held.mark_lost("revoked")
    hold._held.give_back()
    hold._held.abandon()
    hold.__enter__()
    lost.connect(receiver)
    for tale in later:
        tale()
    lost.disconnect(receiver)

    assert hold.grant_id != grant_id
    assert reported == [(grant_id, "revoked")]
    hold.release()


# Notes and renewals


def test_notes_wait_while_a_renewal_is_due(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 1, ttl=30)
    written: list[int] = []

    def slow(number: int) -> None:
        clock.advance(6)
        written.append(number)

    for number in range(5):
        manual_keeper.soon(partial(slow, number))

    assert manual_keeper._write_notes()
    assert written == [0, 1]
    manual_keeper.renew_due()
    manual_keeper._write_notes()
    assert written == [0, 1, 2, 3]


# A clock that jumps, as it does when the machine was suspended


@pytest.mark.usefixtures("often")
def test_a_jump_of_the_clock_is_noticed_while_the_threads_wait(store: FakeStore) -> None:
    now = FakeClock()
    keeper = Keeper(clock=now)
    reported: list[Hold] = []
    with override_settings(LEASING={}):
        hold = hold_of(store, keeper, ttl=3600, on_lost=reported.append)
        hold.__enter__()
    now.advance(7200)

    assert hold.lost.wait(PATIENCE)
    wait_for(lambda: reported == [hold])
    keeper.stop()


# Giving back


def test_a_release_that_failed_can_be_tried_again(store: FakeStore, manual_keeper: Keeper) -> None:
    (hold,) = enter(store, manual_keeper, 1)
    store.release_error = ConnectionError("the database is away")
    with pytest.raises(ConnectionError):
        hold.release()
    assert store.released == []

    store.release_error = None
    hold.release()
    hold.release()

    assert len(store.released) == 1


@pytest.mark.django_db
def test_a_loss_that_the_release_finds_out_is_told_like_any_other(
    manual_keeper: Keeper, notes: Keeper
) -> None:
    reported: list[Hold] = []
    hold = row_hold(manual_keeper, on_lost=reported.append)
    hold.__enter__()
    Lease.objects.all().revoke()

    with pytest.raises(Exception, match="revoked"):
        hold.release()

    assert hold.lost.is_set()
    assert reported == [hold]
    assert not hold.valid
    with pytest.raises(Exception, match="revoked"):
        hold.release()
    assert reported == [hold]


def test_at_its_end_a_process_gives_back_what_its_threads_still_hold(spawn: Any) -> None:
    code = (
        "import django, threading; django.setup()\n"
        "from functools import partial\n"
        "from leasing.keeper import keeper\n"
        f"keeper.stop = partial(keeper.stop, {PATIENCE})\n"
        "from leasing.models import Lease\n"
        "def hold_of(name):\n"
        "    return Lease.objects.hold(name, on_lost=lambda hold: print('told'))\n"
        "hold = hold_of('main')\n"
        "hold.__enter__()\n"
        "entered = threading.Event()\n"
        "def work():\n"
        "    with hold_of('thread'):\n"
        "        entered.set()\n"
        "        threading.Event().wait()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "entered.wait()\n"
    )
    process = spawn(["-W", "ignore::ResourceWarning", "-c", code])
    assert process.wait(30) == 0

    released = Lease.objects.filter(released_at__isnull=False).order_by("resource")
    assert [lease.resource for lease in released] == ["main", "thread"], process.output
    assert "reported" not in process.output


WEIGHED = """
import django; django.setup()

import gc, logging, tracemalloc
from leasing.models import Lease

logging.disable(logging.CRITICAL)
names = [f"crane:{number}" for number in range(40)]
holds = [None] * len(names)
Lease.objects.hold("warm").__enter__()
gc.collect()
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
for number, name in enumerate(names):
    holds[number] = Lease.objects.hold(name).__enter__()
gc.collect()
print((tracemalloc.get_traced_memory()[0] - before) / len(names))
"""


def test_a_hold_weighs_less_than_two_kibibytes(spawn: Spawn) -> None:
    # In a process of its own: what other tests have left behind would be counted too.
    process = spawn(["-c", WEIGHED])
    assert process.wait(60) == 0, process.output
    weight = float(process.output)
    assert weight < 2048 * 1.35, "its row and a share of what grows by steps included"
