"""Requests that wait for a task, on threads and in event loops."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import AsyncClient, Client
from pytest_django import Settings

from leasing.api import waiting
from leasing.runtime.clock import clock
from leasing.waiting import listener
from tasks.api.waiting import Claimers, claimers
from tasks.models import Task, TaskStatus
from tests.api_calls import call
from tests.event_loop import calls_in_turn, in_loop, settled, until
from tests.leasing.support import PATIENCE, OtherSession
from tests.processes import wait_for
from tests.tasks.support import around

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("compatible")]

NEXT = {"processor": "me", "wait": 20}
THREADED: dict[str, Any] = {"wsgi.multithread": True}


@pytest.fixture(autouse=True)
def _nobody_waits_afterwards() -> Iterator[None]:
    yield
    assert not waiters()
    assert not waiting._waits


def waiters() -> int:
    return len(claimers("default"))


def test_a_request_waits_for_an_enqueue(client: Client, other_session: OtherSession) -> None:
    answer = other_session.start(lambda: call(client, "POST", "/tasks/next", NEXT, **THREADED))
    wait_for(lambda: waiters() == 1)
    task = Task.objects.enqueue("jobs.echo")
    shown = answer.result(PATIENCE)
    assert (shown.status, shown.body["id"]) == (202, task.pk)
    assert shown.body["lease_key"]


def test_a_wait_in_vain_ends_in_a_notice(client: Client) -> None:
    answer = call(client, "POST", "/tasks/next", {**NEXT, "wait": 0.01}, **THREADED)
    assert (answer.status, "Retry-After" in answer.headers) == (200, False)


def test_the_only_thread_of_a_process_does_not_wait(client: Client) -> None:
    answer = call(client, "POST", "/tasks/next", NEXT)
    assert (answer.status, answer.headers["Retry-After"]) == (200, "1")


@pytest.mark.parametrize("wait", [-1, 30.001, 1e300, True, "1", None, []])
def test_a_wait_out_of_bounds_is_refused(client: Client, wait: Any) -> None:
    answer = call(client, "POST", "/tasks/next", {**NEXT, "wait": wait})
    assert (answer.status, "wait" in answer.body["error"]) == (400, True)


def test_an_enqueue_wakes_those_who_wait_for_its_queue(client: Client) -> None:
    def is_woken() -> bool:
        Task.objects.enqueue("jobs.echo")  # again: a test before may just have notified the queue
        return default.woken.is_set()

    until = clock() + PATIENCE
    waiting = claimers("default").waiting
    with waiting(["mail"], until) as mail, waiting(["default"], until) as default:
        wait_for(is_woken)
        assert not mail.woken.is_set()


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears notifications of the database."""
    monkeypatch.setattr(listener, "can_listen", lambda using: False)


@pytest.mark.usefixtures("deaf")
def test_claimers_of_the_same_queues_poll_in_turn_where_notifications_arrive() -> None:
    until = clock() + PATIENCE
    own = Claimers("default")
    waiting = own.waiting
    with ExitStack() as left:
        first = left.enter_context(waiting(["default"], until))
        with (
            waiting(["mail"], until) as other,
            waiting(None, until) as every,
            waiting(["default"], until) as second,
            waiting(["default"], until) as third,
        ):
            waiters = (first, other, every, second, third)
            assert [each.ahead() for each in waiters] == [0, 0, 0, 0, 0]
            own._listener.arrives = True
            assert [each.ahead() for each in waiters] == [0, 0, 0, 1, 2]
            left.close()
            assert [each.ahead() for each in waiters[1:]] == [0, 0, 0, 1]
            woken = [each.woken.is_set() for each in waiters]
            assert woken == [False, False, False, True, False]


@pytest.mark.usefixtures("deaf")
def test_a_claimer_whose_time_is_over_wakes_nobody() -> None:
    waiting = Claimers("default").waiting
    with ExitStack() as left:
        left.enter_context(waiting(["default"], clock()))
        with waiting(["default"], clock() + PATIENCE) as second:
            left.close()
            assert not second.woken.is_set()


def test_an_enqueue_of_another_process_wakes_them(on_postgresql: None) -> None:
    def notify() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify('leasing_tasks_notify', 'queue 0 default')")

    def is_woken() -> bool:
        notify()  # again, until it listens
        return waiter.woken.is_set()

    with claimers("default").waiting(["default"], clock() + PATIENCE) as waiter:
        wait_for(is_woken)


