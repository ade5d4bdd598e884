"""A child's requests, and its channel to the parent."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.fleet import child
from tasks.fleet.child import STOP, STOP_NOW, StopRequests
from tasks.fleet.parent import Child, Member
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


@pytest.fixture
def reader(channel: Channel) -> Child:
    """The child at the other end, as its parent has it."""
    ours, _ = channel
    ours.setblocking(False)
    return Child(Member(1), "ann", 1, ours, Marks(1, 1))


def test_reports_arrive_whole_however_the_channel_cuts_them(
    channel: Channel, reader: Child
) -> None:
    _, theirs = channel

    theirs.send(b'{"ready": fal')
    assert reader.read()
    assert reader.vitals == {}
    theirs.send(b'se}\n{"ready": true}\n{"rea')
    assert reader.read()
    assert reader.read()  # nothing has come
    theirs.close()

    assert not reader.read()
    assert reader.vitals == {"ready": True}
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
    channel: Channel, reader: Child, use_marks: Callable[[Marks | None], None]
) -> None:
    use_marks(None)
    ours, theirs = channel
    worker: Any = Worker()
    with child.reporting(ChildContext("fleet", 1, "ann", theirs, Marks(1, 1)), worker):
        wait_for(lambda: reader.read() and reader.is_ready)
        ours.close()
        wait_for(lambda: worker.stopped == 1)


def test_a_child_that_ends_soon_after_it_served_reports_that_it_did(
    channel: Channel,
    reader: Child,
    use_marks: Callable[[Marks | None], None],
    limits: Limits,
) -> None:
    """To end before would be a failed start."""
    use_marks(None)
    limits(ready_every=60.0)
    _, theirs = channel
    worker: Any = SimpleNamespace(stop=lambda: None, vitals={"ready": False}.copy)
    with child.reporting(ChildContext("fleet", 1, "ann", theirs, Marks(1, 1)), worker):
        wait_for(lambda: reader.read() and reader.vitals)
        assert not reader.is_ready
        worker.vitals = {"ready": True}.copy

    wait_for(lambda: reader.read() and reader.is_ready)
