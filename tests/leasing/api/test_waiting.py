"""Requests that wait for a lease, on threads and in event loops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient, Client
from pytest_django import Settings

from leasing.api import waiting
from leasing.models import ApiToken, Lease
from leasing.waiting.notifier import notifier
from tests.api_calls import call
from tests.event_loop import calls_in_turn, in_loop, settled, until
from tests.leasing.support import PATIENCE, OtherSession
from tests.processes import wait_for

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("compatible"),
]

TERM = {"resource": "crane:1", "holder": "me", "wait": 20}
THREADED: dict[str, Any] = {"wsgi.multithread": True}


@pytest.fixture(autouse=True)
def _nobody_waits_afterwards() -> Iterator[None]:
    yield
    assert not notifier("default").waiters
    assert not waiting._waits


def held() -> Lease:
    return Lease.objects.acquire("crane:1", holder="you")


def waiters() -> int:
    return len(notifier("default").waiters.get("crane:1", ()))


def test_a_request_waits_for_the_release(client: Client, other_session: OtherSession) -> None:
    lease = held()
    answer = other_session.start(lambda: call(client, "POST", "/leases", TERM, **THREADED))
    wait_for(lambda: waiters() == 1)
    lease.release()
    assert answer.result(PATIENCE).status == 201


def test_a_wait_in_vain_ends_in_a_conflict(client: Client) -> None:
    held()
    answer = call(client, "POST", "/leases", {**TERM, "wait": 0.01}, **THREADED)
    assert (answer.status, "Waited" in answer.body["error"]) == (409, True)
    assert 25 < int(answer.headers["Retry-After"]) <= 30


def test_a_free_lease_needs_no_wait(client: Client) -> None:
    assert call(client, "POST", "/leases", TERM, **THREADED).status == 201
    other = {**TERM, "resource": "crane:2"}
    assert call(client, "POST", "/leases", other).status == 201


def test_the_only_thread_of_a_process_does_not_wait(client: Client, settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "API_WAITING_THREADS": 4}
    held()
    answer = call(client, "POST", "/leases", TERM)
    assert (answer.status, "Waited" in answer.body["error"]) == (409, False)
    assert int(answer.headers["Retry-After"]) > 0


def test_more_threads_than_may_do_not_wait(
    client: Client, settings: Settings, other_session: OtherSession
) -> None:
    lease = held()
    first = other_session.start(lambda: call(client, "POST", "/leases", TERM, **THREADED))
    wait_for(lambda: waiters() == 1)
    answer = call(client, "POST", "/leases", TERM, **THREADED)
    assert (answer.status, "Waited" in answer.body["error"]) == (409, False)
    settings.LEASING = {**settings.LEASING, "API_WAITING_THREADS": 2}
    answer = call(client, "POST", "/leases", {**TERM, "wait": 0.01}, **THREADED)
    assert (answer.status, "Waited" in answer.body["error"]) == (409, True)
    lease.release()
    assert first.result(PATIENCE).status == 201


@pytest.mark.parametrize("wait", [-1, -0.001, 30.001, 1e300, True, "1", None, [], {}])
def test_a_wait_out_of_bounds_is_refused(client: Client, wait: Any) -> None:
    answer = call(client, "POST", "/leases", {**TERM, "wait": wait})
    assert (answer.status, "wait" in answer.body["error"]) == (400, True)


def test_the_site_bounds_the_wait(client: Client, settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "API_MAX_WAIT": 5}
    assert call(client, "POST", "/leases", {**TERM, "wait": 6}).status == 400
    assert call(client, "POST", "/leases", {**TERM, "wait": 5}).status == 201


# In an event loop


def asked(client: AsyncClient, **body: Any) -> asyncio.Task[Any]:
    sent = client.post("/api/leases", TERM | body, content_type="application/json")
    return asyncio.ensure_future(sent)


def test_a_wait_in_a_loop_takes_no_thread() -> None:
    # Each request is answered on the one thread of this test.
    async def body(client: AsyncClient) -> None:
        lease = await sync_to_async(held)()
        waiting = [asked(client, holder=f"me-{n}") for n in range(20)]
        await until(lambda: waiters() == 20)
        assert (await client.get("/api/leases")).status_code == 200
        await sync_to_async(lease.release)()
        for n in range(20):
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (answer,) = (each.result() for each in done)
            assert answer.status_code == 201
            assert "no-store" in answer.headers["Cache-Control"]
            made = answer.json()
            assert made["lease_key"]
            waiting = [each for each in waiting if each not in done]
            assert len(waiting) == 19 - n
            await sync_to_async(_release)()

    in_loop(body)


def _release() -> None:
    Lease.objects.get().release()


def test_a_wait_in_vain_in_a_loop_is_told_like_any_other() -> None:
    async def body(client: AsyncClient) -> None:
        await sync_to_async(held)()
        answer = await asked(client, wait=0.01)
        assert (answer.status_code, list(json.loads(answer.content))) == (409, ["error"])
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert int(answer.headers["Retry-After"]) > 20

    in_loop(body)


@pytest.mark.parametrize("bound", ["API_WAITING_REQUESTS", "API_WAITING_PER_CLIENT"])
def test_more_requests_than_may_do_not_wait_in_a_loop(bound: str, settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, bound: 2}

    async def body(client: AsyncClient) -> None:
        lease = await sync_to_async(held)()
        waiting = [asked(client, holder=f"me-{n}") for n in range(2)]
        await until(lambda: waiters() == 2)
        answer = await asked(client)
        assert (answer.status_code, "Waited" in answer.json()["error"]) == (409, False)
        assert int(answer.headers["Retry-After"]) > 20

        waiting.pop().cancel()  # its place is free again
        await until(lambda: waiters() == 1)
        waiting.append(asked(client))
        await until(lambda: waiters() == 2)
        for _ in range(2):
            await sync_to_async(lease.release)()
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (answer,) = (each.result() for each in done)
            assert answer.status_code == 201
            waiting = [each for each in waiting if each not in done]
            lease = await Lease.objects.aget()

    in_loop(body)


def test_a_client_that_waits_often_leaves_places_to_others(settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "API_WAITING_PER_CLIENT": 1}

    async def body(client: AsyncClient) -> None:
        _, secret = await sync_to_async(ApiToken.objects.issue)(
            "ci", scopes=["leasing.change_lease"]
        )
        await sync_to_async(held)()
        waiting = [asked(client)]
        await until(lambda: waiters() == 1)
        assert (await asked(client)).status_code == 409
        headers = {"Authorization": f"Bearer {secret}"}
        kind = "application/json"
        sent = client.post("/api/leases", TERM, content_type=kind, headers=headers)
        waiting.append(asyncio.ensure_future(sent))
        await until(lambda: waiters() == 2)
        await _hung_up(waiting)

    in_loop(body)


async def _hung_up(requests: list[asyncio.Task[Any]]) -> None:
    for request in requests:
        request.cancel()
    for ended in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError)


def test_a_client_that_hangs_up_gets_no_lease() -> None:
    async def body(client: AsyncClient) -> None:
        lease = await sync_to_async(held)()
        request = asked(client)
        await until(lambda: waiters() == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await sync_to_async(lease.release)()
        assert not waiters()
        await settled()  # a look that was on its way takes the lease, and releases it
        assert not await Lease.objects.active().aexists()

    with calls_in_turn():
        in_loop(body)
