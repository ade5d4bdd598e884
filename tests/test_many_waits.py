"""Two hundred requests that wait at one process of uvicorn: what they take, and give back."""

from __future__ import annotations

import http.client
import os
import selectors
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pytest
from django.db import connection

from leasing.models import ApiToken, Lease
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.patient_settings import LEASING
from tests.processes import Process, wait_for
from tests.web_servers import UVICORN, Site, at_port

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc"),
]

PLACES: Final[int] = LEASING["API_WAITING_PER_CLIENT"]
#: Requests that find no place.
MORE: Final = 10
#: Of the event loop's calls, and one that listens.
MOST_CONNECTIONS: Final = 9
#: Of the same, of the loop itself, and of the requests under way.
MOST_THREADS: Final = 20
#: Seconds for all that happens to two hundred requests, on a machine under load.
PATIENCE: Final = 120.0

TERM: Final = {"resource": "crane:1", "holder": "me"}


@pytest.fixture
def on_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("connections are counted by PostgreSQL")


class Waits:
    """Requests that wait at ``site`` for one lease, each over a connection of its own."""

    def __init__(self, site: Site, headers: dict[str, str], kept: ExitStack) -> None:
        self._site = site
        self._headers = headers
        self._kept = kept
        self._answered = kept.enter_context(selectors.DefaultSelector())
        self._open: list[http.client.HTTPConnection] = []

    def begin(self, number: int) -> None:
        body = TERM | {"wait": LEASING["API_MAX_WAIT"]}
        for _ in range(number):
            sent = self._kept.enter_context(closing(self._site.connect(timeout=PATIENCE)))
            self._site.send(sent, "POST", "/leases", body, self._headers)
            self._answered.register(sent.sock, selectors.EVENT_READ)
            self._open.append(sent)

    def answered(self) -> int:
        """Return the number of answers that are there."""
        return len(self._answered.select(0))

    def statuses(self) -> list[int]:
        """Take the answers that are there."""
        ready = {key.fileobj for key, _ in self._answered.select(0)}
        taken = [sent for sent in self._open if sent.sock in ready]
        return [self._end(sent).getresponse().status for sent in taken]

    def hang_up(self) -> None:
        """End the requests that are not answered."""
        for sent in list(self._open):
            self._end(sent).close()

    def _end(self, sent: http.client.HTTPConnection) -> http.client.HTTPConnection:
        self._answered.unregister(sent.sock)
        self._open.remove(sent)
        return sent


def connections() -> int:
    """Return the number of connections of other processes to the database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


def threads(process: Process) -> int:
    """Return the number of threads of ``process``."""
    return len(os.listdir(f"/proc/{process.pid}/task"))


def bearer(name: str, scope: str) -> dict[str, str]:
    _, secret = ApiToken.objects.issue(name, scopes=[scope])
    return {"Authorization": f"Bearer {secret}"}


def test_two_hundred_waits_take_neither_threads_nor_connections(
    spawn_cold: Spawn, on_postgresql: None
) -> None:
    (port,) = free_ports(1)
    settings = {"DJANGO_SETTINGS_MODULE": "tests.patient_settings", "PYTHONWARNINGS": "default"}
    server = spawn_cold([*UVICORN, "--no-access-log", *at_port(UVICORN, port)], **settings)
    site = Site(port)
    wait_for(site.answers, timeout=PATIENCE, process=server)
    token, reader = bearer("ci", "leasing.change_lease"), bearer("page", "leasing.view_lease")
    lease = Lease.objects.acquire(TERM["resource"], holder="you", ttl=3600)

    def finds_place() -> bool:
        answer = site.call("POST", "/leases", TERM | {"wait": 0.01}, headers=token)
        assert (answer.status, int(answer.headers["Retry-After"]) > 0) == (409, True)
        return "Waited" in answer.body["error"]

    with ExitStack() as kept:
        waits = Waits(site, token, kept)
        waits.begin(PLACES + MORE)
        # Those that find no place are answered: the others wait.
        wait_for(lambda: waits.answered() == MORE, timeout=PATIENCE, process=server)
        assert waits.statuses() == [409] * MORE
        wait_for(lambda: connections() <= MOST_CONNECTIONS, timeout=PATIENCE, process=server)
        wait_for(lambda: threads(server) <= MOST_THREADS, timeout=PATIENCE, process=server)
        assert site.call("GET", "/leases", headers=reader).status == 200
        assert not finds_place()

        lease.release()
        wait_for(waits.answered, timeout=PATIENCE, process=server)
        assert waits.statuses() == [201]
        waits.hang_up()
        wait_for(finds_place, timeout=PATIENCE, process=server)
    wait_for(lambda: connections() == 0, timeout=PATIENCE, process=server)
    assert threads(server) <= MOST_THREADS
