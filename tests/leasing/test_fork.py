"""After a fork the child holds nothing (C4). In a process of its own: tests have threads."""

from __future__ import annotations

import json

import pytest

from leasing.hold import Hold
from leasing.keeper import Keeper
from leasing.models import Lease
from tests.conftest import Spawn
from tests.leasing.support import FakeStore, events, hold_of
from tests.processes import wait_for


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


def test_a_keeper_forgets_in_a_child_even_if_its_lock_was_held_at_the_fork(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    reported: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=reported.append)
    hold.__enter__()
    manual_keeper._lock.acquire()

    manual_keeper.after_fork()

    assert not manual_keeper._holds
    assert not hold.valid
    assert hold.lost.is_set()
    assert (reported, store.losses) == ([], [])
    with hold_of(store, manual_keeper, key=2) as own:
        assert own.valid
