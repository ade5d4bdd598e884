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
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from django.test import TransactionTestCase
from pytest_django.plugin import blocking_manager_key

from tests.emptying import empty
from tests.mutants import making, reach, targets
from tests.mutants.running import apply
from tests.preloaded import die_with

#: The variable that names the socket.
SOCKET = "MUTANTS_SOCKET"
#: Seconds after which a test hangs. One that only takes long, on a loaded machine, gets them twice.
PATIENCE = 30.0
#: What a child writes: that it begins a test, and how they ended.
BEGUN, PASSED, FAILED = b".", b"+", b"-"
#: Fixtures of tests that start processes, which would run the code as it is.
OUTSIDE = {"spawn", "spawn_cold", "redis_broker", "rabbitmq_broker", "live_server"}


class Server:
    """The loop that stands in for pytest's own."""

    def __init__(self) -> None:
        self._has_failed = False
        #: When the answer on the mutant that is tried would be late.
        self._ends_at = 0.0
        #: In a child, True if no mutant is tried.
        self._is_as_it_is = False
        #: Tests that pass in a child, on the code as it is.
        self._trusted: set[pytest.Item] = set()
        #: The tests that reach each function, where a full round has asked for that.
        self._reach: reach.Reach | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = [item for item in session.items if _is_inside(item)]
        _make_database(self._items)
        self._mutants = {mutant.name: mutant for mutant in targets.all_mutants()}
        with _shown(), socket.socket(fileno=int(os.environ[SOCKET])) as connection:
            _send(connection, {"ready": len(self._items)})
            for question in _questions(connection):
                if "reach" in question:
                    self._measure_reach()
                    _send(connection, {})
                else:
                    _send(connection, self._answer(**question))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= report.failed
        if report.failed and self._is_as_it_is:
            print(
                f"fails without a mutant: {report.nodeid}\n{report.longreprtext}", file=sys.stderr
            )

    def _measure_reach(self) -> None:
        """Run all tests once, in a child, and note which functions they run."""
        with NamedTemporaryFile() as file:
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)
                try:
                    recorder = reach.Recorder({mutant.path for mutant in targets.all_mutants()})
                    for item, following in zip(self._items, [*self._items[1:], None], strict=False):
                        with recorder.test(item.nodeid):
                            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    reach.dump(recorder.tests, Path(file.name))
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            with suppress(ValueError):
                self._reach = reach.load(Path(file.name))

    def _answer(
        self, mutant: str, tests: list[str], nearest: list[str], seconds: float
    ) -> dict[str, Any]:
        """Say which of ``tests``, and then of those ``nearest``, notices the mutant of that name.

        Args:
            mutant: Its name.
            tests: The likeliest first.
            nearest: Files and folders of other tests; none, and ``tests`` are tried alone.
            seconds: After these the answer is late.
        """
        self._ends_at = time.monotonic() + seconds
        try:
            return {"killer": self._killer_on(mutant, tests, nearest), "is_late": False}
        except TimeoutError:
            return {"killer": None, "is_late": True}

    def _killer_on(self, mutant: str, tests: list[str], nearest: list[str]) -> str | None:
        """Return the first test that fails on the mutant of that name, and not without it."""
        items = _nearest_first(self._items, [*tests, *self._near(mutant, nearest)])
        while (killer := self._try(mutant, items)) is not None:
            if self._fails_as_it_is(killer):
                self._items.remove(killer)
            # It fails alone too, and twice: on a loaded machine others fail once.
            elif [killer.nodeid] == tests[:1] or self._try(mutant, [killer]) is not None:
                return killer.nodeid
            items = items[items.index(killer) + 1 :]
        return None

    def _near(self, mutant: str, nearest: list[str]) -> list[str]:
        """The tests that reach the mutant, or where that is not known those ``nearest``."""
        reaching = self._reach.tests_of(self._mutants[mutant]) if self._reach and nearest else []
        reaching.sort(key=lambda test: _rank(test, nearest))
        # Who reaches a constant is not known of all.
        return reaching or nearest

    def _fails_as_it_is(self, item: pytest.Item) -> bool:
        if item in self._trusted:
            return False
        if self._try(None, [item]) is not None:
            _restore_database(item.config)
            if self._try(None, [item]) is not None:
                return True
        self._trusted.add(item)
        return False

    def _try(self, mutant: str | None, items: list[pytest.Item]) -> pytest.Item | None:
        """Run ``items`` on the mutant of that name, or on the code as it is, in a child. Returns
        the first that fails, hangs or ends the child.

        Raises TimeoutError where the time for this mutant is over.
        """
        readable, writable = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if not pid:
            die_with(parent)
            os.setpgid(0, 0)
            os.close(readable)
            try:
                self._run(mutant, items, writable)
            finally:
                os._exit(0)
        os.close(writable)
        begun, outcome = _told(readable, pid, self._ends_at)
        if outcome == PASSED:
            return None
        if outcome != FAILED:
            _restore_database(items[0].config)
            if time.monotonic() >= self._ends_at:
                raise TimeoutError
        if not begun:
            raise RuntimeError(f"{mutant} could not be applied")
        return items[begun - 1]

    def _run(self, mutant: str | None, items: list[pytest.Item], told: int) -> None:
        """Run ``items`` in the child, until one fails."""
        if mutant is None:
            self._is_as_it_is = True
        else:
            apply(self._mutants[mutant])
        for item, following in zip(items, [*items[1:], None], strict=False):
            os.write(told, BEGUN)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._has_failed:
                item.session._setupstate.teardown_exact(None)  # tables that a module has made
                break
        os.write(told, FAILED if self._has_failed else PASSED)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Server(), "mutants-server")


@contextmanager
def _shown() -> Iterator[None]:
    """Print what ends the loop: nobody reads what pytest writes."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise


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


def _rank(test: str, nearest: list[str]) -> int:
    """Return the place of ``test`` among those ``nearest``; of others, the last."""
    return next((n for n, place in enumerate(nearest) if test.startswith(place)), len(nearest))


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


def _told(readable: int, pid: int, ends_at: float) -> tuple[int, bytes]:
    """Return how many tests the child has begun, and how they ended; nothing, where it hangs, has
    ended itself, or ``ends_at`` has come. It is killed then, and whatever it started in any case.
    """
    told = b""
    while (patience := min(PATIENCE, ends_at - time.monotonic())) > 0:
        if not select.select([readable], [], [], patience)[0]:
            break
        if not (read := os.read(readable, 4096)):
            break
        told += read
    os.close(readable)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    begun = told.rstrip(PASSED + FAILED)
    return len(begun), told[len(begun) :]


def _restore_database(config: pytest.Config) -> None:
    """Empty it, in a child, of what a test has left that did not come to its end, and end what is
    still at work there."""
    pid = os.fork()
    if not pid:
        failed = True
        try:
            with config.stash[blocking_manager_key].unblock():
                _end_others()
                empty(TransactionTestCase())
            failed = False
        finally:
            os._exit(failed)
    _, status = os.waitpid(pid, 0)
    if status:
        print("the database could not be emptied", file=sys.stderr)


def _end_others() -> None:
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def _questions(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection.makefile("r") as lines:
        for line in lines:
            yield json.loads(line)


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")
