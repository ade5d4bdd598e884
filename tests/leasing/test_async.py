"""Holds in coroutines, in detail: who is cancelled, by whom, and what is left behind.

The leases are in memory, so nothing here depends on a database, or touches one.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory

from leasing import leased
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.holding import Hold
from leasing.holding.term import Term
from leasing.models import Lease
from leasing.runtime.aio import Undoable, adrive, in_thread
from leasing.runtime.events import subscribe, unsubscribe
from leasing.stores.memory import MEMORY, memory
from leasing.testing import assert_free, assert_held, assert_lost, in_memory
from leasing.waiting.notifier import notifier
from tests.logs import logged
from tests.processes import wait_for

PATIENCE = 20.0
REASON = "a test took it"


@pytest.fixture(autouse=True)
def without_a_database() -> Iterator[None]:
    with in_memory():
        yield


def run(body: Callable[[], Awaitable[Any]]) -> Any:
    """Run ``body``; it must leave no task of its own behind, and no cancellation pending."""

    async def whole() -> Any:
        async with asyncio.timeout(PATIENCE):
            result = await body()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert asyncio.all_tasks() == {task}
        return result

    return asyncio.run(whole())


def hold_of(resource: str = "berth:1", **options: Any) -> Hold:
    return Lease.objects.hold(resource, **options)


async def for_ever() -> None:
    await asyncio.Event().wait()


def soon(hold: Term) -> None:
    """Lose ``hold`` while its body awaits something."""
    asyncio.get_running_loop().call_soon(hold.mark_lost, REASON)


# The loss


def test_the_loss_names_what_was_lost_and_comes_from_the_cancellation() -> None:
    async def body() -> None:
        async with hold_of() as hold:
            soon(hold)
            await for_ever()

    with pytest.raises(LeaseLost, match=REASON) as loss:
        run(body)
    assert loss.value.resource == "berth:1"
    assert isinstance(loss.value.__cause__, asyncio.CancelledError)


def test_a_loss_from_another_thread_reaches_the_loop() -> None:
    async def body() -> None:
        async with hold_of() as hold:
            threading.Thread(target=hold.mark_lost, args=[REASON]).start()
            await for_ever()

    with pytest.raises(LeaseLost, match=REASON):
        run(body)


def test_what_is_lost_before_the_body_begins_cancels_its_first_await() -> None:
    def lose(terms: Sequence[Term], *, inside: bool) -> None:
        terms[0].mark_lost(REASON)

    seen: list[str] = []

    async def body() -> None:
        async with hold_of():
            seen.append("begun")
            await for_ever()

    begun = {"hold.begun": lose}
    subscribe(begun, None)
    try:
        with pytest.raises(LeaseLost, match=REASON):
            run(body)
    finally:
        unsubscribe(begun)
    assert seen == ["begun"]


def test_a_body_that_awaits_nothing_hears_of_it_at_its_end() -> None:
    async def body() -> None:
        async with hold_of() as hold:
            hold.mark_lost(REASON)

    with pytest.raises(LeaseLost, match=REASON):
        run(body)


def test_a_body_that_returns_in_the_same_breath_is_not_cancelled_afterwards() -> None:
    async def body() -> None:
        with pytest.raises(LeaseLost):
            async with hold_of() as hold:
                hold.mark_lost(REASON)
        for _ in range(10):
            await asyncio.sleep(0)

    run(body)


def test_a_loss_after_the_block_cancels_nobody() -> None:
    async def body() -> None:
        async with hold_of() as hold:
            pass
        hold.mark_lost(REASON)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not hold.lost.is_set()

    run(body)


def test_a_loss_while_it_is_released_cancels_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    release = memory.release

    async def body() -> None:
        async with hold_of() as hold:
            loop = asyncio.get_running_loop()

            def lose_meanwhile(grant: Term) -> None:
                asyncio.run_coroutine_threadsafe(lose(), loop).result(PATIENCE)
                release(grant)

            async def lose() -> None:
                hold.mark_lost(REASON)

            monkeypatch.setattr(memory, "release", lose_meanwhile)

    run(body)
    assert_free("berth:1")


def test_the_body_is_cancelled_once_only() -> None:
    async def body() -> list[str]:
        seen = []
        with pytest.raises(LeaseLost):
            async with hold_of() as hold:
                soon(hold)
                soon(hold)
                for _ in range(3):
                    try:
                        await asyncio.sleep(0.001)
                        seen.append("slept")
                    except asyncio.CancelledError:
                        seen.append("cancelled")
        return seen

    assert run(body) == ["cancelled", "slept", "slept"]


def test_cleaning_up_after_the_cancellation_may_take_its_time() -> None:
    async def body() -> None:
        async with hold_of() as hold:
            soon(hold)
            try:
                await for_ever()
            finally:
                await asyncio.sleep(0.001)

    with pytest.raises(LeaseLost):
        run(body)


def test_on_lost_is_called_although_the_loop_is_gone() -> None:
    reported = threading.Event()
    hold = hold_of(on_lost=lambda hold: reported.set())
    asyncio.run(hold.__aenter__())

    hold.term.mark_lost(REASON)
    assert reported.wait(PATIENCE)


# Other cancellations


async def cancelled_and_lost(hold: Term, first: str) -> None:
    """The body of ``hold``, cancelled by somebody and lost in the same breath."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    both: list[Callable[[], object]] = [lambda: hold.mark_lost(REASON), task.cancel]
    for each in both if first == "lost" else both[::-1]:
        loop.call_soon(each)
    await for_ever()