def test_its_client_ends_a_wait_and_only_its_own(
    client: Client, other_session: OtherSession
) -> None:
    mine, others = ({"HTTP_IDEMPOTENCY_KEY": str(uuid.uuid4())} for _ in range(2))
    answer = other_session.start(
        lambda: call(client, "POST", "/tasks/next", NEXT, **mine, **THREADED)
    )
    wait_for(lambda: waiters() == 1)

    assert call(client, "DELETE", "/tasks/next", **others).status == 200
    assert waiters() == 1 and not answer.done()
    assert call(client, "DELETE", "/tasks/next", **mine).status == 200

    assert "no task to run" in answer.result(PATIENCE).body["message"]


def test_a_wait_in_another_process_is_ended_too(client: Client, on_postgresql: None) -> None:
    key = uuid.uuid4()

    def is_ended() -> bool:
        with connection.cursor() as cursor:  # again, until it listens
            cursor.execute("SELECT pg_notify('leasing_tasks_notify', %s)", [f"end {key}"])
        return not waiter.left

    with claimers("default").waiting(None, clock() + PATIENCE, key) as waiter:
        wait_for(is_ended)


def test_the_end_of_a_wait_is_asked_for_with_a_key(client: Client) -> None:
    answer = call(client, "DELETE", "/tasks/next")
    assert (answer.status, answer.body) == (400, {"error": "Idempotency-Key: required"})


# In an event loop


def asked(client: AsyncClient, **headers: str) -> asyncio.Task[Any]:
    kind = "application/json"
    sent = client.post("/api/tasks/next", NEXT, content_type=kind, headers=headers)
    return asyncio.ensure_future(sent)


def test_a_wait_in_a_loop_takes_no_thread() -> None:
    # Each request is answered on the one thread of this test.
    async def body(client: AsyncClient) -> None:
        waiting = [asked(client) for _ in range(20)]
        await until(lambda: waiters() == 20)
        assert (await client.get("/api/tasks")).status_code == 200
        await sync_to_async(Task.objects.enqueue_many)("jobs.echo", [{}] * 20)
        answers = await asyncio.gather(*waiting)
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 20

    in_loop(body)


def test_a_request_without_a_place_in_a_loop_is_asked_to_come_again(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "API_WAITING_REQUESTS": 0}

    async def body(client: AsyncClient) -> None:
        answer = await asked(client)
        assert (answer.status_code, answer.headers["Retry-After"]) == (200, "1")
        task = await Task.objects.aenqueue("jobs.echo")
        answer = await asked(client)
        assert (answer.status_code, answer.json()["id"]) == (202, task.pk)
        assert "Retry-After" not in answer.headers

    in_loop(body)


def test_a_client_that_hangs_up_gets_no_task() -> None:
    async def body(client: AsyncClient) -> None:
        request = asked(client)
        await until(lambda: waiters() == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await sync_to_async(Task.objects.enqueue)("jobs.echo")
        assert not waiters()
        await settled()  # a look that was on its way takes the task, and gives it back
        task = await Task.objects.aget()
        assert (task.status, task.attempts) == (TaskStatus.READY, 0)

    with calls_in_turn():
        in_loop(body)


def test_a_client_ends_its_wait_in_a_loop() -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}

    async def body(client: AsyncClient) -> None:
        request = asked(client, **key)
        await until(lambda: waiters() == 1)
        assert (await client.delete("/api/tasks/next", headers=key)).status_code == 200
        assert (await request).status_code == 200

    in_loop(body)


@pytest.mark.parametrize("may_repeat", [False, True])
def test_a_request_that_may_be_sent_again_finds_its_task_after_its_client_hung_up(
    may_repeat: bool,
) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())} if may_repeat else {}
    under_way, go_on = threading.Event(), threading.Event()

    def held_up(claim: Callable[..., Any], *args: Any, **options: Any) -> Any:
        under_way.set()
        assert go_on.wait(PATIENCE)
        return claim(*args, **options)

    async def body(client: AsyncClient) -> None:
        task = await sync_to_async(Task.objects.enqueue)("jobs.echo")
        request = asked(client, **key)
        await until(under_way.is_set)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        go_on.set()
        await settled()
        await task.arefresh_from_db()
        assert (task.status == TaskStatus.RUNNING) is may_repeat
        assert (await asked(client, **key)).json()["id"] == task.pk

    with around("claim", held_up), calls_in_turn():
        in_loop(body)
