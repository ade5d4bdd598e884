"""Eight clients on few leases, over a network that loses requests and answers at random: nobody
believes to hold what another holds, and tokens rise.

CYCLES=10000 makes as many cycles, in many minutes; SEED=7 repeats the draws of a run.
"""

from __future__ import annotations

import faulthandler
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from leasing.client import LeaseClient, ServiceError
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.holding.term import Term, margin
from leasing.runtime.clock import clock
from tests.remote import Fault, Network, Service, answered, refused, swallowed

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

CLIENTS = 8
CYCLES = int(os.environ.get("CYCLES", "400"))
SEED = int(os.environ.get("SEED", "1"))
RESOURCES = [f"crane:{number}" for number in range(3)]


@dataclass(frozen=True)
class Belief:
    """The time for which a client believed that it held a lease."""

    token: int
    since: float
    until: float


def late(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
    """The answer takes a while."""
    response = send()
    response.read()
    time.sleep(0.05)
    return response


class Chaotic(Network):
    """Draws a fault for every fifth request or so."""

    FAULTS: tuple[tuple[str, Fault], ...] = (
        ("swallowed", swallowed),
        ("refused", refused),
        ("late", late),
        ("unavailable", answered(503, b"<html>")),
    )

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed)
        self.met: Counter[str] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._draw.random() < 0.2:
            name, fault = self._draw.choice(self.FAULTS)
            self.met[name] += 1
            self.faults = [fault]
        return super().handle_request(request)


def test_no_two_clients_believe_to_hold_the_same(service: Service) -> None:
    faulthandler.cancel_dump_traceback_later()  # it takes as long as there are cycles
    beliefs: defaultdict[str, list[Belief]] = defaultdict(list)
    outcomes: Counter[str] = Counter()
    left = iter(range(CYCLES))
    lock = threading.Lock()
    networks = [Chaotic(SEED * 100 + number) for number in range(CLIENTS)]

    def work(number: int) -> None:
        draw = random.Random(number)
        options = {**service.options, "transport": networks[number]}
        with LeaseClient(**options, patience=1.0) as leases:
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                try:
                    _cycle(leases, draw.choice(RESOURCES), f"client-{number}")
                except (LeaseHeld, LeaseLost, ServiceError) as error:
                    outcomes[type(error).__name__] += 1

    def _cycle(leases: LeaseClient, resource: str, holder: str) -> None:
        grant = leases.acquire(resource, holder, 1, wait=2)
        since, until = clock(), _trusted(grant)
        try:
            grant = leases.renew(grant)
            until = max(until, _trusted(grant))
        finally:
            # From here on it believes no longer: the release may have arrived.
            belief = Belief(grant.fencing_token, since, min(clock(), until))
            with lock:
                outcomes["granted"] += 1
                beliefs[resource].append(belief)
        leases.release(grant)

    threads = [threading.Thread(target=work, args=[number]) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    overlaps = 0
    for held in beliefs.values():
        held.sort(key=lambda each: each.token)
        assert len({each.token for each in held}) == len(held)
        for earlier, later in zip(held, held[1:], strict=False):
            overlaps += later.since < earlier.until
    met = sum((network.met for network in networks), Counter[str]())
    print(f"{CYCLES} cycles: {dict(outcomes)}; faults {dict(met)}; overlaps {overlaps}")
    assert overlaps == 0
    assert outcomes["granted"] > CYCLES / 2
    assert set(met) == {name for name, _ in Chaotic.FAULTS}


def _trusted(grant: Term) -> float:
    return grant.sent_at + grant.remaining - margin(grant.ttl)
