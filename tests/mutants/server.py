"""Tries mutants on one database: a plugin of pytest, driven by ``tests.mutants``.

pytest collects and makes its database as ever. Then, instead of running the tests, it reads from
a socket what to try, and forks for each: the child puts the mutant's code in the place of the
function's, runs the nearest tests first, and ends with the first that fails. The parent opens no
connection and starts no thread once the database is made.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from tests.mutants import making, reach, shelf
from tests.mutants.running import apply
from tests.preloaded import die_with

#: The variable that names the socket.
SOCKET = "MUTANTS_SOCKET"
#: Seconds after which a mutant on which a test hangs counts as noticed.
PATIENCE = 45.0
#: What a child writes for a test that passes.
PASSED = b"."
#: What such a mutant was noticed by.
HANG = "a test that hangs"
#: Fixtures of tests that start processes, which would run the code as it is.
OUTSIDE = {"spawn", "spawn_cold", "redis_broker", "rabbitmq_broker", "live_server"}


class Server:
    """The loop that stands in for pytest's own."""

    def __init__(self) -> None:
        self._killer: str | None = None
        #: Tests that pass in a child, on the code as it is.
        self._trusted: set[str] = set()
        #: The tests that reach each function, where a full round has asked for that.
        self._reach: reach.Reach | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = [item for item in session.items if _is_inside(item)]
        _make_database(self._items)
        self._mutants = {mutant.name: mutant for mutant in shelf.all_mutants()}
        with socket.socket(fileno=int(os.environ[SOCKET])) as connection:
            _send(connection, {"ready": len(self._items)})
            for question in _questions(connection):
                if "reach" in question:
                    self._measure_reach(question["reach"])
                    _send(connection, {})
                else:
                    _send(connection, {"killer": self._killer_on(**question)})
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._killer is None:
            self._killer = report.nodeid

    def _measure_reach(self, places: list[str]) -> None:
        """Run all tests of ``places`` once, in a child, and note which functions they run."""
        with NamedTemporaryFile() as file:
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)
                try:
                    recorder = reach.Recorder(shelf.PATHS)
                    near = _nearest_first(self._items, places)
                    for item, following in zip(near, [*near[1:], None], strict=True):
                        with recorder.test(item.nodeid):
                            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    reach.dump(recorder.tests, Path(file.name))
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            with suppress(ValueError):
                self._reach = reach.load(Path(file.name))

    def _killer_on(self, mutant: str, likely: list[str], nearest: list[str]) -> str | None:
        """Return the first test that fails on the mutant of that name, and not without it."""
        if self._reach is not None:
            reaching = self._reach.tests_of(self._mutants[mutant])
            nearest = [*(test for test in likely if test in set(reaching)), *reaching]
        else:
            nearest = [*likely, *nearest]
        while True:
            killer = self._try(mutant, nearest)
            if killer == HANG:
                return killer
            if killer is None or killer in self._trusted or self._try(None, [killer]) is None:
                self._trusted.add(killer or "")
                return killer
            self._items = [item for item in self._items if item.nodeid != killer]

    def _try(self, mutant: str | None, nearest: list[str]) -> str | None:
        """Run the tests on the mutant of that name, or on the code as it is, in a child. Returns
        the first that fails."""
        readable, writable = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if not pid:
            die_with(parent)
            os.close(readable)
            killer = self._killer_of(mutant, nearest, writable)
            os.write(writable, (killer or "").encode())
            os._exit(0)
        os.close(writable)
        return _killer_told(readable, pid)

    def _killer_of(self, mutant: str | None, nearest: list[str], alive: int) -> str | None:
        """As ``_try``, in the child, which writes a point for each test that passes."""
        os.setpgid(0, 0)
        try:
            if mutant is not None:
                apply(self._mutants[mutant])
            near = _nearest_first(self._items, nearest)
            for item, following in zip(near, [*near[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._killer is not None:
                    break
                os.write(alive, PASSED)
        except BaseException as error:  # pytest's own way to end a run
            return self._killer or f"it ends the run: {error!r}"
        return self._killer


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Server(), "mutants-server")


def _is_inside(item: pytest.Item) -> bool:
    return not OUTSIDE & set(getattr(item, "fixturenames", ()))


def _make_database(items: list[pytest.Item]) -> None:
    """Run a test that uses it, and leave nothing open."""
    from django.db import connections

    first = next(item for item in items if item.get_closest_marker("django_db"))
    # Of another folder, so that nothing is left set up but what all have in common.
    other = next(item for item in items if _folder(item) != _folder(first))
    first.config.hook.pytest_runtest_protocol(item=first, nextitem=other)
    connections.close_all()


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(making.ROOT / "tests").parts[0]


def _nearest_first(items: list[pytest.Item], nearest: list[str]) -> list[pytest.Item]:
    """The ``items`` of the files and folders ``nearest``, in the order of these."""
    near: dict[pytest.Item, None] = {}
    by_id = {item.nodeid: item for item in items}
    for place in nearest:
        if place in by_id:
            near[by_id[place]] = None
        else:
            near |= dict.fromkeys(item for item in items if item.nodeid.startswith(place))
    return list(near)


def _killer_told(readable: int, pid: int) -> str | None:
    """Return the child's report. A child that hangs is killed, and whatever it started in any
    case."""
    told = b""
    while True:
        ready, _, _ = select.select([readable], [], [], PATIENCE)
        if not ready:
            told = HANG.encode()
            break
        read = os.read(readable, 4096)
        if not read:
            break
        told += read
    os.close(readable)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    killer = told.lstrip(PASSED).decode()
    if not killer and os.WIFSIGNALED(status):
        killer = f"a crash by signal {os.WTERMSIG(status)}"
    return killer or None


def _questions(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection.makefile("r") as lines:
        for line in lines:
            yield json.loads(line)


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")
