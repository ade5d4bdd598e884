"""A child's requests, and its channel to the parent."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.fleet import child
from tasks.fleet.child import STOP, STOP_NOW, ReportReader, StopRequests
from tasks.fleet.start import ChildContext
from tasks.runtime.marks import Marks
from tests.limits import Limits
from tests.processes import wait_for

Channel = tuple[socket.socket, socket.socket]


@pytest.mark.parametrize(
    ("heard", "stops"),
    [
        (["signal"], 1),
        (["signal", "signal"], 2),
        (["signal", "signal", "signal"], 2),
        (["stop"], 1),
        (["stop", "stop"], 1),
        # systemd sends it to every process of a service.
        (["stop", "signal"], 1),
        (["signal", "stop"], 1),
        (["stop", "stop now"], 2),
        (["stop now"], 2),
        (["signal", "stop", "signal"], 2),
    ],
)
def test_a_child_stops_once_and_at_once_when_it_is_asked_again(
    heard: list[str], stops: int
) -> None:
    called: list[int] = []
    requests = StopRequests(lambda: called.append(1))

    for each in heard:
        if each == "signal":
            requests.on_signal()
        else:
            requests.on_order(STOP if each == "stop" else STOP_NOW)

    assert len(called) == stops


@pytest.fixture
def channel() -> Iterator[Channel]:
    channel = socket.socketpair()
    yield channel
    for end in channel:
        end.close()


def test_reports_arrive_whole_however_the_channel_cuts_them(channel: Channel) -> None:
    ours, theirs = channel
    heard: list[Mapping[str, Any]] = []
    reader = ReportReader(ours, heard.append)

    theirs.send(b'{"ready": fal')
    assert reader.read()
    theirs.send(b'se}\n{"ready": true}\n{"rea')
    assert reader.read()
    assert reader.read()  # nothing has come
    theirs.close()

    assert not reader.read()
    assert heard == [{"ready": False}, {"ready": True}]
    reader.order(STOP)  # nobody hears it


class Worker:
    """In place of a worker process."""

    def __init__(self) -> None:
        self.stopped = 0
        self.has_left = False

    def stop(self) -> None:
        self.stopped += 1

    def vitals(self) -> dict[str, Any]:
        return {"ready": True}


def test_a_child_reports_obeys_and_stops_when_its_parent_is_gone(
    channel: Channel, use_marks: Callable[[Marks | None], None]
) -> None:
    use_marks(None)
    ours, theirs = channel
    heard: list[Mapping[str, Any]] = []
    reader = ReportReader(ours, heard.append)
    worker: Any = Worker()
    with child.reporting(ChildContext("fleet", 1, "ann", theirs, Marks(1, 1)), worker):
        wait_for(lambda: reader.read() and heard)
        ours.close()
        wait_for(lambda: worker.stopped == 1)

    assert heard[0] == {"ready": True}


def test_a_child_that_ends_soon_after_it_served_reports_that_it_did(
    channel: Channel, use_marks: Callable[[Marks | None], None], limits: Limits
) -> None:
    """To end before would be a failed start."""
    use_marks(None)
    limits(ready_every=60.0)
    ours, theirs = channel
    heard: list[Mapping[str, Any]] = []
    reader, vitals = ReportReader(ours, heard.append), {"ready": False}
    worker: Any = SimpleNamespace(stop=lambda: None, vitals=vitals.copy)
    with child.reporting(ChildContext("fleet", 1, "ann", theirs, Marks(1, 1)), worker):
        wait_for(lambda: reader.read() and heard)
        worker.vitals = {"ready": True}.copy

    wait_for(lambda: reader.read() and len(heard) == 2)
    assert heard == [{"ready": False}, {"ready": True}]
