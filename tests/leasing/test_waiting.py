"""Waiting for a lease: how long, how often it is tried, and who wakes whom."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import override_settings

from leasing import leased
from leasing.exceptions import (
    InvalidTTL,
    LeaseHeld,
    LeaseInTransaction,
    LeaseLost,
    LeaseTimeout,
)
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.runtime import aio
from leasing.stores import portable
from leasing.stores.rows import RowStore
from leasing.testing.keeper import ManualKeeper
from leasing.waiting import waiter as waiting
from leasing.waiting.notifier import Notifier, notifier
from leasing.waiting.waiter import FIRST_PAUSE, MAX_PAUSE, Waiter, pauses
from tests.factories import make_lease
from tests.leasing.stopped import Waits
from tests.leasing.support import PATIENCE, OtherSession, events
from tests.processes import wait_for

in_earnest = pytest.mark.django_db(transaction=True)


# Pauses


@pytest.mark.parametrize("share", [0.5, 0.75, 1.0])
def test_pauses_double_up_to_the_longest_and_are_never_less_than_half(share: float) -> None:
    bounds = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]

    assert (FIRST_PAUSE, MAX_PAUSE) == (0.05, 1.0)
    found = list(islice(pauses(lambda low, high: share), 8))
    assert found == pytest.approx([share * bound for bound in bounds])


def test_the_random_part_of_a_pause_is_between_a_half_and_all() -> None:
    asked = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    list(islice(pauses(uniform), 20))

    assert set(asked) == {(0.5, 1.0)}


def test_two_waiters_do_not_stay_in_step() -> None:
    random.seed(7)

    assert list(islice(pauses(), 10)) != list(islice(pauses(), 10))


def test_a_waiter_polls_at_most_twice_a_second_once_it_has_waited_a_while() -> None:
    assert min(islice(pauses(), 5, 500)) >= MAX_PAUSE / 2


# How long: by clocks that stand still


@pytest.fixture
def waits(clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(clocks, monkeypatch)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each attempt to acquire a named lease."""
    made: list[str] = []
    attempt = RowStore.attempt

    def counting(rows: Any, *args: Any) -> Any:
        made.append(threading.current_thread().name)
        return attempt(rows, *args)

    monkeypatch.setattr(RowStore, "attempt", counting)
    return made


@pytest.mark.django_db
def test_who_does_not_wait_is_refused_at_once(waits: Waits, attempts: list[str]) -> None:
    make_lease(resource="crane:1")
    attempts.clear()

    with pytest.raises(LeaseHeld) as refusal:
        Lease.objects.acquire("crane:1")

    assert type(refusal.value) is LeaseHeld
    assert (len(attempts), waits.seconds) == (1, [])


@pytest.mark.django_db
def test_a_free_lease_is_not_waited_for(waits: Waits) -> None:
    assert Lease.objects.acquire("crane:1", wait=60).grants == 1
    assert waits.seconds == []


@pytest.mark.django_db
def test_who_waits_in_vain_is_told_who_has_it_exactly_when_the_time_is_over(
    clocks: ManualKeeper, waits: Waits, attempts: list[str]
) -> None:
    held = make_lease(resource="crane:1", holder="ann", ttl=60)
    attempts.clear()

    with pytest.raises(LeaseTimeout, match=r"^Waited 10\.0 s: crane:1 is held by ann") as refusal:
        Lease.objects.acquire("crane:1", wait=10)

    assert clocks.passed == pytest.approx(10)
    assert sum(waits.seconds) == pytest.approx(10)
    assert (refusal.value.holder, refusal.value.expires_at) == ("ann", held.expires_at)
    # One at once and one after each pause, the last at the very end.
    assert len(attempts) == len(waits.seconds) + 1


@pytest.mark.django_db
def test_no_pause_is_longer_than_what_is_left(clocks: ManualKeeper, waits: Waits) -> None:
    make_lease(resource="crane:1")

    with pytest.raises(LeaseTimeout):
        Lease.objects.acquire("crane:1", wait=0.01)

    assert waits.seconds == pytest.approx([0.01])


@pytest.mark.django_db
def test_a_lease_that_was_released_meanwhile_is_acquired(
    clocks: ManualKeeper, waits: Waits
) -> None:
    held = make_lease(resource="crane:1", ttl=60)
    waits.after(3, lambda: Lease.objects.release(held))

    lease = Lease.objects.acquire("crane:1", holder="bob", wait=10)

    assert lease.holder == "bob"
    assert 3 <= clocks.passed <= 3 + MAX_PAUSE
    assert events("crane:1") == ["acquired", "released", "acquired"]