@pytest.mark.parametrize("first", ["lost", "cancelled"])
def test_cancelled_and_lost_at_once_it_is_cancelled(first: str) -> None:
    async def hold_it() -> None:
        async with hold_of() as hold:
            await cancelled_and_lost(hold, first)

    async def body() -> None:
        task = asyncio.create_task(hold_it())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(body)


async def timed_out_and_lost(timeout: asyncio.Timeout, hold: Term, first: str) -> None:
    """A body whose ``timeout`` expires in the breath in which ``hold`` is lost."""
    loop = asyncio.get_running_loop()
    both = [lambda: hold.mark_lost(REASON), lambda: timeout.reschedule(loop.time())]
    for each in both if first == "lost" else both[::-1]:
        loop.call_soon(each)
    await for_ever()


@pytest.mark.parametrize("first", ["lost", "timed out"])
def test_a_timeout_around_that_expires_with_the_loss_is_a_timeout(first: str) -> None:
    async def body() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as timeout, hold_of() as hold:
                await timed_out_and_lost(timeout, hold, first)

    run(body)


@pytest.mark.parametrize("first", ["lost", "timed out"])
def test_a_timeout_inside_that_expires_with_the_loss_is_a_loss(first: str) -> None:
    async def body() -> None:
        with pytest.raises(LeaseLost):
            async with hold_of() as hold, asyncio.timeout(None) as timeout:
                await timed_out_and_lost(timeout, hold, first)

    run(body)


def test_a_timeout_around_releases() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as timeout, hold_of():
                timeout.reschedule(loop.time())
                await for_ever()

    run(body)
    assert_free("berth:1")


def test_the_tasks_of_a_group_inside_are_cancelled_with_the_body() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            seen.append("stopped")

    async def body() -> None:
        async with hold_of() as hold, asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(work())
            await asyncio.sleep(0)
            soon(hold)

    with pytest.raises(LeaseLost, match=REASON):
        run(body)
    assert seen == ["stopped", "stopped"]


def test_a_group_around_hears_of_the_loss_and_cancels_the_others() -> None:
    async def hold_it() -> None:
        async with hold_of() as hold:
            soon(hold)
            await for_ever()

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            other = group.create_task(for_ever())
            group.create_task(hold_it())
        assert other.cancelled()

    with pytest.raises(ExceptionGroup) as raised:
        run(body)
    (loss,) = raised.value.exceptions
    assert isinstance(loss, LeaseLost)


def test_only_the_task_that_lost_is_cancelled() -> None:
    async def hold_it(resource: str, ends: asyncio.Event) -> str:
        async with hold_of(resource) as hold:
            if resource == "berth:1":
                soon(hold)
                await for_ever()
            await ends.wait()
            return resource

    async def body() -> list[Any]:
        ends = asyncio.Event()
        names = ("berth:1", "berth:2")
        tasks = [asyncio.create_task(hold_it(name, ends)) for name in names]
        await asyncio.wait(tasks[:1])
        ends.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    lost, held = run(body)
    assert isinstance(lost, LeaseLost)
    assert held == "berth:2"


# Holds in holds


async def in_both(lose: Callable[[Term, Term], None]) -> None:
    async with hold_of("berth:1") as outer, hold_of("berth:2") as inner:
        lose(outer, inner)
        await for_ever()


