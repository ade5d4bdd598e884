"""The contract of whatever can hold a lease, with real threads and the keeper at work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from leasing import signals
from leasing.conf import leasing_settings
from leasing.exceptions import LeaseHeld, LeaseLost, LeaseTimeout
from leasing.holding.term import Term
from leasing.testing import (
    aassert_free,
    arevoke,
    assert_free,
    assert_held,
    assert_lost,
    expire,
    revoke,
)
from tests.leasing.contract.adapters import Adapter, kinds, over_each_live
from tests.processes import wait_for

#: Long enough for a loaded machine; nothing waits that long when all is well.
PATIENCE = 30.0
RIVALS = 6
ROUNDS = 5


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Renew every 50 ms."""
    with override_settings(LEASING={**leasing_settings.given(), "RENEW_EVERY": 0.05}):
        yield


Start = Callable[..., "Future[Any]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Calls something on a thread of its own, which closes its connections."""
    with ThreadPoolExecutor(RIVALS) as pool:

        def work(call: Callable[..., Any], *args: Any) -> Any:
            try:
                return call(*args)
            finally:
                connections.close_all()

        yield lambda call, *args: pool.submit(work, call, *args)


def run(body: Any) -> Any:
    """Run a coroutine; the thread that asgiref keeps for it closes its connections."""
    from asgiref.sync import sync_to_async

    async def whole() -> Any:
        try:
            return await body()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(whole())


@over_each_live
def test_the_keeper_renews_by_itself(live_thing: Adapter) -> None:
    with live_thing.hold(ttl=10) as hold:
        wait_for(lambda: live_thing.row.renewals >= 3, timeout=PATIENCE)
        assert hold.valid
        assert_held(live_thing.what, by=hold)
    assert_free(live_thing.what)


@over_each_live
def test_a_revocation_is_heard_in_the_background_and_once(live_thing: Adapter) -> None:
    reported: list[tuple[Term, threading.Thread]] = []

    def on_lost(hold: Term) -> None:
        reported.append((hold, threading.current_thread()))

    with pytest.raises(LeaseLost, match="revoked"), live_thing.hold(on_lost=on_lost) as hold:
        revoke(live_thing.what)
        assert hold.lost.wait(PATIENCE)
        with pytest.raises(LeaseLost):
            hold.ensure()
    wait_for(lambda: reported, timeout=PATIENCE)
    wait_for(lambda: kinds(live_thing).count("lost"), timeout=PATIENCE)

    ((lost, thread),) = reported
    assert lost is hold
    assert thread is not threading.current_thread()


@over_each_live
def test_a_hold_that_a_test_expires_is_told_by_the_keepers_thread(live_thing: Adapter) -> None:
    reported = threading.Event()
    with pytest.raises(LeaseLost), live_thing.hold(on_lost=lambda hold: reported.set()) as hold:
        expire(hold)
        assert_lost(hold)
        assert reported.wait(PATIENCE)


@over_each_live
def test_who_waits_gets_it_when_another_thread_releases(live_thing: Adapter, start: Start) -> None:
    waiting = threading.Event()

    def take_turn() -> int:
        waiting.set()
        with live_thing.hold(wait=PATIENCE) as hold:
            return hold.fencing_token

    with live_thing.hold() as first:
        second = start(take_turn)
        assert waiting.wait(PATIENCE)
        token = first.fencing_token
    assert second.result(PATIENCE) > token


@over_each_live
def test_of_many_who_race_one_holds_at_a_time_and_tokens_rise_in_that_order(
    live_thing: Adapter, start: Start
) -> None:
    inside: list[int] = []
    most: list[int] = []
    tokens: list[int] = []

    def race() -> None:
        for _ in range(ROUNDS):
            with live_thing.hold(wait=PATIENCE) as hold:
                inside.append(1)
                most.append(len(inside))
                tokens.append(hold.fencing_token)
                inside.pop()

    for rival in [start(race) for _ in range(RIVALS)]:
        rival.result(PATIENCE)
    assert set(most) == {1}
    assert len(tokens) == RIVALS * ROUNDS
    assert tokens == sorted(set(tokens))


@over_each_live
def test_of_many_who_ask_at_once_one_gets_it(live_thing: Adapter, start: Start) -> None:
    ready = threading.Barrier(RIVALS)
    done = threading.Barrier(RIVALS)

    def ask() -> bool:
        ready.wait(PATIENCE)
        try:
            with live_thing.hold():
                done.wait(PATIENCE)
                return True
        except LeaseHeld:
            done.wait(PATIENCE)
            return False

    answers = [rival.result(PATIENCE) for rival in [start(ask) for _ in range(RIVALS)]]
    assert answers.count(True) == 1


@over_each_live
def test_who_waited_in_vain_hears_so_in_time(live_thing: Adapter) -> None:
    live_thing.take("rival")
    with pytest.raises(LeaseTimeout) as refusal, live_thing.hold(wait=0.05):
        pytest.fail("two hold it")
    assert refusal.value.holder == "rival"


@over_each_live
def test_a_hold_may_be_left_on_another_thread(live_thing: Adapter, start: Start) -> None:
    hold = live_thing.hold()
    start(hold.__enter__).result(PATIENCE)
    assert hold.term.valid
    start(hold.__exit__, None, None, None).result(PATIENCE)
    assert_free(live_thing.what)


@over_each_live
def test_the_keeper_cancels_an_async_body_that_lost(live_thing: Adapter) -> None:
    async def body() -> None:
        async with asyncio.timeout(PATIENCE), live_thing.hold():
            await arevoke(live_thing.what)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost, match="revoked"):
        run(body)


@over_each_live
def test_coroutines_take_turns(live_thing: Adapter) -> None:
    inside: list[int] = []

    async def take_turn() -> int:
        async with live_thing.hold(wait=PATIENCE) as hold:
            inside.append(1)
            await asyncio.sleep(0)
            assert inside == [1]
            inside.pop()
            return hold.fencing_token

    async def body() -> list[int]:
        return await asyncio.gather(*(take_turn() for _ in range(RIVALS)))

    assert len(set(run(body))) == RIVALS


@over_each_live
def test_cancelled_while_it_acquires_a_coroutine_leaves_nothing_held(live_thing: Adapter) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def hold_it() -> None:
        async with live_thing.hold():
            pytest.fail("it was cancelled before")

    async def body() -> None:
        loop = asyncio.get_running_loop()

        def cancelled_meanwhile(**details: Any) -> None:
            loop.call_soon_threadsafe(tasks[0].cancel)

        signals.acquired.connect(cancelled_meanwhile)
        try:
            tasks.append(asyncio.create_task(hold_it()))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
        finally:
            signals.acquired.disconnect(cancelled_meanwhile)

    run(body)
    wait_for(lambda: kinds(live_thing) == ["acquired", "released"], timeout=PATIENCE)


@over_each_live
def test_other_coroutines_run_while_one_waits(live_thing: Adapter) -> None:
    live_thing.take("rival")

    async def body() -> None:
        task = asyncio.create_task(take_turn())
        for _ in range(20):
            await asyncio.sleep(0.001)
            # Whoever kept the others from running would have waited in vain by now.
            assert not task.done()
        with pytest.raises(AssertionError):
            await aassert_free(live_thing.what)
        await arevoke(live_thing.what)
        await task

    async def take_turn() -> None:
        async with live_thing.hold(wait=PATIENCE) as hold:
            hold.ensure()

    run(body)
