"""The health of a parent and its children."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from tasks.fleet.parent import Child, Parent, Plan
from tasks.runtime.health import (
    HUNG_AFTER,
    LATE_AFTER,
    LOOK_EVERY,
    Health,
    HealthFile,
    HealthServer,
)
from tests.leasing.support import FakeClock


class Fleet(Parent):
    """A parent of two children, as the test has them."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(Plan("web", 2, {}, inside=10, groups=1, ttl=30, stop_timeout=30))
        self.clock = clock
        for member in self.members:
            member.child = Child(member, f"web:{member.index}:abc", 1, Mock(), Mock())

    def report(self, health: Health = Health()) -> None:  # noqa: B008
        for member in self.members:
            if member.child is not None:
                member.child.receive({"health": asdict(health if member.index == 1 else Health())})


@pytest.fixture
def fleet(holder_clock: FakeClock) -> Iterator[Fleet]:
    made = Fleet(holder_clock)
    yield made
    made.loop.abandon()


def test_a_fleet_is_ready_once_all_of_its_workers_are(fleet: Fleet) -> None:
    assert fleet.health() == Health(closed=("Worker 1: Starting.", "Worker 2: Starting."))

    fleet.report(Health(hung=("A.",), stalled=("B.",), closed=("C.",)))
    assert fleet.health() == Health(("Worker 1: A.",), ("Worker 1: B.",), ("Worker 1: C.",))

    fleet.report()
    assert fleet.health() == Health()


@pytest.mark.parametrize("has_reported", [True, False])
def test_a_worker_that_reports_nothing_stalls_and_then_hangs(
    has_reported: bool, fleet: Fleet
) -> None:
    if has_reported:
        fleet.report()
    fleet.clock.advance(LATE_AFTER)
    assert fleet.health().is_moving

    fleet.clock.advance(1)
    fleet.members[1].child = None  # only the first says nothing
    fleet.members[1].is_awaited = False
    assert fleet.health() == Health(stalled=("Worker 1: No report for 11 s.",))

    fleet.clock.advance(HUNG_AFTER - LATE_AFTER)
    assert fleet.health() == Health(hung=("Worker 1: No report for 61 s.",))


def test_a_worker_that_died_stalls_the_fleet_until_it_is_there_again(fleet: Fleet) -> None:
    fleet.report()
    first = fleet.members[0]
    first.child, first.last_end, first.is_awaited = None, "its worker was killed by signal 9", True
    (reason,) = fleet.health().stalled
    assert reason.startswith("Worker 1: Restarting: its worker was killed")

    first.is_awaited = False  # it had nothing more to do
    assert fleet.health() == Health()


def test_a_fleet_that_stops_takes_no_more_though_its_work_moves(fleet: Fleet) -> None:
    fleet.report()
    fleet.is_stopping = True
    fleet.members[1].child = None

    assert fleet.health() == Health(closed=("Parent: Shutting down.",))


def test_the_loop_of_the_parent_answers_probes_and_touches_the_file(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.report()
    path = tmp_path / "health"
    HealthFile(path, fleet.health, fleet.loop)
    server = HealthServer("127.0.0.1", 0, fleet.health, fleet.loop)
    os.utime(path, (0, 0))
    fleet.clock.advance(LOOK_EVERY)
    answers: list[bytes] = []

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
            client.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
            while chunk := client.recv(4096):
                answers.append(chunk)

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive() or not path.stat().st_mtime:
        fleet.loop.step()
    asking.join()

    assert b"".join(answers).endswith(b"\r\n\r\nok\n")
