"""The API under gunicorn and uvicorn, behind nginx, for clients near and far."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leasing.models import ApiToken, Lease
from tests.api_calls import Answer
from tests.conftest import Spawn
from tests.processes import wait_for
from tests.web_servers import (
    FAR,
    GUNICORN,
    PROXY,
    UVICORN,
    Site,
    at_socket,
    proxied,
    serve,
    started,
)

__all__ = ["proxied"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

Proxied = Callable[..., Site]
EACH_SERVER = pytest.mark.parametrize("server", [GUNICORN, UVICORN], ids=["gunicorn", "uvicorn"])
SCOPES = ["leasing.view_lease", "leasing.change_lease"]
TERM = {"resource": "crane:1", "holder": "me"}
#: Who is near is this machine at its usual address, and nobody else.
COMPATIBLE = {
    "LEASING_API_ACCESS": "compatible",
    "LEASING_API_COMPATIBLE_HOSTS": "127.0.0.1/32",
    "LEASING_API_TRUSTED_PROXIES": PROXY,
}


def bearer(**more: Any) -> dict[str, str]:
    _, secret = ApiToken.objects.issue("ci", **{"scopes": SCOPES} | more)
    return {"Authorization": f"Bearer {secret}"}


def behind_nginx(
    spawn: Spawn, proxied: Proxied, server: tuple[str, ...], **env: str
) -> tuple[Site, Site]:
    """The site as it is, and behind nginx."""
    direct = started(spawn, server, **env)
    return direct, proxied(f"127.0.0.1:{direct.port}")


@EACH_SERVER
def test_programs_and_users_come_through_a_proxy(
    spawn_cold: Spawn, proxied: Proxied, server: tuple[str, ...], admin_user: User
) -> None:
    _, site = behind_nginx(spawn_cold, proxied, server)
    assert site.call("GET", "/leases").status == 401

    token = bearer()
    granted = site.call("POST", "/leases", TERM, headers=token, source=FAR)
    assert granted.status == 201
    proof = TERM | {"lease_key": granted.body["lease_key"]}
    assert site.call("PUT", "/leases/renew", proof, headers=token).status == 201
    assert site.call("DELETE", "/leases/release", proof, headers=token).status == 201
    assert site.call("GET", "/tasks", headers=token).status == 403

    browser = Client()
    browser.force_login(admin_user)
    session = browser.cookies["sessionid"].value
    cookies = {"Cookie": f"sessionid={session}; csrftoken={'t' * 32}"}
    assert site.call("POST", "/leases", TERM, headers=cookies).status == 403
    signed = cookies | {"X-CSRFToken": "t" * 32}
    assert site.call("POST", "/leases", TERM, headers=signed, source=FAR).status == 201


@EACH_SERVER
def test_a_spoofed_header_opens_nothing(
    spawn_cold: Spawn, proxied: Proxied, server: tuple[str, ...]
) -> None:
    direct, site = behind_nginx(spawn_cold, proxied, server, **COMPATIBLE)
    claims = [
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-For": f"127.0.0.1, {PROXY}"},
        {"X-Forwarded-For": "127.0.0.1,,"},
        {"X_Forwarded_For": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "127.0.0.1", "Via": "1.1 near"},
        {},
    ]
    for headers in claims:
        for asked in (site, direct):
            answer = asked.call("POST", "/leases", TERM, headers=headers, source=FAR)
            assert (answer.status, list(answer.body)) == (403, ["error"])
    assert not Lease.objects.exists()

    assert site.call("POST", "/leases", TERM).status == 201
    assert direct.call("GET", "/leases").status == 200
    # What is further left than the one who called nginx is only claimed.
    assert site.call("GET", "/leases", headers={"X-Forwarded-For": FAR}).status == 200


@EACH_SERVER
def test_a_proxy_may_come_over_a_socket(
    spawn_cold: Spawn, proxied: Proxied, server: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "site.sock"
    env = COMPATIBLE | {"LEASING_API_TRUSTED_PROXIES": "unix:"}
    serve(spawn_cold, server, at_socket(server, path), **env)
    site = proxied(f"unix:{path}")
    assert site.call("GET", "/leases").status == 200
    assert site.call("GET", "/leases", source=FAR).status == 403
    assert site.call("GET", "/leases", headers=bearer(), source=FAR).status == 200


@EACH_SERVER
def test_a_lost_answer_is_no_lost_lease(
    spawn_cold: Spawn, proxied: Proxied, server: tuple[str, ...]
) -> None:
    _, site = behind_nginx(spawn_cold, proxied, server)
    headers = bearer() | {"Idempotency-Key": str(uuid.uuid4())}
    connection = site.connect()
    site.send(connection, "POST", "/leases", TERM, headers)
    wait_for(Lease.objects.active().exists)
    connection.close()  # the answer is lost

    again = site.call("POST", "/leases", TERM, headers=headers)
    assert again.status == 201
    lease = Lease.objects.get()
    assert (again.body["fencing_token"], again.body["grants"]) == (lease.fencing_token, 1)
    proof = TERM | {"lease_key": again.body["lease_key"]}
    assert site.call("PUT", "/leases/renew", proof, headers=headers).status == 201


WAITING: dict[str, Any] = TERM | {"wait": 20}


def test_waiting_polls_leave_sync_workers_to_others(spawn_cold: Spawn) -> None:
    """A process of one thread does not wait: it asks the client to come again."""
    site = started(spawn_cold, GUNICORN, LEASING_API_ACCESS="compatible")
    Lease.objects.acquire(TERM["resource"], holder="another")
    polls = [{**WAITING, "holder": f"me-{number}"} for number in range(2)]
    in_time = WAITING["wait"] / 2

    def poll(body: dict[str, Any]) -> Answer:
        return site.call("POST", "/leases", body, timeout=in_time)

    with ThreadPoolExecutor(2) as threads:
        answers = threads.map(poll, polls)
        for _ in range(10):
            assert site.call("GET", "/leases", timeout=in_time).status == 200
        for answer in answers:
            assert answer.status == 409
            assert 1 <= int(answer.headers["Retry-After"]) <= 30


@pytest.mark.parametrize(
    "server",
    [(*GUNICORN[:-1], "1", "--threads", "3"), UVICORN],
    ids=["gunicorn with threads", "uvicorn"],
)
def test_a_poll_waits_while_others_are_served(
    spawn_cold: Spawn, proxied: Proxied, server: tuple[str, ...]
) -> None:
    _, site = behind_nginx(spawn_cold, proxied, server)
    token = bearer()
    held = site.call("POST", "/leases", TERM, headers=token)
    assert held.status == 201
    with ThreadPoolExecutor(1) as threads:
        poll = WAITING | {"holder": "next"}
        waiting = threads.submit(site.call, "POST", "/leases", poll, headers=token)
        for _ in range(20):
            assert site.call("GET", "/leases/active", headers=token).status == 200
        assert not waiting.done()
        proof = TERM | {"lease_key": held.body["lease_key"]}
        assert site.call("DELETE", "/leases/release", proof, headers=token).status == 201
        assert waiting.result(timeout=20).status == 201
    assert Lease.objects.get().holder == "next"


@pytest.mark.parametrize(
    ("server", "alone"), [(GUNICORN, 400), (UVICORN, 201)], ids=["gunicorn", "uvicorn"]
)
def test_a_body_in_chunks_comes_through_a_proxy(
    spawn_cold: Spawn, proxied: Proxied, server: tuple[str, ...], alone: int
) -> None:
    """WSGI has no body without a length, which a proxy that reads all of it adds."""
    direct, site = behind_nginx(spawn_cold, proxied, server)
    headers = {**bearer(), "Content-Type": "application/json"}

    def status(asked: Site, resource: str) -> int:
        body = json.dumps(TERM | {"resource": resource}).encode()
        with closing(asked.connect()) as connection:
            chunks = iter([body[:9], body[9:]])
            connection.request("POST", "/api/leases", chunks, headers, encode_chunked=True)
            return connection.getresponse().status

    assert status(site, "crane:1") == 201
    assert status(direct, "crane:2") == alone
