"""Races for leases, by real processes, with real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from leasing.exceptions import LeaseHeld
from leasing.functions import database_now
from leasing.models import Lease, LeaseEvent
from tests.conftest import Spawn
from tests.factories import make_lease
from tests.leasing.support import events, stored
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE, pause, race

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

#: Seconds. A holder on a loaded machine is to come to its renewals.
TTL = 3


def reported(process: Process) -> list[dict[str, Any]]:
    """Return the JSON that ``process`` has printed."""
    lines = process.output.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_of_eight_processes_exactly_one_wins_each_lease(spawn: Spawn) -> None:
    """New names, expired leases and released ones: five, ten and five of each."""
    new = [f"new:{n}" for n in range(5)]
    old: list[Lease] = [
        make_lease(resource=f"{state}:{n}", state=state)
        for state in ("expired", "released")
        for n in range(10 if state == "expired" else 5)
    ]
    resources = new + [lease.resource for lease in old]

    answers = [
        {**answer, "resource": resource}
        for resource, answered in race(spawn, "acquire", *resources).items()
        for answer in answered
    ]

    winners = {answer["resource"]: answer for answer in answers if answer["won"]}
    assert sorted(a["resource"] for a in answers if a["won"]) == sorted(resources)
    assert len({winner["grant"] for winner in winners.values()}) == len(resources)
    for lease in Lease.objects.active():
        winner = winners.pop(lease.resource)
        assert (lease.holder, lease.fencing_token) == (winner["holder"], winner["token"])
    assert not winners
    _losers_heard_of_the_winner(answers)
    _every_token_belongs_to_one_grant(old)


def _losers_heard_of_the_winner(answers: list[dict[str, Any]]) -> None:
    won_by = {answer["resource"]: answer["holder"] for answer in answers if answer["won"]}
    heard = [(answer["resource"], answer["holder"]) for answer in answers if not answer["won"]]
    # Whoever comes while the winner is about to commit hears no name.
    assert all(holder in ("", won_by[resource]) for resource, holder in heard)


def _every_token_belongs_to_one_grant(old: list[Lease]) -> None:
    grants = LeaseEvent.objects.filter(kind__in=["acquired", "taken_over"])
    tokens = list(grants.values_list("resource", "fencing_token"))
    assert len(tokens) == len(set(tokens)) == 20 + len(old)
    for lease in old:
        assert Lease.objects.get(pk=lease.pk).fencing_token > lease.fencing_token
        kind = "taken_over" if lease.resource.startswith("expired") else "acquired"
        assert events(lease.resource)[-1] == kind


def test_the_lease_of_a_killed_holder_is_taken_over_after_its_ttl(
    spawn: Spawn, tmp_path: Path
) -> None:
    process = spawn(["-m", "tests.races.holder", "crane:1", str(TTL), str(tmp_path / "ask")])
    wait_for(lambda: reported(process), timeout=PATIENCE, process=process)
    wait_for(lambda: Lease.objects.get().renewals >= 1, process=process)

    process.send_signal(signal.SIGKILL)
    process.wait()
    killed_at = database_now("default")
    last = Lease.objects.get()
    taken = wait_for(lambda: acquired_or_none("crane:1"))

    assert taken is not None
    assert taken.acquired_at is not None
    assert taken.acquired_at >= last.expires_at
    assert (taken.acquired_at - killed_at).total_seconds() < TTL + 2
    assert taken.fencing_token > last.fencing_token
    event = LeaseEvent.objects.filter(kind="taken_over").get()
    assert event.previous_holder == reported(process)[0]["holder"]


def acquired_or_none(resource: str) -> Lease | None:
    try:
        return Lease.objects.acquire(resource, holder="successor")
    except LeaseHeld:
        return None


def pause_between_renewals(process: Process) -> None:
    """Stop the holder where it has no transaction open, which would lock out everybody."""
    wait_for(lambda: reported(process), timeout=PATIENCE, process=process)
    count = Lease.objects.get().renewals
    wait_for(lambda: Lease.objects.get().renewals > count, process=process)
    pause(process)


def test_a_holder_that_was_paused_past_its_ttl_believes_and_changes_nothing(
    spawn: Spawn, tmp_path: Path
) -> None:
    ask = tmp_path / "ask"
    process = spawn(["-m", "tests.races.holder", "crane:1", str(TTL), str(ask)])
    pause_between_renewals(process)
    wait_for(Lease.objects.expired().exists)
    taken = Lease.objects.acquire("crane:1", holder="successor", ttl=600)
    before = stored(taken)
    ask.touch()
    process.resume()
    wait_for(lambda: len(reported(process)) == 2, process=process)

    answer = reported(process)[1]
    assert answer["valid"] is False
    for verb in ("renew", "release"):
        assert answer[verb].startswith("successor has held it since")
    assert answer["hold"]
    assert (answer["lost"], answer["told"]) == (True, ["lost"])
    assert stored(taken) == before
    assert events("crane:1").count("refused") == 2


def test_a_holder_that_was_paused_finds_its_lease_expired_although_nobody_took_it(
    spawn: Spawn, tmp_path: Path
) -> None:
    ask = tmp_path / "ask"
    process = spawn(["-m", "tests.races.holder", "crane:1", str(TTL), str(ask)])
    pause_between_renewals(process)
    wait_for(Lease.objects.expired().exists)
    before = stored(Lease.objects.get())
    ask.touch()
    process.resume()
    wait_for(lambda: len(reported(process)) == 2, process=process)

    answer = reported(process)[1]
    assert answer["valid"] is False
    assert answer["renew"].startswith("it expired at")
    assert answer["release"].startswith("it expired at")
    assert stored(Lease.objects.get()) == before