@pytest.mark.django_db
def test_a_lease_that_ran_out_meanwhile_is_taken_over_within_one_pause(
    clocks: ManualKeeper, waits: Waits
) -> None:
    """Nobody announces that a holder has died."""
    make_lease(resource="crane:1", ttl=5)

    lease = Lease.objects.acquire("crane:1", wait=60)

    assert 5 <= clocks.passed <= 5 + MAX_PAUSE
    assert events("crane:1") == ["acquired", "taken_over"]
    assert lease.grants == 2


@pytest.mark.django_db
def test_a_lease_whose_row_was_deleted_meanwhile_is_acquired(waits: Waits) -> None:
    make_lease(resource="crane:1", ttl=60)
    waits.after(3, Lease.objects.all().delete)

    assert Lease.objects.acquire("crane:1", wait=10).grants == 1


@pytest.mark.django_db
def test_how_long_to_wait_is_a_setting(clocks: ManualKeeper, waits: Waits) -> None:
    make_lease(resource="crane:1")

    with override_settings(LEASING={"WAIT": 2}):
        with pytest.raises(LeaseTimeout):
            Lease.objects.acquire("crane:1")
        assert clocks.passed == pytest.approx(2)

        with pytest.raises(LeaseHeld) as refusal:
            Lease.objects.acquire("crane:1", wait=0)
        assert type(refusal.value) is LeaseHeld


@leased("crane:1", wait=None)
def _when_decorated() -> None: ...


def _by_a_hold() -> None:
    with Lease.objects.hold("crane:1", wait=None):
        pass


def _by_the_row() -> None:
    with Lease.objects.get().hold(wait=None):
        pass


def _by_the_setting() -> None:
    with override_settings(LEASING={"WAIT": None}):
        Lease.objects.acquire("crane:1")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "acquire",
    [
        lambda: Lease.objects.acquire("crane:1", wait=None),
        lambda: async_to_sync(Lease.objects.all().aacquire)("crane:1", wait=None),
        _by_a_hold,
        _by_the_row,
        _when_decorated,
        _by_the_setting,
    ],
    ids=["acquire", "aacquire", "hold", "row", "leased", "setting"],
)
def test_who_gives_no_end_waits_for_as_long_as_it_takes(
    clocks: ManualKeeper, waits: Waits, acquire: Callable[[], object]
) -> None:
    make_lease(resource="crane:1", ttl=30)

    acquire()

    assert 30 <= clocks.passed <= 30 + MAX_PAUSE


@pytest.mark.django_db
def test_a_wait_without_end_ends_when_its_caller_is_to_stop(waits: Waits) -> None:
    make_lease(resource="crane:1", ttl=600)
    stopping = threading.Event()
    waits.after(3, stopping.set)

    with pytest.raises(LeaseTimeout):
        Lease.objects.hold("crane:1", wait=None, stopping=stopping).__enter__()


@pytest.mark.django_db
def test_a_hold_waits_too_when_it_is_entered(clocks: ManualKeeper, waits: Waits) -> None:
    held = make_lease(resource="crane:1", ttl=60)
    waits.after(3, lambda: Lease.objects.release(held))
    hold = Lease.objects.hold("crane:1", wait=10)
    assert clocks.passed == 0

    with hold:
        assert hold.term.valid
        assert clocks.passed >= 3


@pytest.mark.django_db
def test_what_was_waited_does_not_count_against_the_hold(
    clocks: ManualKeeper, waits: Waits
) -> None:
    """Trust begins with the request that was granted, not with the first."""
    held = make_lease(resource="crane:1", ttl=60)
    waits.after(5, lambda: Lease.objects.release(held))

    with Lease.objects.hold("crane:1", ttl=4, wait=60) as hold:
        assert clocks.passed >= 5
        assert hold.trusted_until > clocks.seconds + 3


@pytest.mark.django_db
@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), True, "5", 10**12])
def test_what_is_no_time_to_wait_is_refused(wait: Any) -> None:
    with pytest.raises(InvalidTTL, match="^The wait must be"):
        Lease.objects.acquire("crane:1", wait=wait)


