"""Leases over HTTP: the same promises as over the database."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from pytest_django import Settings

from leasing.client import AsyncLeaseClient, LeaseClient
from leasing.client.calls import LeaseCalls
from leasing.client.messages import Answer, Request
from leasing.client.transport import Transport
from leasing.exceptions import LeaseError, LeaseHeld, LeaseLost, LeaseTimeout
from leasing.models import ApiToken, Lease
from leasing.runtime.aio import Steps
from leasing.runtime.clock import clock
from leasing.waiting.waiter import Rest
from tests.leasing.support import FakeClock
from tests.processes import wait_for
from tests.remote import Service


def row(resource: str = "report:42") -> Lease:
    return Lease.objects.get(resource=resource)


def test_a_lease_is_acquired_renewed_and_released(leases: LeaseClient) -> None:
    before = clock()

    grant = leases.acquire("report:42", "web-1", 30)

    assert (grant.resource, grant.holder, grant.ttl) == ("report:42", "web-1", 30.0)
    assert grant.fencing_token == row().fencing_token
    assert before <= grant.sent_at <= clock()
    assert 20 < grant.remaining <= 30
    expires_at, sent_at = grant.expires_at, grant.sent_at
    renewed = leases.renew(grant)
    assert renewed is grant
    assert renewed.expires_at > expires_at
    assert renewed.sent_at > sent_at
    leases.release(renewed)
    leases.release(renewed)
    assert row().released_at is not None


def test_a_lease_that_someone_holds_is_refused_with_the_reason(leases: LeaseClient) -> None:
    leases.acquire("report:42", "web-1", 300)

    with pytest.raises(LeaseHeld, match="report:42 is held by web-1 until ") as held:
        leases.acquire("report:42", "web-2")

    assert held.value.remaining == pytest.approx(300, abs=30)


def test_a_wait_ends_by_a_clock_that_stands_still(holder_clock: FakeClock) -> None:
    """At this moment, the seconds waited are a little less than those to wait."""
    holder_clock.now, patience = 100.0, 0.1
    assert (holder_clock.now + patience) - holder_clock.now < patience

    class Held(Transport):
        def sending(self, request: Request, **options: Any) -> Steps[Answer]:
            yield bool
            refusal = {"error": "report:42 is held by web-1."}
            return Answer(409, refusal, holder_clock.now, retry_after=5.0, request=request)

    steps = LeaseCalls(Held("https://leases.example.com")).acquire("report:42", wait=patience)
    rests = []
    with pytest.raises(LeaseTimeout):
        for _ in range(10):
            step = next(steps)
            if isinstance(step, Rest):
                rests.append(step.seconds)
                holder_clock.now += step.seconds
    assert 0.0 not in rests


def test_a_wait_ends_with_the_release_or_in_vain(leases: LeaseClient) -> None:
    first = leases.acquire("report:42", "web-1", 30)
    with pytest.raises(LeaseTimeout, match=r"^Waited \d+\.\d s: report:42 is held by web-1"):
        leases.acquire("report:42", "web-2", wait=0.1)
    waiting = threading.Timer(0.2, leases.release, [first])
    waiting.start()

    second = leases.acquire("report:42", "web-2", wait=20)

    waiting.join()
    assert second.fencing_token > first.fencing_token
    assert row().holder == "web-2"


def test_many_leases_are_renewed_by_one_request(service: Service, leases: LeaseClient) -> None:
    grants = [leases.acquire(f"report:{n}", "web-1") for n in range(4)]
    leases.release(grants[3])
    service.network.requests.clear()

    answer = leases.renew_many(grants)

    assert set(answer.renewed) == {grant.key for grant in grants[:3]}
    assert set(answer.lost) == {grants[3].key}
    assert len(service.network.requests) == 1


def test_one_lease_that_its_token_may_not_renew_any_more_is_lost_alone(
    leases: LeaseClient,
) -> None:
    grants = [leases.acquire(name, "web-1") for name in ("report:1", "crane:1", "report:2")]
    ApiToken.objects.update(prefix="report:")

    answer = leases.renew_many(grants)

    assert set(answer.renewed) == {grants[0].key, grants[2].key}
    assert "report:" in answer.lost[grants[1].key]


def test_a_key_is_in_no_repr(leases: LeaseClient) -> None:
    grant = leases.acquire("report:42", "web-1")

    assert grant.row.lease_key not in repr(grant)
    request = Request("DELETE", "/leases/release", grant.key.item)
    assert grant.row.lease_key not in repr(request)
    assert grant.row.lease_key not in repr(Answer(201, grant.key.item, 0.0, request=request))


def test_an_operator_revokes_and_sees_leases(leases: LeaseClient) -> None:
    assert leases.get("report:42") is None
    assert not leases.revoke("report:42", "its host is gone")
    grant = leases.acquire("report:42", "web-1")

    assert leases.revoke("report:42", "its host is gone")

    shown = leases.get("report:42")
    assert shown is not None and shown["released_at"] is not None
    with pytest.raises(LeaseLost, match="report:42 was lost: ") as lost:
        leases.renew(grant)
    assert "was lost" not in lost.value.reason
    assert not leases.revoke("report:42", "again")


def test_a_hold_is_renewed_by_the_keeper_and_released(
    leases: LeaseClient, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "RENEW_EVERY": 0.2}
    with leases.hold("report:42", holder="web-1", ttl=9) as hold:
        assert hold.fencing_token == row().fencing_token
        wait_for(lambda: row().renewals > 1)
        assert hold.valid

    assert row().released_at is not None
    assert not hold.lost


def test_a_hold_that_is_revoked_hears_of_it(leases: LeaseClient, settings: Settings) -> None:
    settings.LEASING = {**settings.LEASING, "RENEW_EVERY": 0.2}
    heard = threading.Event()
    with pytest.raises(LeaseLost, match=r"report:42 was lost: .*revoked"):  # noqa: SIM117
        with leases.hold("report:42", ttl=9, on_lost=lambda _: heard.set()) as hold:
            Lease.objects.filter(resource="report:42").revoke(reason="its host is gone")
            assert hold.lost.wait(20)
            assert heard.wait(20)


def test_a_hold_outlives_its_trust_by_nothing_while_the_service_is_away(
    service: Service, leases: LeaseClient
) -> None:
    before = clock()
    with pytest.raises(LeaseLost, match="it was not renewed in time"):  # noqa: SIM117
        with leases.hold("report:42", ttl=1) as hold:
            leases.transport.url = "http://127.0.0.1:9/api"
            assert hold.trusted_until < before + 1.0
            assert hold.lost.wait(20)
            leases.transport.url = service.url


def test_no_transaction_spans_a_service(leases: LeaseClient) -> None:
    with leases.hold("report:42") as hold, pytest.raises(LeaseError, match="kept by a service"):
        hold.still_mine().__enter__()


def test_coroutines_do_the_same(service: Service) -> None:
    async def work() -> None:
        async with AsyncLeaseClient(service.url, service.token) as leases:
            grant = await leases.acquire("report:42", "web-1", 30)
            renewed = await leases.renew(grant)
            assert set((await leases.renew_many([renewed])).renewed) == {grant.key}
            with pytest.raises(LeaseHeld):
                await leases.acquire("report:42", "web-2")
            await leases.release(renewed)
            async with leases.hold("report:43", ttl=30) as hold:
                assert hold.valid
                assert (await leases.get("report:43") or {})["holder"] == hold.holder
                assert await leases.revoke("report:43", "its host is gone")
                hold.mark_lost("revoked")

    with pytest.raises(LeaseLost):
        asyncio.run(work())


def test_a_coroutine_cancelled_while_its_grant_is_renewed_leaves_no_lease_behind(
    service: Service, holder_clock: FakeClock
) -> None:
    renewing = asyncio.Event()

    async def hang_at_renewals(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/renew"):
            renewing.set()
            await asyncio.Event().wait()
        holder_clock.advance(10)  # so that it is renewed before it is trusted
        response = await asyncio.to_thread(service.network.handle_request, request)
        return httpx.Response(response.status_code, content=await asyncio.to_thread(response.read))

    async def work() -> None:
        options = {"async_transport": httpx.MockTransport(hang_at_renewals)}
        async with AsyncLeaseClient(service.url, service.token, **options) as leases:
            acquiring = asyncio.create_task(leases.acquire("report:42", "web-1", 30))
            await renewing.wait()
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring

    asyncio.run(work())
    wait_for(Lease.objects.filter(released_at__isnull=False).exists)


def test_a_cancelled_coroutine_leaves_no_lease_behind(service: Service) -> None:
    async def work() -> None:
        async with AsyncLeaseClient(service.url, service.token) as leases:
            acquiring = asyncio.create_task(leases.acquire("report:42", "web-1", 30))
            while not leases.transport.async_clients:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            acquiring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await acquiring

    asyncio.run(work())
    wait_for(Lease.objects.filter(released_at__isnull=False).exists)


def test_a_wait_is_as_long_at_a_time_as_the_service_allows(
    service: Service, leases: LeaseClient, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "API_MAX_WAIT": 0.5}
    first = leases.acquire("report:42", "web-1")
    waiting = threading.Timer(0.2, leases.release, [first])
    waiting.start()

    second = leases.acquire("report:42", "web-2", wait=20)

    waiting.join()
    assert second.holder == "web-2"
    asked = [json.loads(each.content) for each in service.network.requests if each.content]
    assert [each["wait"] for each in asked if "wait" in each][:2] == [5.0, 0.5]
