"""A network between the processes of a run and their servers fails as it is to, and no further."""

from __future__ import annotations

import socket
import struct

from tests.proxy import TcpProxy

#: Closed with this, a connection is reset, as those of a server that crashes.
AT_ONCE = struct.pack("ii", 1, 0)


def test_a_client_sees_that_its_server_has_reset_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = TcpProxy(server.getsockname()[1])
        host, _, port = proxy.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"a statement")
            accepted, _ = server.accept()
            accepted.recv(1)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            accepted.close()

            assert client.recv(1) == b""
        proxy.close()