@pytest.mark.django_db
def test_nobody_waits_inside_a_transaction(waits: Waits) -> None:
    make_lease(resource="crane:1")

    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Lease.objects.acquire("crane:1", wait=10)

    assert waits.seconds == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize(
    ("terms", "refusal"),
    [
        ({"wait": 0.2}, LeaseTimeout),
        ({"wait": 0.2, "priority": 9, "preempt_after": 0}, LeaseTimeout),
        ({"priority": 9, "preempt_after": 0}, LeaseHeld),
    ],
)
def test_nobody_waits_for_a_row_that_somebody_has_locked(
    terms: dict[str, Any], refusal: type[LeaseHeld], other_session: OtherSession
) -> None:
    """As an operator's transaction has it, or the holder's ``still_mine``."""
    other_session.lock(Lease.objects.acquire("crane:1", holder="ann"))
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")  # an error instead of the waiting

    try:
        with pytest.raises(refusal) as held:
            Lease.objects.acquire("crane:1", **terms)
    finally:
        connection.close()

    assert type(held.value) is refusal
    assert held.value.holder == "ann"


@pytest.mark.django_db
@pytest.mark.usefixtures("portable")
def test_an_error_of_the_database_ends_the_waiting(
    waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lease(resource="crane:1")

    def fail(rows: Any, *args: Any, **given: Any) -> Any:
        raise ConnectionError("the database is away")

    waits.after(3, lambda: monkeypatch.setattr(portable, "grant", fail))

    with pytest.raises(ConnectionError):
        Lease.objects.acquire("crane:1", wait=10)

    assert no_waiters()


def no_waiters() -> bool:
    return not notifier("default").waiters


# Who wakes whom: waiters that never poll, so that only a notification can wake them


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Iterator[float]:
        while True:
            yield PATIENCE

    monkeypatch.setattr(waiting, "pauses", never)


@pytest.fixture
def crew() -> Iterator[ThreadPoolExecutor]:
    """Threads that work in parallel; they close what they opened."""
    with ThreadPoolExecutor(8) as crew:
        yield crew


def closing(work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        try:
            return work(*args)
        finally:
            connections.close_all()

    return run


def waiters(resource: str = "crane:1") -> int:
    return len(notifier("default").waiters.get(resource, ()))


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_a_release_wakes_a_waiter_of_the_same_process_at_once(crew: ThreadPoolExecutor) -> None:
    held = Lease.objects.acquire("crane:1", holder="ann")
    acquire = closing(lambda: Lease.objects.acquire("crane:1", holder="bob", wait=PATIENCE))
    begun = time.monotonic()
    winner = crew.submit(acquire)
    wait_for(lambda: waiters() == 1)

    Lease.objects.release(held)

    assert winner.result(PATIENCE).holder == "bob"
    assert time.monotonic() - begun < PATIENCE / 2
    assert no_waiters()


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_a_revocation_wakes_a_waiter_too(crew: ThreadPoolExecutor) -> None:
    Lease.objects.acquire("crane:1", holder="ann")
    acquire = closing(lambda: Lease.objects.acquire("crane:1", holder="bob", wait=PATIENCE))
    winner = crew.submit(acquire)
    wait_for(lambda: waiters() == 1)
    begun = time.monotonic()

    Lease.objects.filter(resource="crane:1").revoke()

    assert winner.result(PATIENCE).holder == "bob"
    assert time.monotonic() - begun < PATIENCE / 2


@pytest.mark.django_db
def test_a_release_that_is_rolled_back_wakes_nobody() -> None:
    held = Lease.objects.acquire("crane:1")
    waiter = Waiter(until=float("inf"))
    notifier("default").add("crane:1", waiter)
    try:
        with transaction.atomic():
            Lease.objects.release(held)
            assert not waiter.woken.is_set()
            transaction.set_rollback(True)
        assert not waiter.woken.is_set()
    finally:
        notifier("default").remove("crane:1", waiter)


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_waiters_of_one_process_take_turns(crew: ThreadPoolExecutor, attempts: list[str]) -> None:
    turns: list[int] = []

    def work(number: int) -> None:
        with Lease.objects.hold("crane:1", wait=PATIENCE):
            turns.append(number)

    held = Lease.objects.acquire("crane:1")
    done = []
    for number in range(5):
        done.append(crew.submit(closing(work), number))
        wait_for(lambda: waiters() == number + 1)  # noqa: B023 - called before the next turn
    Lease.objects.release(held)
    for work_of_one in done:
        work_of_one.result(PATIENCE)

    assert turns == [0, 1, 2, 3, 4]
    # For each one in vain, one that won, and one more where a release was heard of twice.
    assert len(attempts) <= 1 + 3 * 5


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_a_release_wakes_one_of_fifty_waiters(attempts: list[str]) -> None:
    async def race() -> list[Lease]:
        held = await Lease.objects.aacquire("crane:1")
        tasks = [
            asyncio.create_task(Lease.objects.aacquire("crane:1", wait=PATIENCE)) for _ in range(50)
        ]
        while waiters() < 50:
            await asyncio.sleep(0.01)
        before = len(attempts)
        await aio.in_thread(Lease.objects.release, held)
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # A second one would be asking by now.
        await aio.in_thread(Lease.objects.count)
        made.append(len(attempts) - before)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return [task.result() for task in done]

    made: list[int] = []
    (winner,) = async_to_sync(race)()

    assert winner.grants == 2
    # One for the notification of this process, and on PostgreSQL one for the notification.
    assert made[0] <= 2
    assert no_waiters()


@in_earnest
def test_without_a_notification_a_waiter_polls(
    crew: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has released it, and on SQLite nobody tells."""
    monkeypatch.setattr(Notifier, "notify", lambda notifier, resource: None)
    held = Lease.objects.acquire("crane:1")
    acquire = closing(lambda: Lease.objects.acquire("crane:1", wait=PATIENCE))
    winner = crew.submit(acquire)
    wait_for(lambda: waiters() == 1)

    Lease.objects.release(held)

    assert winner.result(PATIENCE).grants == 2


# Async


def soon(condition: Callable[[], bool]) -> Any:
    async def until() -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)

    return until()


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_an_async_waiter_leaves_the_loop_free_and_is_woken() -> None:
    async def story() -> Lease:
        held = await Lease.objects.aacquire("crane:1")
        task = asyncio.create_task(Lease.objects.aacquire("crane:1", holder="bob", wait=PATIENCE))
        await soon(lambda: waiters() == 1)
        for _ in range(100):  # the loop turns while the other waits
            await asyncio.sleep(0)
        await aio.in_thread(Lease.objects.release, held)
        return await task

    assert async_to_sync(story)().holder == "bob"


def test_a_notification_before_the_wait_is_not_lost_to_async_code() -> None:
    waiter = Waiter(until=float("inf"))
    waiter.pauses = iter([PATIENCE])

    async def story() -> None:
        waiter.notify()
        async with asyncio.timeout(PATIENCE / 2):
            await waiter.await_()

    async_to_sync(story)()
    assert not waiter.woken.is_set()


@in_earnest
def test_an_async_waiter_polls_too_and_gives_up_in_time() -> None:
    async def story() -> None:
        await Lease.objects.aacquire("crane:1", holder="ann")
        begun = time.monotonic()
        with pytest.raises(LeaseTimeout, match="held by ann"):
            await Lease.objects.aacquire("crane:1", wait=0.2)
        assert time.monotonic() - begun >= 0.2

    async_to_sync(story)()
    assert no_waiters()


@in_earnest
def test_an_async_hold_waits_and_its_body_is_run() -> None:
    async def story() -> None:
        held = await Lease.objects.aacquire("crane:1")
        task = asyncio.create_task(work())
        await soon(lambda: waiters() == 1)
        await aio.in_thread(Lease.objects.release, held)
        await task

    async def work() -> None:
        async with Lease.objects.hold("crane:1", wait=PATIENCE) as hold:
            hold.ensure()

    async_to_sync(story)()
    assert events("crane:1") == ["acquired", "released", "acquired", "released"]


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_a_cancelled_waiter_is_gone_at_once_and_its_turn_is_the_next_ones() -> None:
    async def story() -> Lease:
        held = await Lease.objects.aacquire("crane:1")
        first = asyncio.create_task(Lease.objects.aacquire("crane:1", wait=PATIENCE))
        await soon(lambda: waiters() == 1)
        second = asyncio.create_task(Lease.objects.aacquire("crane:1", holder="bob", wait=PATIENCE))
        await soon(lambda: waiters() == 2)

        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert waiters() == 1
        await aio.in_thread(Lease.objects.release, held)
        return await second

    assert async_to_sync(story)().holder == "bob"


@in_earnest
@pytest.mark.usefixtures("no_polls")
def test_one_who_was_notified_and_then_cancelled_passes_the_notification_on() -> None:
    async def story() -> Lease:
        held = await Lease.objects.aacquire("crane:1")
        first = asyncio.create_task(Lease.objects.aacquire("crane:1", wait=PATIENCE))
        await soon(lambda: waiters() == 1)
        second = asyncio.create_task(Lease.objects.aacquire("crane:1", holder="bob", wait=PATIENCE))
        await soon(lambda: waiters() == 2)
        # The release notifies from this very thread, so the first cannot have come before.
        with override_async_unsafe():
            Lease.objects.release(held)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert async_to_sync(story)().holder == "bob"


def override_async_unsafe() -> Any:
    patch = pytest.MonkeyPatch.context()
    context = patch.__enter__()
    context.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    class Leaving:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None:
            connections.close_all()
            patch.__exit__(None, None, None)

    return Leaving()


class Stopped:
    """An attempt that is held up on its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.ended = threading.Event()
        attempt = RowStore.attempt

        def slow(rows: Any, *args: Any) -> Any:
            if not before:
                row = attempt(rows, *args)
            self.reached.set()
            assert self.go_on.wait(PATIENCE)
            try:
                return attempt(rows, *args) if before else row
            finally:
                self.ended.set()

        monkeypatch.setattr(RowStore, "attempt", slow)


@in_earnest
@pytest.mark.parametrize("before", [True, False], ids=["not yet sent", "already answered"])
def test_what_a_cancelled_call_brings_is_given_back(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled: what it acquires would be nobody's, until its ttl ended."""
    stopped = Stopped(monkeypatch, before)

    async def story() -> None:
        task = asyncio.create_task(Lease.objects.aacquire("crane:1"))
        await soon(stopped.reached.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stopped.go_on.set()
        await soon_released()

    async def soon_released() -> None:
        async with asyncio.timeout(PATIENCE):
            while not await aio.in_thread(Lease.objects.released().exists):
                await asyncio.sleep(0.005)

    async_to_sync(story)()
    assert events("crane:1") == ["acquired", "released"]


@in_earnest
def test_a_cancelled_call_that_fails_is_nobodys_concern(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Lease.objects.acquire("crane:1")
    stopped = Stopped(monkeypatch, before=True)
    one_thread = ThreadPoolExecutor(1)
    monkeypatch.setattr(aio, "_executor", one_thread)

    async def story() -> None:
        task = asyncio.create_task(Lease.objects.aacquire("crane:1"))
        await soon(stopped.reached.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stopped.go_on.set()
        await aio.in_thread(lambda: None)  # after that, on the same thread

    async_to_sync(story)()
    one_thread.shutdown()
    assert stopped.ended.is_set()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert events("crane:1") == ["acquired"]


@in_earnest
def test_a_release_that_waits_for_a_thread_is_done_though_its_caller_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dropped from the queue, it would leave a hold that the keeper renews for ever."""
    busy = ThreadPoolExecutor(1)
    monkeypatch.setattr(aio, "_executor", busy)
    is_busy, gate = threading.Event(), threading.Event()

    def keep_busy() -> None:
        is_busy.set()
        gate.wait(PATIENCE)

    async def story() -> None:
        hold = Lease.objects.hold("crane:1")
        entered = asyncio.Event()

        async def work() -> None:
            async with hold:
                entered.set()
                await let_go.wait()

        let_go = asyncio.Event()
        task = asyncio.create_task(work())
        await entered.wait()
        busy.submit(keep_busy)
        await soon(is_busy.is_set)
        let_go.set()
        await soon(lambda: busy._work_queue.qsize() == 1)  # the release, which waits for it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await aio.in_thread(lambda: None)

    async_to_sync(story)()
    busy.shutdown()
    assert events("crane:1") == ["acquired", "released"]


def test_calls_of_leases_do_not_run_on_the_thread_that_async_code_shares() -> None:
    async def story() -> str:
        return await aio.in_thread(lambda: threading.current_thread().name)

    assert async_to_sync(story)().startswith("leasing-async")


@in_earnest
def test_a_loss_while_waiting_for_the_next_is_not_mixed_up() -> None:
    """A caller may hold one lease while it waits for another."""

    async def lose_when_somebody_waits(hold: Term) -> None:
        await soon(lambda: waiters("crane:2") == 1)
        hold.mark_lost("for a test")

    async def story() -> None:
        await Lease.objects.aacquire("crane:2", holder="ann")
        with pytest.raises(LeaseLost, match="crane:1 was lost"):
            async with Lease.objects.hold("crane:1", ttl=30) as hold:
                waiting = asyncio.create_task(lose_when_somebody_waits(hold))
                await Lease.objects.aacquire("crane:2", wait=PATIENCE)
                await waiting

    async_to_sync(story)()
    assert no_waiters()
