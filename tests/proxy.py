"""Networks between a process and its PostgreSQL, or a service, that can fail as networks do."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

#: PostgreSQL's name for a socket in a folder.
SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Passes on what comes to a socket in ``folder`` to the server in ``upstream``, both ways,
    until told to swallow it."""

    def __init__(self, folder: Path, upstream: Path) -> None:
        self.folder = folder
        self._upstream = str(upstream / SOCKET)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / SOCKET))
        listener.listen()
        self._serve(listener)

    def _serve(self, listener: socket.socket) -> None:
        self._listener = listener
        #: The present connections: who called, and the server's end.
        self._pairs: dict[socket.socket, socket.socket] = {}
        #: Who called over a connection of which one direction has ended.
        self._half_closed: set[socket.socket] = set()
        self._swallowed: set[socket.socket] = set()
        self._swallows = threading.Event()
        #: The number of requests from there that are still answered.
        self._answered: dict[socket.socket, int] = {}
        self._loses_until, self._loses_replies_only = 0.0, False
        #: Seconds by which each answer is late.
        self.delay = 0.0
        #: The pieces of data that did not arrive.
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def swallow(self) -> None:
        """From now on nothing arrives, and nobody is told: connections stay open."""
        self._swallows.set()

    def swallow_so_far(self) -> None:
        """From now on nothing arrives over the connections that there are; new ones work."""
        for pair in list(self._pairs.items()):
            self._swallowed.update(pair)

    def swallow_replies(self, passed: int = 0) -> None:
        """Pass ``passed`` more answers of each present connection; from then on requests arrive,
        and the answers do not. New connections work."""
        self._answered.update(dict.fromkeys(list(self._pairs), passed))

    def lose(self, seconds: float, *, replies_only: bool = False) -> None:
        """For so many seconds nothing arrives, over new connections too, or no answer does. What is
        sent later arrives."""
        self._loses_replies_only = replies_only
        self._loses_until = time.monotonic() + seconds

    def lose_requests(self) -> None:
        """From now on what is sent over the present connections does not arrive. New ones work."""
        self._swallowed.update(list(self._pairs))

    def cut(self) -> int:
        """Cut every connection that there is, and return how many; new ones work, whatever was
        swallowed before."""
        self._swallows.clear()
        present = list(self._pairs.items())
        for client, server in present:
            self._shut(client, server)
            self._pairs.pop(client, None)
            self._answered.pop(client, None)
            self._half_closed.discard(client)
            self._swallowed -= {client, server}
        return len(present)

    def close(self) -> None:
        """Cut every connection and take no more."""
        self._shut(self._listener)
        self.cut()

    def _shut(self, *ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:  # nobody is there, for now
                    self._shut(client)
                    continue
                self._pairs[client] = server
                for source, target in ((client, server), (server, client)):
                    args = source, target, client
                    threading.Thread(target=self._pass, args=args, daemon=True).start()

    def _connect(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._upstream)
        return server

    def _pass(self, source: socket.socket, target: socket.socket, client: socket.socket) -> None:
        is_answer = target is client
        with suppress(OSError):
            try:
                while data := source.recv(65536):
                    if self.delay and is_answer:
                        time.sleep(self.delay)
                    is_lost = is_answer or not self._loses_replies_only
                    if is_lost and time.monotonic() < self._loses_until:
                        self.lost += 1
                        continue
                    if source in self._answered:
                        self._answered[source] -= 1
                        if self._answered[source] < 0:
                            self._swallowed.add(target)
                    if self._passes(source):
                        target.sendall(data)
                    else:
                        self.lost += 1
            finally:  # of a connection that was reset, too
                if self._passes(source):
                    target.shutdown(socket.SHUT_WR)
        if client not in self._half_closed:
            self._half_closed.add(client)
        elif self._passes(source) and client in self._pairs:
            del self._pairs[client]
            self._half_closed.discard(client)
            self._shut(source, target)

    def _passes(self, source: socket.socket) -> bool:
        return not self._swallows.is_set() and source not in self._swallowed


class TcpProxy(Proxy):
    """Passes on what comes to a port of this machine to the server at ``port``."""

    def __init__(self, port: int) -> None:
        self._port = port
        listener = socket.create_server(("127.0.0.1", 0))
        self.address: str = f"127.0.0.1:{listener.getsockname()[1]}"
        self._serve(listener)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port))


class DatabaseProxy(TcpProxy):
    """Passes on what comes to a port of this machine to the PostgreSQL whose socket is in
    ``upstream``."""

    def __init__(self, upstream: Path) -> None:
        self._server = str(upstream / SOCKET)
        super().__init__(0)

    def _connect(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        return server
