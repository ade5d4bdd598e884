"""Requests of the clients, over a network within this process: trust counts from before they left.

``make mutants`` runs these tests, and none that needs a server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from leasing.client import AsyncLeaseClient, LeaseClient
from leasing.client.messages import Request
from leasing.client.transport import AsyncTransport, Transport
from leasing.runtime.clock import clock

URL = "http://127.0.0.1:1/api"
LEASE = {
    **{"resource": "report:42", "holder": "web-1", "fencing_token": 7, "ttl": 30.0},
    **{"lease_key": "key", "expires_at": "2030-01-01T00:00:00Z", "remaining": 30.0},
    **{"yield_to": "", "is_last": False},
}


class Network:
    """Answers each request with a lease, and notes when it arrived."""

    def __init__(self) -> None:
        self.arrived: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.arrived.append(clock())
        return httpx.Response(201, content=json.dumps(LEASE).encode())


@pytest.fixture
def network() -> Network:
    return Network()


def in_thread(network: Network) -> list[float]:
    with LeaseClient(URL, transport=httpx.MockTransport(network)) as leases:
        term = leases.acquire("report:42", "web-1")
        return [term.sent_at, leases.renew(term).sent_at]


def in_loop(network: Network) -> list[float]:
    async def hold() -> list[float]:
        transport = httpx.MockTransport(network)
        async with AsyncLeaseClient(URL, async_transport=transport) as leases:
            term = await leases.acquire("report:42", "web-1")
            sent_at = term.sent_at
            return [sent_at, (await leases.renew(term)).sent_at]

    return asyncio.run(hold())


@pytest.mark.parametrize("granted", [in_thread, in_loop])
def test_trust_in_a_grant_and_its_renewal_counts_from_before_their_requests_left(
    network: Network, granted: Callable[[Network], list[float]]
) -> None:
    granted_at, renewed_at = granted(network)

    first, second = network.arrived
    assert granted_at <= first <= renewed_at <= second


@pytest.mark.parametrize("kind", [Transport, AsyncTransport])
def test_trust_in_an_answer_counts_from_before_its_request_left(
    network: Network, kind: type[Transport]
) -> None:
    mock = httpx.MockTransport(network)
    transport = kind(URL, **{"transport" if kind is Transport else "async_transport": mock})  # type: ignore[arg-type]
    request = Request("POST", "/leases", {"resource": "report:42"})
    before = clock()

    if kind is Transport:
        answer = transport.exchange(request)
    else:
        answer = asyncio.run(transport.aexchange(request))

    assert before <= answer.sent_at <= network.arrived[0]


def test_a_service_that_cannot_be_reached_is_told_at_once_and_once(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(request: httpx.Request) -> httpx.Response:
        told.append(caplog.text)
        if len(told) in (4, 6):
            return network(request)
        raise httpx.ConnectError("Connection refused", request=request)

    with LeaseClient(URL, transport=httpx.MockTransport(fail)) as leases:
        grant = leases.acquire("report:42", "web-1")
        assert "Connection refused" in told[1]
        assert caplog.text.count("No answer from http://127.0.0.1:1/api") == 1
        leases.renew(grant)

    assert caplog.text.count("No answer from http://127.0.0.1:1/api") == 2
