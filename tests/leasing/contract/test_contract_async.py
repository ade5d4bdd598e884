"""The contract of whatever can hold a lease, for coroutines. Time stands still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from leasing import signals
from leasing.exceptions import LeaseHeld, LeaseLost, LeaseTimeout
from leasing.holding.term import Term
from leasing.testing import (
    aassert_free,
    aassert_held,
    aexpire,
    arevoke,
    assert_free,
    assert_lost,
    events_of,
    expire,
    hold_elsewhere,
)
from leasing.testing.keeper import ManualKeeper
from tests.leasing.contract.adapters import Adapter, over_each


def expire_soon(hold: Term) -> asyncio.Task[None]:
    """From another task, so that the one that holds is cancelled wherever it then is."""
    return asyncio.create_task(aexpire(hold))


@over_each
def test_an_async_block_holds_and_releases(thing: Adapter) -> None:
    async def body() -> None:
        async with thing.hold(holder="me") as hold:
            assert hold.valid
            await aassert_held(thing.what, by=hold)
        await aassert_free(thing.what)

    async_to_sync(body)()


@over_each
def test_what_is_held_is_refused_to_a_coroutine(thing: Adapter) -> None:
    async def body() -> None:
        async with thing.hold(holder="me"):
            with pytest.raises(LeaseHeld) as refusal:
                async with thing.hold():
                    pytest.fail("two hold it")
            assert refusal.value.holder == "me"

    async_to_sync(body)()


@over_each
def test_the_keeper_renews_while_an_async_block_runs(thing: Adapter, clocks: ManualKeeper) -> None:
    async def body() -> None:
        async with thing.hold(ttl=10) as hold:
            await clocks.aadvance(100)
            assert hold.valid

    async_to_sync(body)()


@over_each
def test_the_body_is_cancelled_when_the_hold_is_lost(thing: Adapter) -> None:
    seen: list[str] = []

    async def body() -> None:
        async with thing.hold() as hold:
            loss = expire_soon(hold)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                await loss

    with pytest.raises(LeaseLost, match="not renewed in time"):
        async_to_sync(body)()
    assert seen == ["cancelled"]


@over_each
def test_the_body_is_cancelled_when_it_was_revoked(thing: Adapter, clocks: ManualKeeper) -> None:
    async def body() -> None:
        async with thing.hold():
            await arevoke(thing.what)
            await clocks.arenew()
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLost, match="revoked"):
        async_to_sync(body)()
    assert_free(thing.what)


@over_each
def test_the_task_goes_on_after_a_loss_that_it_caught(thing: Adapter) -> None:
    async def body() -> str:
        with pytest.raises(LeaseLost):
            async with thing.hold() as hold:
                expire_soon(hold)
                await asyncio.sleep(3600)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0)
        async with thing.hold():
            return "held again"

    assert async_to_sync(body)() == "held again"


@over_each
def test_a_body_that_swallows_the_cancellation_hears_of_the_loss_at_its_end(
    thing: Adapter,
) -> None:
    async def body() -> None:
        async with thing.hold() as hold:
            loss = expire_soon(hold)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(3600)
            await loss
            await asyncio.sleep(0)  # cancelled once, not for ever

    with pytest.raises(LeaseLost):
        async_to_sync(body)()


@over_each
def test_a_foreign_cancellation_is_not_swallowed_and_frees_it(thing: Adapter) -> None:
    async def hold_for_ever(held: asyncio.Event) -> None:
        async with thing.hold():
            held.set()
            await asyncio.sleep(3600)

    async def body() -> None:
        held = asyncio.Event()
        task = asyncio.create_task(hold_for_ever(held))
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await aassert_free(thing.what)

    async_to_sync(body)()


@over_each
def test_a_foreign_cancellation_beside_the_loss_is_not_swallowed(thing: Adapter) -> None:
    async def hold_for_ever(held: asyncio.Future[Any]) -> None:
        async with thing.hold() as hold:
            held.set_result(hold)
            await asyncio.sleep(3600)

    async def body() -> None:
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(hold_for_ever(held))
        hold = await held
        task.cancel()
        hold.mark_lost("a test took it")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_lost(hold, "a test took it")

    async_to_sync(body)()


@over_each
def test_a_timeout_around_the_block_is_a_timeout(thing: Adapter) -> None:
    async def body() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600) as timeout, thing.hold():
                timeout.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(3600)
        await aassert_free(thing.what)

    async_to_sync(body)()


@over_each
def test_a_timeout_inside_the_block_is_a_timeout_and_the_hold_goes_on(thing: Adapter) -> None:
    async def body() -> None:
        async with thing.hold() as hold:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(3600)
            assert hold.valid

    async_to_sync(body)()


@over_each
def test_a_loss_inside_nested_timeouts_is_a_loss(thing: Adapter) -> None:
    async def body() -> None:
        async with asyncio.timeout(3600):
            async with thing.hold() as hold:
                async with asyncio.timeout(3600):
                    await aexpire(hold)
                    await asyncio.sleep(3600)

    with pytest.raises(LeaseLost):
        async_to_sync(body)()


@over_each
def test_an_error_of_an_async_block_frees_it_and_is_raised(thing: Adapter) -> None:
    async def body() -> None:
        async with thing.hold():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async_to_sync(body)()
    assert_free(thing.what)


@over_each
def test_an_error_of_an_async_block_is_not_hidden_by_the_loss(thing: Adapter) -> None:
    async def body() -> None:
        async with thing.hold() as hold:
            loss = expire_soon(hold)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None
            finally:
                await loss

    with pytest.raises(ZeroDivisionError):
        async_to_sync(body)()


@over_each
def test_on_lost_is_called_once_for_an_async_block(thing: Adapter, clocks: ManualKeeper) -> None:
    reported: list[Any] = []

    async def body() -> None:
        async with thing.hold(on_lost=reported.append) as hold:
            expire_soon(hold)
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLost):
        async_to_sync(body)()
    clocks.advance(100)
    assert len(reported) == 1


@over_each
def test_a_coroutine_that_waits_gets_it_when_another_releases(thing: Adapter) -> None:
    order: list[str] = []

    async def second(started: asyncio.Event) -> None:
        started.set()
        async with thing.hold(wait=60):
            order.append("second")

    async def body() -> None:
        started = asyncio.Event()
        async with thing.hold():
            task = asyncio.create_task(second(started))
            await started.wait()
            await asyncio.sleep(0)
            order.append("first")
        await task

    async_to_sync(body)()
    assert order == ["first", "second"]


@over_each
def test_a_coroutine_that_waited_in_vain_hears_who_has_it(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    async def body() -> None:
        assert not isinstance(thing.what, type(None))
        async with hold_elsewhere(thing.what, "rival"):  # type: ignore[arg-type]
            with pytest.raises(LeaseTimeout) as refusal:
                async with thing.hold(wait=30):
                    pytest.fail("two hold it")
            assert refusal.value.holder == "rival"

    async_to_sync(body)()
    assert clocks.passed == pytest.approx(30)


@over_each
def test_cancelled_while_it_waits_it_holds_nothing(thing: Adapter) -> None:
    async def wait_for_it() -> None:
        async with thing.hold(wait=60):
            pytest.fail("two hold it")

    async def body() -> None:
        async with thing.hold() as first:
            task = asyncio.create_task(wait_for_it())
            while not task.done() and not task._fut_waiter:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert first.valid
        await aassert_free(thing.what)

    async_to_sync(body)()


@over_each
def test_a_block_in_another_thread_is_cancelled_in_its_own_loop(thing: Adapter) -> None:
    async def body() -> None:
        async with thing.hold() as hold:
            await sync_to_async(expire)(hold)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        async_to_sync(body)()


@over_each
def test_cancelled_while_it_acquires_it_leaves_nothing_held(
    thing: Adapter,
) -> None:
    """A thread cannot be cancelled: what it wins for nobody is given back."""
    tasks: list[asyncio.Task[None]] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def hold_it() -> None:
        async with thing.hold():
            pytest.fail("it was cancelled before")

    def cancelled_meanwhile(**details: Any) -> None:
        loops[0].call_soon_threadsafe(tasks[0].cancel)

    async def body() -> None:
        loops.append(asyncio.get_running_loop())
        tasks.append(asyncio.create_task(hold_it()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await aassert_free(thing.what)

    signals.acquired.connect(cancelled_meanwhile)
    try:
        async_to_sync(body)()
    finally:
        signals.acquired.disconnect(cancelled_meanwhile)
    assert [event.kind for event in events_of(thing.what)] == ["acquired", "released"]
