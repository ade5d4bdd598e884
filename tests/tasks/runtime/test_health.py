"""Health as probes and files tell it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime import health as judging
from tasks.runtime.health import MAX_CLIENTS, MAX_HEAD, PATIENCE, Health, HealthFile, HealthServer
from tasks.runtime.loop import Loop, LoopThread
from tests.leasing.support import FakeClock
from tests.limits import Limits
from tests.logs import logged
from tests.processes import wait_for

HUNG, STALLED, CLOSED = Health(hung=("A.",)), Health(stalled=("B.",)), Health(closed=("C.",))


class Probes:
    """A server whose health the test sets."""

    def __init__(self) -> None:
        self.health = Health()
        self.ended = threading.Event()
        self.thread = LoopThread("health", self.ended)
        self.server = HealthServer("127.0.0.1", 0, lambda: self.health, self.thread.loop)
        self.thread.ensure_running()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)

    def ask(self, request: bytes) -> tuple[str, str]:
        """The status line and the body of the answer, read to its end."""
        with self.connect() as client:
            client.sendall(request)
            return parts(received(client))

    def get(self, path: str) -> tuple[str, str]:
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())


def received(client: socket.socket) -> bytes:
    chunks = []
    while chunk := client.recv(65_536):
        chunks.append(chunk)
    return b"".join(chunks)


def is_closed(client: socket.socket) -> bool:
    """Return True if the other end is closed, and takes no more bytes."""
    try:
        client.sendall(b"x")
    except OSError:
        return True
    return False


def parts(answer: bytes) -> tuple[str, str]:
    head, _, body = answer.decode().partition("\r\n\r\n")
    return head.partition("\r\n")[0].removeprefix("HTTP/1.1 "), body


@pytest.fixture
def probes(limits: Limits) -> Iterator[Probes]:
    limits(look_every=0.02)
    made = Probes()
    yield made
    made.ended.set()
    wait_for(lambda: not made.thread.is_alive())


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health(), "ok\n", "ok\n"),
        (HUNG, "A.\n", "A.\n"),
        (STALLED, "ok\n", "B.\n"),
        (CLOSED, "ok\n", "C.\n"),
    ],
)
def test_a_process_is_live_unless_it_hangs_and_ready_unless_anything_is_amiss(
    health: Health, live: str, ready: str, probes: Probes
) -> None:
    probes.health = health

    def expected(text: str) -> tuple[str, str]:
        return ("200 OK" if text == "ok\n" else "503 Service Unavailable"), text

    assert probes.get("/livez") == expected(live)
    assert probes.get("/readyz?verbose") == expected(ready)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", "404 Not Found"),
        ("GET /livez/ HTTP/1.1", "404 Not Found"),
        ("POST /livez HTTP/1.1", "405 Method Not Allowed"),
        ("GET /livez", "400 Bad Request"),
        ("GET /livez HTTP/2", "400 Bad Request"),
        ("\x16\x03\x01", "400 Bad Request"),
        (f"GET /{'a' * MAX_HEAD} HTTP/1.1", "431 Request Header Fields Too Large"),
    ],
)
def test_other_requests_are_refused(request_line: str, status: str, probes: Probes) -> None:
    assert probes.ask(f"{request_line}\r\n\r\n".encode())[0] == status


def test_a_head_request_has_the_head_of_the_answer_and_no_body(probes: Probes) -> None:
    with probes.connect() as client, probes.connect() as other:
        client.sendall(b"HEAD /livez HTTP/1.0\n\n")
        other.sendall(b"GET /livez HTTP/1.0\n\n")
        head, whole = received(client), received(other)

    assert whole == head + b"ok\n"
    assert b"Content-Length: 3\r\n" in head


def test_a_request_may_come_in_pieces_and_have_a_body(probes: Probes) -> None:
    with probes.connect() as client:
        for piece in (b"GET /li", b"vez HTTP/1.1\r\nHost: a\r", b"\n\r\n"):
            client.sendall(piece)
        with probes.connect() as other:
            other.sendall(b"GET /livez HTTP/1.1\r\n\r\n" + b"x" * 10_000)
            assert parts(received(other)) == ("200 OK", "ok\n")
        assert parts(received(client)) == ("200 OK", "ok\n")


def test_a_client_that_hangs_is_cut_off(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(judging, "system_clock", clock)
    with probes.connect() as silent, probes.connect() as answered:
        silent.sendall(b"GET /livez HTTP/1.1\r\n")
        answered.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        # Who has the answer and does not close hangs as well.
        assert parts(received(answered)) == ("200 OK", "ok\n")

        clock.advance(PATIENCE)
        assert received(silent) == b""
        wait_for(lambda: is_closed(answered))


def test_clients_that_hang_keep_out_no_probe(probes: Probes) -> None:
    hanging = [probes.connect() for _ in range(MAX_CLIENTS + 3)]
    try:
        assert probes.get("/livez") == ("200 OK", "ok\n")
        assert received(hanging[0]) == b""
    finally:
        for each in hanging:
            each.close()


def test_without_a_descriptor_for_a_client_it_waits_for_one(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = probes.server
    accept, errors = server._socket.accept, [OSError(24, "Too many open files")]

    class Refusing:
        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> object:
            if errors:
                raise errors.pop()
            return accept()

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    monkeypatch.setattr(server, "_socket", Refusing(server._socket))

    assert probes.get("/livez") == ("200 OK", "ok\n")
    assert errors == []


@pytest.mark.parametrize(
    ("health", "is_touched"), [(Health(), True), (CLOSED, True), (STALLED, False), (HUNG, False)]
)
def test_a_health_file_is_touched_while_the_work_moves(
    health: Health, is_touched: bool, tmp_path: Path
) -> None:
    path = tmp_path / "health"
    file = HealthFile(path, lambda: health, Loop())
    os.utime(path, (0, 0))

    file.note()

    assert (path.stat().st_mtime > 0) is is_touched


def test_a_health_file_that_cannot_be_touched_is_said_once_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = HealthFile(tmp_path / "health", Health, Loop())
    (tmp_path / "health").unlink()
    tmp_path.rmdir()

    for _ in range(3):
        file.note()
    assert logged(caplog) == ["health.file_failed"]

    tmp_path.mkdir()
    file.note()
    assert (tmp_path / "health").exists()


def test_a_process_lacks_all_that_its_parts_lack() -> None:
    parts = {"a": HUNG, "b": STALLED, "c": Health(), "d": CLOSED, "e": STALLED}

    assert Health.of_all(parts) == Health(("a: A.",), ("b: B.", "e: B."), ("d: C.",))
    assert Health.of_all({}) == Health()


def test_the_file_is_touched_again_and_again(tmp_path: Path, limits: Limits) -> None:
    limits(look_every=0.01)
    path, loop = tmp_path / "health", Loop()
    HealthFile(path, Health, loop)
    for _ in range(2):
        os.utime(path, (0, 0))
        loop.step()
        assert path.stat().st_mtime > 0
    loop.abandon()
