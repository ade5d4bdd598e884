"""The health port of a parent: clients that are slow or silent hold up neither it nor the fleet."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tasks.models import Worker
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

COMMAND = ["manage.py", "run_worker", "--skip-checks", "--workers", "2", "--name", "web"]
PATIENCE = 60.0


def asked(port: int, path: str) -> str:
    """Return the status of the probe at ``path``, "" without an answer."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        return client.recv(4096).decode().partition("\r\n")[0].partition(" ")[2]
    return ""


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_dead_child_is_replaced_while_clients_of_the_port_hang(
    spawn: Spawn, clients: ExitStack
) -> None:
    (port,) = free_ports(1)
    parent = spawn([*COMMAND, "--health-port", str(port)])
    wait_for(lambda: asked(port, "/readyz") == "200 OK", timeout=PATIENCE, process=parent)
    first = set(Worker.objects.present().values_list("pid", flat=True))

    for sent in (b"", b"", b"GET /readyz HT", b"GET /livez HTTP/1.1\r\nHost: a\r\n"):
        client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        client.sendall(sent)
    os.kill(min(first), signal.SIGKILL)

    assert asked(port, "/livez") == "200 OK"
    wait_for(
        lambda: Worker.objects.present().exclude(pid__in=first).exists(),
        timeout=PATIENCE,
        process=parent,
    )
    wait_for(lambda: asked(port, "/readyz") == "200 OK", timeout=PATIENCE, process=parent)
    parent.terminate()
    assert parent.wait(PATIENCE) == 0, parent.output