def test_of_two_holds_the_lost_inner_one_is_told_and_the_outer_released() -> None:
    with pytest.raises(LeaseLost, match="berth:2"):
        run(lambda: in_both(lambda outer, inner: soon(inner)))
    assert_free("berth:1")


def test_of_two_holds_the_lost_outer_one_is_told_and_the_inner_released() -> None:
    with pytest.raises(LeaseLost, match="berth:1"):
        run(lambda: in_both(lambda outer, inner: soon(outer)))
    assert_free("berth:2")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_lost_holds_the_outer_one_is_told(order: tuple[int, int]) -> None:
    def lose(*holds: Term) -> None:
        for index in order:
            soon(holds[index])

    with pytest.raises(LeaseLost, match="berth:1"):
        run(lambda: in_both(lose))


def test_an_outer_loss_while_the_inner_one_is_released_does_not_stop_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = memory.release

    async def body() -> None:
        async with hold_of("berth:1") as outer, hold_of("berth:2"):
            loop = asyncio.get_running_loop()

            def lose_meanwhile(grant: Term) -> None:
                if grant.resource == "berth:2":
                    loop.call_soon_threadsafe(outer.mark_lost, REASON)
                release(grant)

            monkeypatch.setattr(memory, "release", lose_meanwhile)

    with pytest.raises(LeaseLost, match="berth:1"):
        run(body)
    wait_for(lambda: memory.look(("leasing.Lease", "berth:2")).released_at)


def test_an_exit_stack_holds_several() -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            names = [f"berth:{n}" for n in range(3)]
            holds = [await stack.enter_async_context(hold_of(name)) for name in names]
            assert all(hold.valid for hold in holds)
            soon(holds[1])
            await for_ever()

    with pytest.raises(LeaseLost, match="berth:1"):
        run(body)
    for n in (0, 2):
        assert_free(f"berth:{n}")


# Leaving


def test_a_release_that_fails_is_logged_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(grant: Term) -> None:
        raise ConnectionError("the network is down")

    monkeypatch.setattr(memory, "release", fail)

    async def body() -> None:
        async with hold_of():
            pass

    with caplog.at_level(logging.WARNING, "leasing"):
        run(body)
    assert logged(caplog, resource="berth:1", error="the network is down") == ["lease.unreleased"]


def test_the_loop_runs_on_while_the_store_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, go = memory.acquire_row, threading.Event()

    def acquire_slowly(*args: Any) -> Term:
        assert go.wait(PATIENCE)
        return acquire(*args)

    monkeypatch.setattr(memory, "acquire_row", acquire_slowly)

    async def body() -> None:
        async def hold_it() -> None:
            async with hold_of() as hold:
                assert hold.valid

        task = asyncio.create_task(hold_it())
        await asyncio.sleep(0.001)
        assert not task.done()
        go.set()
        await task

    run(body)


def test_a_hold_can_be_used_by_one_block_at_a_time() -> None:
    async def body() -> None:
        hold = hold_of()
        async with hold:
            with pytest.raises(RuntimeError, match="in use"):
                await hold.__aenter__()
            assert hold.term.valid
        async with hold:
            assert hold.term.valid

    run(body)


# Waiting


def test_a_cancelled_waiter_leaves_its_turn_to_the_next() -> None:
    async def take(got: list[str], name: str) -> None:
        async with hold_of(wait=PATIENCE):
            got.append(name)

    async def body() -> list[str]:
        got: list[str] = []
        async with hold_of():
            first = asyncio.create_task(take(got, "first"))
            await waiters(1)
            second = asyncio.create_task(take(got, "second"))
            await waiters(2)
            first.cancel()
            await asyncio.wait([first])
        await second
        return got

    assert run(body) == ["second"]
    assert not notifier(MEMORY).waiters


async def waiters(count: int) -> None:
    while len(notifier(MEMORY).waiters.get("berth:1", ())) < count:
        await asyncio.sleep(0.001)


def test_a_thread_and_a_coroutine_wait_for_one_another() -> None:
    got: list[str] = []

    def in_a_thread() -> None:
        with hold_of(wait=PATIENCE):
            got.append("thread")

    async def body() -> None:
        async with hold_of():
            thread = threading.Thread(target=in_a_thread)
            thread.start()
            await waiters(1)
            got.append("coroutine")
        await asyncio.to_thread(thread.join)

    run(body)
    assert got == ["coroutine", "thread"]


