"""A service for tests of the clients, and a network to it that fails as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from pytest_django.live_server_helper import LiveServer

from leasing.models import ApiToken

SCOPES = [
    "leasing.view_lease",
    "leasing.change_lease",
    "leasing.revoke_lease",
    "leasing_tasks.view_task",
    "leasing_tasks.view_payload",
    "leasing_tasks.add_task",
    "leasing_tasks.change_task",
]

#: Acts in place of the network: gets what would send the request, and returns the answer.
Fault = Callable[[Callable[[], httpx.Response], httpx.Request], httpx.Response]


class Network(httpx.BaseTransport):
    """Sends requests, unless ``faults`` are left for those whose path ends with ``at``: each acts
    once, in order."""

    def __init__(self) -> None:
        self._real = httpx.HTTPTransport()
        self.faults: list[Fault] = []
        self.at = ""
        #: Every request that was made of it.
        self.requests: list[httpx.Request] = []
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        def send() -> httpx.Response:
            return self._real.handle_request(request)

        with self._lock:
            self.requests.append(request)
            is_faulty = self.faults and request.url.path.endswith(self.at)
            fault = self.faults.pop(0) if is_faulty else None
        return send() if fault is None else fault(send, request)

    def close(self) -> None:
        self._real.close()


def refused(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
    """Nobody listens at the port."""
    raise httpx.ConnectError("connection refused", request=request)


def swallowed(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
    """The request arrives, and its answer does not."""
    send().read()
    raise httpx.ReadTimeout("timed out", request=request)


def answered(status: int, content: bytes = b"{}", **headers: str) -> Fault:
    """Return a fault: something on the way answers."""

    def fault(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Response(status, content=content, headers=named, request=request)

    return fault


class Service:
    """A live server with the API, and how to reach it."""

    def __init__(self, server: LiveServer) -> None:
        self.url = f"{server.url}/api"
        self.network = Network()
        _, self.token = ApiToken.objects.issue("remote", scopes=SCOPES)

    @property
    def options(self) -> dict[str, Any]:
        """Return arguments of the clients."""
        return {"url": self.url, "token": self.token, "transport": self.network}


@pytest.fixture
def service(live_server: LiveServer) -> Iterator[Service]:
    """A service of leases and tasks on the test database."""
    service = Service(live_server)
    yield service
    service.network.close()
