"""A service that is down, slow, another one or another version, and networks that lose answers."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest

from leasing.client import (
    AccessDenied,
    InvalidAnswer,
    LeaseClient,
    RequestRefused,
    ServiceUnavailable,
)
from leasing.client.body import MAX_ANSWER
from leasing.client.messages import Request
from leasing.client.transport import AsyncTransport, Transport
from leasing.models import ApiToken, Lease
from leasing.runtime.clock import clock
from tests.leasing.support import FakeClock
from tests.remote import Fault, Service, answered, refused, swallowed

HTML = b"<!doctype html><title>Welcome to nginx!</title>"


def test_an_acquire_whose_answer_was_lost_finds_its_grant(
    service: Service, leases: LeaseClient
) -> None:
    service.network.faults = [
        swallowed,
        refused,
        answered(503, HTML),
        answered(429, Retry_After="0"),
    ]

    grant = leases.acquire("report:42", "web-1")

    row = Lease.objects.get()
    assert (grant.fencing_token, row.grants) == (row.fencing_token, 1)
    keys = {request.headers["Idempotency-Key"] for request in service.network.requests}
    assert (len(keys), len(service.network.requests)) == (1, 5)


def test_every_acquire_has_a_key_of_its_own(service: Service, leases: LeaseClient) -> None:
    leases.release(leases.acquire("report:42", "web-1"))
    leases.release(leases.acquire("report:42", "web-1"))

    keys = [each.headers.get("Idempotency-Key") for each in service.network.requests]
    assert len({key for key in keys if key}) == 2
    assert Lease.objects.get().grants == 2


def test_a_grant_that_ended_before_its_answer_came_is_acquired_again(
    service: Service, leases: LeaseClient
) -> None:
    def swallowed_and_revoked(send: object, request: httpx.Request) -> httpx.Response:
        try:
            return swallowed(send, request)  # type: ignore[arg-type]
        finally:
            Lease.objects.all().revoke(reason="nobody answers")

    service.network.faults = [swallowed_and_revoked]

    grant = leases.acquire("report:42", "web-1")

    assert grant.fencing_token == Lease.objects.get().fencing_token
    assert Lease.objects.get().released_at is None


def test_a_release_whose_answer_was_lost_is_sent_again(
    service: Service, leases: LeaseClient
) -> None:
    grant = leases.acquire("report:42", "web-1")
    service.network.faults = [swallowed]

    leases.release(grant)

    assert Lease.objects.get().released_at is not None


def granted(**fields: str) -> Fault:
    """Return the fault that the service grants a lease with these ``fields``, in JSON."""
    told = {
        **{"resource": '"report:42"', "holder": '"web-1"', "fencing_token": "7", "ttl": "30"},
        **{"lease_key": '"key"', "expires_at": '"2030-01-01T00:00:00Z"', "remaining": "30"},
        **{"yield_to": '""', "is_last": "false"},
    }
    body = ",".join(f'"{name}":{value}' for name, value in (told | fields).items())
    return answered(201, f"{{{body}}}".encode())


def test_a_revocation_whose_answer_was_lost_takes_nothing_from_the_next_holder(
    service: Service, leases: LeaseClient
) -> None:
    def swallowed_and_taken(send: Callable[[], httpx.Response], request: httpx.Request) -> Any:
        try:
            return swallowed(send, request)
        finally:
            leases.acquire("report:42", "web-2")

    leases.acquire("report:42", "web-1")
    service.network.at, service.network.faults = "/revoke", [swallowed_and_taken]

    with pytest.raises(ServiceUnavailable):
        leases.revoke("report:42", "its host is gone")

    row = Lease.objects.get()
    assert (row.holder, row.released_at) == ("web-2", None)


WRONG: list[tuple[Fault, type[Exception], str]] = [
    (answered(200, HTML), InvalidAnswer, "no JSON object, .*Welcome to nginx"),
    (answered(201, b'["a", "list"]'), InvalidAnswer, "no JSON object"),
    (answered(201, b"[" * 100_000), InvalidAnswer, "no JSON object"),
    (answered(201, b'{"id": 1}'), InvalidAnswer, "no valid field 'lease_key'.*another version"),
    (answered(302, b"", Location="https://sso/"), InvalidAnswer, "redirects to https://sso/"),
    (
        answered(404, b'{"error": "There is no such address."}'),
        InvalidAnswer,
        "another version",
    ),
    (answered(404, HTML), InvalidAnswer, "status 404 and no JSON object"),
    (answered(401, b'{"error": "Sign in."}'), AccessDenied, "denies access: Sign in"),
    (answered(403, b'{"error": "No scope."}'), AccessDenied, "denies access: No scope"),
    (answered(413, b'{"error": "Too large."}'), RequestRefused, "Too large"),
    (answered(413, HTML), RequestRefused, "too large for a proxy"),
    (granted(remaining="Infinity"), InvalidAnswer, "remaining is no number of seconds"),
    (granted(remaining="1e999"), InvalidAnswer, "remaining is no number of seconds"),
    (granted(remaining="NaN"), InvalidAnswer, "remaining is no number of seconds"),
    (granted(remaining="9" * 400), InvalidAnswer, "remaining is no number of seconds"),
    (granted(ttl="-1e999"), InvalidAnswer, "ttl is no number of seconds"),
    (answered(500, HTML), ServiceUnavailable, "failed to serve POST /leases"),
]


def test_a_wrong_answer_is_a_clear_error_at_once(service: Service, leases: LeaseClient) -> None:
    for count, (fault, error, text) in enumerate(WRONG, start=1):
        service.network.faults = [fault]
        with pytest.raises(error, match=text):
            leases.acquire("report:42", "web-1")
        assert len(service.network.requests) == count


def test_a_huge_answer_is_not_read_to_its_end(service: Service, leases: LeaseClient) -> None:
    service.network.faults = [answered(201, b" " * (MAX_ANSWER + 1))]

    with pytest.raises(InvalidAnswer, match=f"more than {MAX_ANSWER} bytes"):
        leases.acquire("report:42", "web-1")


def test_a_service_that_stays_away_is_told_once_the_patience_is_over(
    service: Service, holder_clock: FakeClock
) -> None:
    def slowly_refused(
        send: Callable[[], httpx.Response], request: httpx.Request
    ) -> httpx.Response:
        holder_clock.advance(0.1)
        return refused(send, request)

    service.network.faults = [slowly_refused] * 1000
    with (
        LeaseClient(**service.options, patience=0.35) as leases,
        pytest.raises(ServiceUnavailable, match=r"No answer from .*/api to POST /leases \(Conn"),
    ):
        leases.acquire("report:42", "web-1")

    assert len(service.network.requests) in (3, 4)  # a pause may go beyond it


def test_the_service_says_how_long_to_stay_away(service: Service) -> None:
    service.network.faults = [answered(503, HTML, Retry_After="30")] * 1000
    with (
        LeaseClient(**service.options, patience=5) as leases,
        pytest.raises(ServiceUnavailable, match="status 503"),
    ):
        leases.acquire("report:42", "web-1")

    assert len(service.network.requests) == 1


@pytest.mark.parametrize(
    ("told", "pause"),
    [("7", 7), ("9" * 400, 60), ("-5", 0), ("1e3", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0)],
)
def test_a_service_cannot_send_its_clients_away_for_long(told: str, pause: float) -> None:
    network = httpx.MockTransport(
        lambda request: httpx.Response(429, json={}, headers={"Retry-After": told})
    )
    with closing(Transport("http://localhost/api", transport=network)) as transport:
        assert transport.exchange(Request("GET", "/leases")).pause == pause


def test_many_coroutines_that_wait_delay_no_release() -> None:
    released = threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            released.wait(30)
        return httpx.Response(200, json={})

    async def work() -> None:
        with closing(Transport("http://localhost/api", transport=httpx.MockTransport(answer))) as t:
            waiting = [t.aexchange(Request("POST", "/leases", {}, wait=5)) for _ in range(12)]
            together = asyncio.gather(*waiting)
            await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await t.aexchange(Request("DELETE", "/leases/release", {}))
            released.set()
            await together

    try:
        asyncio.run(work())
    finally:
        released.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_no_connection_and_waits_for_no_thread_of_its_parent() -> None:
    network = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
    transport = AsyncTransport("http://localhost/api", transport=network)
    own = transport.http()
    with transport.opening:  # as another thread may have it
        child = os.fork()
        if not child:
            threading.Timer(20, os._exit, [2]).start()
            transport.close()
            os._exit(0 if transport.http() is not own else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert transport.http() is own
    transport.close()


def test_each_event_loop_has_connections_of_its_own() -> None:
    transport = AsyncTransport("http://localhost/api")

    async def client() -> httpx.AsyncClient:
        return transport.async_http()

    with asyncio.Runner() as one, asyncio.Runner() as other:
        first, second = one.run(client()), other.run(client())
        assert one.run(client()) is first is not second
        assert other.run(client()) is second
    with asyncio.Runner() as later:
        later.run(client())
        assert len(transport.async_clients) == 1
        later.run(transport.aclose())
        assert not transport.async_clients


def test_a_certificate_that_is_refused_is_not_tried_again(service: Service) -> None:
    def expired(send: object, request: httpx.Request) -> httpx.Response:
        try:
            raise ssl.SSLCertVerificationError("certificate has expired")
        except ssl.SSLError as error:
            raise httpx.ConnectError(str(error), request=request) from error

    service.network.faults = [expired, expired]
    with (
        LeaseClient(**service.options) as leases,
        pytest.raises(ServiceUnavailable, match="certificate of .* is refused: .*has expired"),
    ):
        leases.acquire("report:42", "web-1")

    assert len(service.network.requests) == 1


def test_a_token_is_read_for_each_request(service: Service) -> None:
    tokens = iter(["leasing_expired", service.token])
    with LeaseClient(service.url, lambda: next(tokens)) as leases:
        with pytest.raises(AccessDenied):
            leases.acquire("report:42", "web-1")
        leases.acquire("report:42", "web-1")


@pytest.mark.parametrize("token", ["leasing_secret\n", "leasing_secret\u00e9", "my secret", ""])
def test_a_token_that_no_header_can_have_is_refused_and_not_told(
    service: Service, token: str
) -> None:
    with pytest.raises(ValueError, match="end with a line break") as refusal:
        LeaseClient(service.url, token)
    with pytest.raises(ServiceUnavailable, match="There is no token for") as failure:
        LeaseClient(service.url, lambda: token, patience=0).get("report:42")

    assert "secret" not in f"{refusal.value!r} {failure.value!r} {failure.value.__cause__!r}"


def test_a_token_that_cannot_be_read_for_a_moment_is_read_again(service: Service) -> None:
    errors = [FileNotFoundError("/run/secrets/token"), ValueError("it is being written")]

    def token() -> str:
        if errors:
            raise errors.pop()
        return service.token

    with LeaseClient(service.url, token) as leases:
        assert leases.get("report:42") is None


def test_a_revoked_token_ends_renewals_and_trust(service: Service, leases: LeaseClient) -> None:
    with leases.hold("report:42", ttl=1) as hold:
        ApiToken.objects.all().revoke()
        assert hold.lost.wait(20)
        assert "it was not renewed in time" in hold.reason
        hold.detach()


def test_a_clock_an_hour_off_changes_nothing(
    leases: LeaseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: wrong)

    with leases.hold("report:42", ttl=30) as hold:
        assert hold.valid
        assert hold.trusted_until - clock() == pytest.approx(30, abs=15)
        assert hold.expires_at < datetime.datetime.fromtimestamp(wrong, datetime.UTC)


@pytest.mark.parametrize(
    "url",
    [
        *("leases.example.com/api", "ftp://a/api", "http:///api", "http://a?b"),
        *("http://a:99999/api", "http://a:b/api", "http://a /api", "http://a/api\x07"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of an API"):
        LeaseClient(url)


@pytest.mark.parametrize("scheme", ["https", "ftp"])
def test_a_password_in_the_address_is_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match="no password") as refusal:
        LeaseClient(f"{scheme}://me:secret@leases.example.com/api")
    assert "secret" not in str(refusal.value)


def test_a_lease_that_took_long_to_get_is_renewed_before_it_is_trusted(
    service: Service, leases: LeaseClient, holder_clock: FakeClock
) -> None:
    def slow(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        holder_clock.advance(10)
        return send()

    service.network.faults = [slow]
    grant = leases.acquire("report:42", "web-1", 30)

    row = Lease.objects.get()
    service.network.faults = [slow, refused]
    assert leases.acquire("report:43", "web-1", 30).remaining <= 30  # trusted as it was
    assert not service.network.faults
    assert (row.renewals, grant.expires_at) == (
        1,
        row.expires_at.replace(microsecond=row.expires_at.microsecond // 1000 * 1000),
    )


def test_the_log_says_once_that_a_token_is_sent_unencrypted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for url in ("http://leases.test/api", "http://leases.test/api/", "http://localhost/api"):
        Transport(url, "leasing_secret")
        Transport(url)

    assert [each.getMessage() for each in caplog.records] == [
        "The token for http://leases.test/api is sent unencrypted: use an address with https"
    ]