# Decorated coroutines


def test_a_decorated_coroutine_is_given_the_hold_and_cancelled_when_it_is_lost() -> None:
    @leased("berth:{number}")
    async def moor(number: int, hold: Any = None) -> None:
        assert_held(f"berth:{number}", by=hold)
        soon(hold)
        await for_ever()

    with pytest.raises(LeaseLost, match="berth:7"):
        run(lambda: moor(7))


def test_a_decorated_coroutine_returns_and_releases() -> None:
    @leased("berth:{number}")
    async def moor(number: int) -> str:
        assert_held("berth:7")
        return "moored"

    assert run(lambda: moor(number=7)) == "moored"
    assert_free("berth:7")


def test_a_decorated_coroutine_that_lost_the_race_raises() -> None:
    @leased("berth:7")
    async def moor() -> None:
        pytest.fail("two hold it")

    with hold_of("berth:7"), pytest.raises(LeaseHeld):
        run(moor)


def test_a_decorated_async_view_that_lost_the_race_answers_409() -> None:
    @leased("berth:{pk}")
    async def view(request: HttpRequest, pk: int) -> JsonResponse:
        return JsonResponse({"pk": pk})

    request = RequestFactory().get("/")
    assert run(lambda: view(request, 7)).status_code == 200
    with hold_of("berth:7", holder="me"):
        answer = run(lambda: view(request, 7))
    assert answer.status_code == 409
    assert answer.content == b'{"error": "busy"}'


def test_a_refusal_inside_a_decorated_view_is_not_answered_for_it() -> None:
    @leased("berth:7")
    async def view(request: HttpRequest) -> None:
        async with hold_of("other"):
            pytest.fail("two hold it")

    with hold_of("other"), pytest.raises(LeaseHeld, match="other"):
        run(lambda: view(RequestFactory().get("/")))


# The driver


def test_a_call_sees_the_callers_context_and_its_error_comes_back() -> None:
    variable = contextvars.ContextVar("variable", default="outside")

    def fail() -> None:
        raise ZeroDivisionError

    async def body() -> None:
        variable.set("inside")
        assert await in_thread(variable.get) == "inside"
        assert await in_thread(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await in_thread(fail)

    run(body)


def test_more_calls_than_threads_are_all_made() -> None:
    async def body() -> list[int]:
        answers: list[int] = await asyncio.gather(*(in_thread(abs, n) for n in range(50)))
        return answers

    assert run(body) == list(range(50))


def test_the_steps_are_given_answers_and_errors_and_are_closed() -> None:
    seen: list[Any] = []

    def fail() -> None:
        raise ZeroDivisionError

    def steps() -> Any:
        try:
            seen.append((yield lambda: 1))
            try:
                yield fail
            except ZeroDivisionError as error:
                seen.append(type(error))
            yield lambda: 2
            return "done"
        finally:
            seen.append("closed")

    assert run(lambda: adrive(steps())) == "done"
    assert seen == [1, ZeroDivisionError, "closed"]


def test_the_steps_of_a_cancelled_caller_are_closed_and_the_call_undone() -> None:
    begun, go = threading.Event(), threading.Event()
    seen: list[Any] = []

    def call() -> str:
        begun.set()
        assert go.wait(PATIENCE)
        return "brought"

    def steps() -> Any:
        try:
            yield Undoable(call, seen.append)
        finally:
            seen.append("closed")

    async def body() -> None:
        task = asyncio.create_task(adrive(steps()))
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["closed"]
        go.set()

    run(body)
    wait_for(lambda: seen == ["closed", "brought"])


def test_a_call_that_failed_for_a_cancelled_caller_has_nothing_to_undo() -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    undone: list[Any] = []

    def call() -> None:
        begun.set()
        assert go.wait(PATIENCE)
        try:
            raise ConnectionError
        finally:
            ended.set()

    async def body() -> None:
        task = asyncio.create_task(in_thread(Undoable(call, undone.append)))
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await asyncio.to_thread(ended.wait, PATIENCE)

    run(body)
    assert undone == []


def test_a_hold_that_was_lost_says_so_to_whoever_asks_later() -> None:
    async def body() -> Term:
        with pytest.raises(LeaseLost):
            async with hold_of() as hold:
                soon(hold)
                await for_ever()
        return hold

    assert_lost(run(body), REASON)
