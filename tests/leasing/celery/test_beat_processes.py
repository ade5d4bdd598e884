"""Two beats as processes, of which the leader is killed, and frozen."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leasing import Leader
from leasing.models import BeatEntry, EventKind, LeaseEvent
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE, pause

PLANS = {"often": 0.1, "regularly": 0.25, "rarely": 1.0}
BEAT = "beat:project"
TTL = 1
FAULTS = (Process.kill, pause)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "broker"
    folder.mkdir()
    (tmp_path / "broker-control").mkdir()
    return folder


@pytest.fixture
def start(spawn: Spawn, folder: Path) -> Callable[[], Process]:
    def start() -> Process:
        args = ["-m", "celery", "-A", "tests.leasing.celery.project", "beat"]
        args += ["-S", "tests.leasing.celery.project:PatientScheduler", "-l", "INFO"]
        env = {"BROKER": "filesystem://", "BROKER_FOLDER": str(folder), "LEASING_TTL": str(TTL)}
        # Warnings of Celery's own, and of its dependencies, are none of ours.
        return spawn(args, PYTHONWARNINGS="ignore", **env)

    return start


@pytest.mark.slow  # the claims of slots have tests of their own on each database
def test_two_beats_send_each_slot_once_whatever_happens_to_the_leader(
    start: Callable[[], Process], folder: Path
) -> None:
    beats = [start(), start()]
    wait_for_slots(20)
    for fault in FAULTS:
        leader = leader_of(beats)
        fault(leader)
        leader_of([beat for beat in beats if beat is not leader])
        wait_for_slots(BeatEntry.objects.get(name="often").runs + 10)
        if fault is Process.kill:
            beats.remove(leader)
            beats.append(start())
        leader.resume()  # and go on with what it had begun
    wait_for_slots(60)  # six minutes, at sixty times the speed
    for beat in beats:
        beat.terminate()
    for beat in beats:
        beat.wait(PATIENCE)

    doubles = 0
    for name, every in PLANS.items():
        ids = messages_of(name, folder)
        steps = [later - earlier for earlier, later in itertools.pairwise(sorted(ids))]
        assert set(steps) == {timedelta(seconds=every)}, f"slots of {name} are missing"
        row = BeatEntry.objects.get(name=name)
        # A beat that was stopped may have claimed a slot that it did not come to send: it says so.
        unsent = row.is_unsure and row.last_run_at not in ids
        assert len(ids) == row.runs - unsent
        # Whoever takes over from one that dies between sending and saying so cannot know.
        assert all(len(set(of_slot)) == 1 for of_slot in ids.values())
        doubles += sum(len(of_slot) - 1 for of_slot in ids.values())
    # A leader that the machine lets wait for longer than its term loses it too.
    grants = (EventKind.ACQUIRED, EventKind.TAKEN_OVER)
    terms = LeaseEvent.objects.filter(resource=BEAT, kind__in=grants).count()
    assert doubles < terms, f"{doubles} doubles in {terms} terms"


def wait_for_slots(count: int) -> None:
    sent = BeatEntry.objects.filter(name="often", runs__gte=count)
    wait_for(sent.exists, timeout=90, message=f"{count} slots")


def leader_of(beats: list[Process]) -> Process:
    """Return the leader among ``beats``; waits until there is one."""

    def leads() -> Process | None:
        incumbent = Leader(BEAT).current()
        pid = int(incumbent.holder.split(":")[1]) if incumbent else 0
        return next((beat for beat in beats if beat.pid == pid), None)

    found = wait_for(leads, timeout=60)
    assert found is not None
    return found


def messages_of(name: str, folder: Path) -> dict[datetime, list[str]]:
    """The ids of the messages that were sent for each slot. A beat that is killed as it writes one
    leaves a part of it, which nobody can read: that one was not sent."""
    found: dict[datetime, list[str]] = defaultdict(list)
    for file in folder.glob("*.msg"):
        try:
            headers: dict[str, Any] = json.loads(file.read_text())["headers"]
        except json.JSONDecodeError:
            continue
        if headers["task"] == name:
            found[datetime.fromisoformat(headers["beat_slot"])].append(headers["id"])
    return found
