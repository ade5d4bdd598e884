"""Two leaders never at once: real processes, killed and paused while they lead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import pytest

from leasing.models import LeaseEvent
from tests.conftest import Spawn
from tests.plugin import ROOT
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE, pause

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

TTL = 2.0
#: How often each of the faults happens; more, and the figures mean more.
ROUNDS = int(os.environ.get("LEADER_ROUNDS", "1"))
LED = str(ROOT / "tests" / "races" / "led.py")


@dataclass
class Belief:
    """One term, as its leader saw it."""

    token: int
    leader: str
    begin: float
    end: float


class Beats:
    """The notes of the leaders."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def beliefs(self) -> list[Belief]:
        """In the order in which they began."""
        found: dict[int, Belief] = {}
        text = self.file.read_text() if self.file.exists() else ""
        for line in text.splitlines():
            token, leader, moment = line.split()
            belief = found.setdefault(
                int(token), Belief(int(token), leader, float(moment), float(moment))
            )
            belief.begin = min(belief.begin, float(moment))
            belief.end = max(belief.end, float(moment))
        return sorted(found.values(), key=lambda belief: belief.begin)

    def next_after(self, token: int) -> Belief:
        """Wait for somebody to lead after the term with ``token``."""
        later = wait_for(
            lambda: [belief for belief in self.beliefs() if belief.token > token],
            timeout=PATIENCE,
            message="somebody leads",
        )
        return later[0]

    def are_never_two_at_once(self) -> list[Belief]:
        beliefs = self.beliefs()
        for one, next_one in zip(beliefs, beliefs[1:], strict=False):
            assert one.end < next_one.begin, (one, next_one)
            assert one.token < next_one.token, (one, next_one)
        return beliefs


def say(kind: str, gaps: list[float]) -> None:
    """Print how long nobody led."""
    at_99 = quantiles(gaps, n=100, method="inclusive")[-1] if len(gaps) > 1 else gaps[0]
    print(
        f"hand-over after {kind}: {len(gaps)} times, p50 {median(gaps):.3f} s,"
        f" p99 {at_99:.3f} s, longest {max(gaps):.3f} s (ttl {TTL:g} s)"
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("1 ann 1.0\n2 bob 2.0\n1 ann 2.1\n", id="a late belief"),
        pytest.param("2 bob 1.0\n1 ann 2.0\n", id="an older token"),
        pytest.param("1 ann 1.0\n2 bob 1.0\n", id="the same moment"),
    ],
)
def test_two_leaders_at_once_would_be_noticed(tmp_path: Path, lines: str) -> None:
    beats = Beats(tmp_path / "beats")
    beats.file.write_text(lines)

    with pytest.raises(AssertionError):
        beats.are_never_two_at_once()


def test_two_leaders_never_lead_at_once(spawn: Spawn, tmp_path: Path) -> None:
    beats = Beats(tmp_path / "beats")
    candidates: dict[str, Process] = {}
    ended_by: dict[int, str] = {}

    def start(name: str) -> None:
        command = ["-m", "tests.races.candidate", name, str(beats.file), str(TTL)]
        candidates[name] = spawn(command)

    def is_ready(name: str) -> None:
        process = candidates[name]
        wait_for(lambda: "ready" in process.output, timeout=PATIENCE, process=process)

    def killed(leader: str) -> None:
        candidates[leader].kill()
        start(leader)

    def stopped(leader: str) -> None:
        candidates[leader].terminate()
        assert candidates[leader].wait(PATIENCE) == 0
        start(leader)

    def paused(leader: str) -> Callable[[], None]:
        pause(candidates[leader])
        return candidates[leader].resume

    for name in ("ann", "bob", "cyd"):
        start(name)
    for name in candidates:
        is_ready(name)
    leads = beats.next_after(0)
    for _ in range(ROUNDS):
        for fault in (killed, stopped, paused, paused):
            ended_by[leads.token] = fault.__name__
            afterwards = fault(leads.leader)
            before, leads = leads, beats.next_after(leads.token)
            if afterwards:
                afterwards()
            assert leads.leader != before.leader or fault is not paused
        for name in candidates:
            is_ready(name)
    for process in candidates.values():
        process.terminate()
    for process in candidates.values():
        assert process.wait(PATIENCE) == 0, process.output

    beliefs = beats.are_never_two_at_once()
    assert set(ended_by) <= {belief.token for belief in beliefs}
    gaps: dict[str, list[float]] = {"killed": [], "stopped": [], "paused": []}
    for one, next_one in zip(beliefs, beliefs[1:], strict=False):
        if one.token in ended_by:
            gaps[ended_by[one.token]].append(next_one.begin - one.end)
    for kind, found in gaps.items():
        assert len(found) >= ROUNDS
        say(kind, found)
    taken_over = LeaseEvent.objects.filter(resource="race", kind="taken_over").count()
    assert taken_over >= 3 * ROUNDS


def test_what_a_leader_runs_does_not_outlive_its_term_though_it_is_deaf(
    spawn: Spawn, tmp_path: Path
) -> None:
    beats = Beats(tmp_path / "beats")
    led = [sys.executable, "-S", LED, str(beats.file), "stubborn"]
    command = ["manage.py", "run_as_leader", "race", "--ttl", "3", "--stop-timeout", "0"]
    command.append("--skip-checks")
    leaders = {name: spawn([*command, "--holder", name, "--", *led]) for name in ("ann", "bob")}

    def holder(token: int) -> Process:
        return leaders[LeaseEvent.objects.get(fencing_token=token, grant_id__isnull=False).holder]

    first = beats.next_after(0)
    pause(holder(first.token))
    second = beats.next_after(first.token)
    holder(first.token).resume()
    holder(second.token).kill()
    third = beats.next_after(second.token)
    for leader in leaders.values():
        leader.terminate()
    for leader in leaders.values():
        leader.wait(PATIENCE)

    beliefs = beats.are_never_two_at_once()
    assert [belief.token for belief in beliefs][:3] == [first.token, second.token, third.token]
    say("a pause and a kill", [b.begin - a.end for a, b in zip(beliefs, beliefs[1:], strict=False)])
