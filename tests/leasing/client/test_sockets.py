"""A client at real sockets: a certificate that has expired, and a service that answers slowly."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from leasing.client import LeaseClient, ServiceUnavailable
from leasing.runtime.clock import clock

#: Of localhost, for a day in the past: its key secures nothing.
EXPIRED = Path(__file__).with_name("expired.pem")


@contextmanager
def serving(serve: Callable[[socket.socket], object]) -> Iterator[tuple[int, list[int]]]:
    """Call ``serve`` with each connection to a port, which the block gets, with their ports."""
    listener = socket.create_server(("127.0.0.1", 0))
    peers: list[int] = []

    def accept() -> None:
        with suppress(OSError):  # closed
            while True:
                connection, peer = listener.accept()
                peers.append(peer[1])
                with closing(connection), suppress(OSError):
                    serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], peers
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def test_an_expired_certificate_is_refused_at_once_and_told() -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(EXPIRED)
    trusting = ssl.create_default_context(cafile=str(EXPIRED))

    def shake_hands(connection: socket.socket) -> None:
        server.wrap_socket(connection, server_side=True).close()

    with serving(shake_hands) as (port, peers):
        url = f"https://localhost:{port}/api"
        with (
            LeaseClient(url, "leasing_secret", verify=trusting) as leases,
            pytest.raises(ServiceUnavailable, match="is refused: .*certificate has expired"),
        ):
            leases.acquire("report:42", "web-1")
        assert len(peers) == 1


def test_an_answer_that_trickles_ends_with_the_time_of_the_request() -> None:
    ended = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 1000000\r\n\r\n")
        while not ended.is_set():  # each byte comes long before any timeout of the socket
            connection.sendall(b" ")
            time.sleep(0.02)

    with (
        serving(trickle) as (port, _),
        LeaseClient(f"http://127.0.0.1:{port}/api", timeout=0.5, patience=0) as leases,
    ):
        began_at = clock()
        with pytest.raises(ServiceUnavailable, match="the answer took too long"):
            leases.acquire("report:42", "web-1")
        ended.set()
        assert clock() - began_at < 10
