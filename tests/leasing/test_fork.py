"""After a fork the child holds nothing (C4). In a process of its own: tests have threads."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from leasing.holding.keeper import Keeper
from leasing.models import Lease
from leasing.runtime.clock import clock as holder_clock
from tests.conftest import Spawn
from tests.leasing.support import PATIENCE, ByHand, enter, events, hold_of
from tests.processes import wait_for


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_forked_child_holds_nothing_and_takes_nothing_from_its_parent(spawn: Spawn) -> None:
    process = spawn(["-m", "tests.leasing.forking"])
    wait_for(lambda: process.poll() is not None, timeout=60)
    assert process.returncode == 0, process.output

    reported = {line["who"]: line for line in map(json.loads, _answers(process.output))}
    child, parent = reported["child"], reported["parent"]
    assert child["valid"] is False
    assert child["lost"] is True
    assert child["ensure"] == child["exit"]
    assert "this process is a fork of the holder" in child["ensure"]
    assert child["renewed_in_child"] is False
    assert child["other_holder"] is True
    assert child["own_hold_renewed"] is True
    assert parent["valid"] is True
    assert parent["renewed_after_the_fork"] is True
    assert parent["reported"] == []
    assert Lease.objects.get(resource="crane:1").released_at is not None
    assert events("crane:1") == ["acquired", "released"]


def _answers(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("{")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_keeper_forgets_in_a_child_even_if_its_lock_was_held_at_the_fork(hand: ByHand) -> None:
    held, at_fork, forked = threading.Event(), threading.Event(), threading.Event()
    watchdogs: list[threading.Thread] = []

    def clock() -> float:
        # The watchdog reads it under the lock of the keeper: the process forks just then.
        thread = threading.current_thread()
        is_due = held.is_set() and not at_fork.is_set()
        if thread.name == "leasing-watchdog" and is_due:
            watchdogs.append(thread)
            at_fork.set()
            forked.wait(PATIENCE)
            sys.exit()  # no child has this thread
        return holder_clock()

    keeper = Keeper(clock=clock)
    keeper.look_every = 0.05
    (hold,) = enter(hand.store, keeper, 1)
    held.set()
    assert at_fork.wait(PATIENCE)
    keeper.after_fork()

    assert not keeper.holds
    assert not hold.valid
    assert hold.lost
    assert hand.store.losses == []
    with hold_of(hand.store, keeper, key=2) as own:
        assert own.valid
    forked.set()
    # Its end is an exception of a thread: pytest shows it in the test that runs then.
    watchdogs[0].join(PATIENCE)
    keeper.stop(PATIENCE)
