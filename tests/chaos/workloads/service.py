"""Leases of a service, held over HTTP by ``leasing.client``."""

from __future__ import annotations

from leasing.client import LeaseClient
from tests.chaos.faults import TTL
from tests.chaos.holding import held_for
from tests.chaos.workload import Actor, Part, Run, calls, website
from tests.chaos.workloads.leases import check, facts, figures, must_happen

__all__ = ["FIRST", "actors", "check", "facts", "figures", "must_happen"]

FIRST = ("kill-holding", "stop")


def hold(part: Part) -> None:
    """Hold leases of the service: the hot one among them."""
    with LeaseClient(f"{part.servers['web']}/api") as client:
        while not part.stop.is_set():
            name = "hot" if part.random.random() < 0.5 else part.random.randrange(10)
            resource = f"service:{name}"
            held = client.hold(resource, ttl=TTL, wait=2 * TTL, stopping=part.stop)
            held_for(part, resource, held, part.random.uniform(0, 1.5 * TTL))


def actors(run: Run) -> list[Actor]:
    site = website(run)
    return [site, *(calls(hold, number, has_clock=number == 0) for number in range(3))]
