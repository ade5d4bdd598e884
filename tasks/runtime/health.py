"""The health of a process that runs tasks, in one place for all that ask: probes over HTTP, the
health file, the parent of a worker.

alive    its lasting threads, or its loop, go on. A process that is not is to be started again
moving   claims, renewals and results are answered. They are not while the database is away, and to
         start the process again is no remedy
ready    it is alive, its work moves, the migrations were applied, and it neither starts nor stops
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from http import HTTPStatus
from pathlib import Path

from leasing.runtime.clock import system_clock
from tasks.log import log
from tasks.runtime.loop import Loop

#: Seconds without a sign after which work counts as stalled, and a thread or a process as hung.
LATE_AFTER, HUNG_AFTER = 10.0, 60.0
#: Seconds between touches of the file, and between checks for hanging clients of the probes.
LOOK_EVERY = 1.0


@dataclass(frozen=True)
class Health:
    """Sentences that say why a process is not alive, why its work does not move, and why it is not
    ready although it does. Each is empty where that is not so."""

    hung: tuple[str, ...] = ()
    stalled: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    @classmethod
    def of_all(cls, healths: Mapping[str, Health]) -> Health:
        """Return the health of a process whose parts, by their names, have these ``healths``: all
        that one of them lacks it lacks too."""
        return cls(
            **{
                each.name: tuple(
                    f"{name}: {reason}"
                    for name, health in healths.items()
                    for reason in getattr(health, each.name)
                )
                for each in fields(cls)
            }
        )

    @property
    def is_moving(self) -> bool:
        return not (self.hung or self.stalled)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why it is not ready."""
        return (*self.hung, *self.stalled, *self.closed)


class HealthFile:
    """A file that a loop touches while the work of a process moves: its age tells for how long it
    has not. It is made at once; raises OSError where it cannot be."""

    def __init__(self, path: Path, health: Callable[[], Health], loop: Loop) -> None:
        self._path = path
        self._health = health
        self._has_failed = False
        path.touch()
        loop.repeat(LOOK_EVERY, self.note)

    def note(self) -> None:
        """Touch the file if the work moves."""
        if not self._health().is_moving:
            return
        try:
            self._path.touch()
        except OSError as error:
            if not self._has_failed:
                log.health_file_failed(path=self._path, error=error)
            self._has_failed = True
        else:
            self._has_failed = False


# Probes: ``/livez`` and ``/readyz``, and nothing else. The server never waits: a loop calls what is
# ready. A request is read to the end of its head, up to MAX_HEAD bytes; the answer closes the
# connection. A client has PATIENCE seconds for all of it. Where MAX_CLIENTS are connected, the one
# that has been so for longest makes room for the next, so that clients that hang keep out no probe.

#: The greatest number of bytes of a request line and its header.
MAX_HEAD = 8192
#: Seconds that a client has for its request and the answer.
PATIENCE = 5.0
#: The greatest number of connections at a time.
MAX_CLIENTS = 64

LIVE, READY = "/livez", "/readyz"


def page(path: str, health: Callable[[], Health]) -> tuple[HTTPStatus, str] | None:
    """Return the status and the text of the probe at ``path``; None: there is none."""
    if path not in (LIVE, READY):
        return None
    reasons = health().hung if path == LIVE else health().reasons
    if reasons:
        return HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{each}\n" for each in reasons)
    return HTTPStatus.OK, "ok\n"


def answer(head: bytes, health: Callable[[], Health]) -> bytes:
    """Return the whole answer to a request with this ``head``."""
    words = head.partition(b"\n")[0].decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _response(HTTPStatus.BAD_REQUEST)
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, header="Allow: GET, HEAD\r\n")
    found = page(target.partition("?")[0], health) or (HTTPStatus.NOT_FOUND, "")
    return _response(*found, is_head=method == "HEAD")


def _response(
    status: HTTPStatus, text: str = "", header: str = "", *, is_head: bool = False
) -> bytes:
    body = (text or f"{status.phrase}\n").encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        f"{header}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)


class HealthServer:
    """Answers probes at ``address`` and ``port``; 0 is any free port. Raises OSError."""

    def __init__(
        self,
        address: str,
        port: int,
        health: Callable[[], Health],
        loop: Loop,
    ) -> None:
        self.health = health
        self.loop = loop
        #: True while there are no descriptors for further clients.
        self._is_deaf = False
        #: In the order in which they have come.
        self.clients: list[_Client] = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=MAX_CLIENTS)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._listen()
        loop.repeat(LOOK_EVERY, self._cut_off)

    def _accept(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        except OSError:  # no descriptor is left: it stays in the queue until the next look
            self.loop.remove(self._socket)
            self._is_deaf = True
            return
        if len(self.clients) >= MAX_CLIENTS:
            self.clients[0].close()
        connected.setblocking(False)
        client = _Client(connected, self)
        self.clients.append(client)
        self.loop.add_reader(connected, client.read)

    def _cut_off(self) -> None:
        """Close the connections whose time is over."""
        now = system_clock()
        while self.clients and self.clients[0].ends_at <= now:
            self.clients[0].close()
        if self._is_deaf:
            self._listen()

    def _listen(self) -> None:
        self._is_deaf = False
        self.loop.add_reader(self._socket, self._accept)


class _Client:
    """A connection: its request, then the answer, then nothing more until the client closes it. To
    close it sooner would reset it, if the client has sent more, and lose the answer."""

    def __init__(self, connected: socket.socket, server: HealthServer) -> None:
        self._socket = connected
        self._server = server
        self._head = b""
        self._is_answered = False
        self.ends_at = system_clock() + PATIENCE

    def read(self) -> None:
        try:
            came = self._socket.recv(MAX_HEAD)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        if not came:
            self.close()
        elif not self._is_answered:
            self._head += came
            if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
                self._answer(answer(self._head, self._server.health))
            elif len(self._head) >= MAX_HEAD:
                self._answer(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def _answer(self, response: bytes) -> None:
        self._is_answered = True
        try:
            # Into the buffer of the system, which is empty and takes more than any answer has.
            self._socket.sendall(response)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        self._server.clients.remove(self)
        self._server.loop.remove(self._socket)
        self._socket.close()
