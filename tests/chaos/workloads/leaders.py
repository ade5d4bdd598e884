"""Candidates for one leadership, who lead for a while and leave."""

from __future__ import annotations

from collections.abc import Sequence

from leasing import Leader
from tests.chaos.changes import Change
from tests.chaos.checks import check_leases
from tests.chaos.faults import TTL
from tests.chaos.history import Operation
from tests.chaos.holding import believe, granted
from tests.chaos.workload import Actor, Part, Run, Violation, calls
from tests.chaos.workloads.leases import facts, figures, must_happen

__all__ = ["FIRST", "actors", "check", "facts", "figures", "must_happen"]

FIRST = ("kill-holding", "stop")
NETWORKS = ("proxy", "direct", "pooler")
LEADERSHIP = "leader"


def campaign(part: Part) -> None:
    """Lead for a few seconds each time."""
    terms = Leader(LEADERSHIP, ttl=TTL).terms(part.stop)
    while True:
        with part.recorder.call("acquire", LEADERSHIP) as call:
            term = next(terms, None)
            if term is None:
                call.failed(error="stopped")
                return
            granted(call, term)
        believe(part, LEADERSHIP, term, part.random.uniform(0.5, 3 * TTL))
        part.recorder.note("release", LEADERSHIP, token=term.fencing_token)


def actors(run: Run) -> list[Actor]:
    return [
        calls(campaign, number, network=network, has_clock=number == 0)
        for number, network in enumerate(NETWORKS)
    ]


def check(operations: Sequence[Operation], facts: Sequence[Change]) -> list[Violation]:
    # A candidate has no answer while others lead: nothing says whether it works.
    return check_leases(operations, facts)
