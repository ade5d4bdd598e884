"""The parent's decisions about replacing children."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tasks.fleet.parent import LIVED_LONG, LONGEST_PAUSE, Child, Member, Parent, Plan
from tests.leasing.support import FakeClock
from tests.limits import Limits


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch, holder_clock: FakeClock) -> FakeClock:
    """The clock, moved by hand."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    return holder_clock


def ends(member: Member, now: FakeClock, *, code: int, ready: bool = True, after: float) -> float:
    """Have the member a child that ends so; returns the pause until the next."""
    child = Child(member, "ann", 1, Mock(), Mock())
    child.receive({"ready": ready})
    now.now += after
    member.note_end(child, code)
    return member.pause


def test_the_pause_grows_while_children_die_young(now: FakeClock) -> None:
    member = Member(1)

    pauses = [ends(member, now, code=-9, after=1) for _ in range(8)]

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert ends(member, now, code=-9, after=LIVED_LONG + 1) == 0.1
    assert ends(member, now, code=-9, after=1) == 0.2


def test_a_child_that_ended_before_it_served_counts_as_a_failed_start(now: FakeClock) -> None:
    member = Member(1)

    pauses = [ends(member, now, code=code, ready=False, after=0.1) for code in (1, 0, -9)]

    assert (member.failed_starts, pauses) == (3, [0.2, 0.4, 0.8])
    ends(member, now, code=1, after=0.1)
    assert member.failed_starts == 0


def plan(**options: bool) -> Plan:
    return Plan("fleet", 2, {}, inside=10, groups=1, ttl=30, stop_timeout=30, **options)


@pytest.mark.parametrize(("codes", "code"), [([0, 0], 0), ([0, -9], 1), ([-9, 0], 1)])
def test_without_restarts_the_exit_code_tells_if_any_ended_badly(
    codes: list[int], code: int
) -> None:
    parent = Parent(plan(restarts=False))

    for member, each in zip(parent.members, codes, strict=True):
        parent._replace(member, each)

    assert parent.exit_code == code
    assert [member.restarts for member in parent.members] == [0, 0]
    parent.loop.abandon()


@pytest.mark.parametrize("code", [1, 0, -11, 2])
def test_a_child_that_does_not_start_five_times_ends_the_fleet(now: FakeClock, code: int) -> None:
    parent = Parent(plan())
    member = parent.members[0]

    for start in range(5):
        assert not parent.is_stopping, start
        ends(member, now, code=code, ready=False, after=0.1)
        parent._replace(member, code)

    assert (parent.is_stopping, parent.exit_code) == (True, 1)
    assert member.restarts == 4
    parent.loop.abandon()


def test_where_there_can_be_no_process_more_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    parent, left = Parent(plan()), [OSError("no process"), OSError("no process")]
    started: list[Member] = []

    def start(member: Member) -> None:
        if left:
            raise left.pop()
        started.append(member)

    monkeypatch.setattr(parent, "_start", start)
    limits(next_try=0.0)

    for tries in range(3):
        assert (len(started), len(parent._due)) == (0, 2), tries
        assert parent._start_or_retry(parent._due.pop(0)) is None
        parent.loop.call_later(0, lambda: None)
        parent.loop.step()

    assert started == [parent.members[0]]
    parent.loop.abandon()


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is suspended."""
    process = subprocess.Popen(["sleep", "60"])
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(("ttl", "looks"), [(30, 60), (90, 90)])
def test_a_child_that_reports_nothing_is_killed_once_its_leases_have_expired(
    stopped: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture, ttl: int, looks: int
) -> None:
    parent = Parent(replace(plan(), ttl=ttl))
    child = Child(parent.members[0], "fleet:1:abc", stopped.pid, Mock(), Mock())
    parent._running[stopped.pid] = child

    for _ in range(looks):
        parent._kill_hung()
    child.receive({"ready": True})
    for _ in range(looks):
        parent._kill_hung()
    assert stopped.poll() is None

    for _ in range(2):
        parent._kill_hung()
    assert stopped.wait() == -signal.SIGKILL
    assert caplog.text.count(f"has sent no report for {looks} s; killing it") == 1
    parent.loop.abandon()
