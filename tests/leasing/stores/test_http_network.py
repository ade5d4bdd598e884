"""Leases in a lease service over a real network, which fails as networks do.

These tests take seconds of real time.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import cycle

import pytest
from django.db import connections
from django.test import LiveServerTestCase, override_settings
from pytest_django.live_server_helper import LiveServer

from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.holding import term as holding_term
from leasing.holding.keeper import keeper
from leasing.holding.term import Term
from leasing.models import ApiToken, Lease
from leasing.store import NamedStore
from leasing.stores.http import HttpStore
from leasing.testing.contract import StoreContract, StoreRaces
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.proxy import TcpProxy
from tests.remote import SCOPES
from tests.test_two_web_processes import answers

pytestmark = pytest.mark.slow

#: Threads that contend for one lease, each with a client and a network of its own.
RIVALS = 6
#: Seconds for that: a quarter is enough on a machine that has other work. Well below the time at
#: which pytest ends the run (``faulthandler_timeout``).
PATIENCE = 120.0
#: The number of times that each fault is to happen.
ROUNDS = 4
TTL = 1.0
#: That of a holder whose lease expires meanwhile comes first.
FAULTS = ["lose", "cut", "swallow_so_far", "swallow_replies", "delay"]


def store_at(address: str, **options: float) -> HttpStore:
    _, token = ApiToken.objects.issue(f"store {random.random()}", scopes=SCOPES)
    return HttpStore(url=f"http://{address}/api", token=token, **options)


class LiveHttpStoreTest(StoreContract, StoreRaces, LiveServerTestCase):
    """The contract in real time, over connections and threads."""

    renewed_ttl = 4.0  # client and service are one process, on a machine that has more to do

    def make_store(self) -> NamedStore:
        store = store_at(self.live_server_url.removeprefix("http://"))
        self.addCleanup(store.disconnect)
        return store

    def forged(self, grant: Term) -> tuple[object, object]:  # type: ignore[override]
        return type(grant.key)(grant.resource, "x" * 43), grant.grant_id

    def is_serving(self) -> bool:
        return "process_request_thread" in threading.current_thread().name


class Rivals:
    """Clients that contend for one lease at ``port``, and what they believed."""

    def __init__(self, port: int) -> None:
        self.networks = [TcpProxy(port) for _ in range(RIVALS)]
        self.stores = [
            store_at(network.address, timeout=0.4, patience=2.0) for network in self.networks
        ]
        #: The network of the latest holder.
        self.network = self.networks[0]
        self.holds: list[Term] = []
        self.tokens: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.overlaps = 0
        self.until = 0.0

    def contend(self, is_enough: Callable[[], bool]) -> None:
        """Contend until it ``is_enough``, for ``PATIENCE`` seconds at most."""
        self.until = time.monotonic() + PATIENCE
        with ThreadPoolExecutor(RIVALS) as threads:
            turns = partial(self._take_turns, is_enough)
            for _ in threads.map(turns, self.stores, self.networks):
                pass

    def _take_turns(
        self, is_enough: Callable[[], bool], store: HttpStore, network: TcpProxy
    ) -> None:
        try:
            while time.monotonic() < self.until and not is_enough():
                try:
                    with store.hold("crane:1", ttl=TTL, wait=0.3) as hold:
                        self.network = network
                        self.holds.append(hold)
                        self.tokens.append(hold.fencing_token)
                        self.outcomes["held"] += 1
                        self._believe(hold, random.uniform(0.1, 2.5))
                except LeaseHeld:
                    self.outcomes["refused"] += 1
                except LeaseLost:
                    self.outcomes["lost"] += 1
                except StoreError:
                    self.outcomes["failed"] += 1
        finally:
            connections.close_all()

    def _believe(self, hold: Term, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and hold.valid:
            for other in self.holds[-2 * RIVALS :]:
                # The first is asked again: both believed it as the other was asked.
                if other is not hold and hold.valid and other.valid and hold.valid:
                    self.overlaps += 1
            time.sleep(0.002)

    def disturb(self, stopped: threading.Event, faults: Counter[str]) -> None:
        """Have the network of a holder fail in one way of ``faults`` after the other."""
        for fault in cycle(list(faults)):
            if stopped.wait(random.uniform(0.1, 0.5)):
                break
            faults[fault] += 1
            network = self.network
            if fault == "delay":
                network.delay = random.choice([0.05, 0.3, 0.8])
                stopped.wait(random.uniform(0.2, 1.5))
                network.delay = 0.0
            elif fault == "lose":
                network.lose(2 * TTL)
                stopped.wait(2 * TTL)
            else:
                with suppress(OSError):
                    getattr(network, fault)()

    def close(self) -> None:
        for network in self.networks:
            network.close()
        for store in self.stores:
            store.disconnect()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_sabotaged", [False, True], ids=["as it is", "trust too long"])
def test_beliefs_never_overlap_whatever_the_network_does(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, is_sabotaged: bool
) -> None:
    rivals = Rivals(live_server.thread.port)
    # A trust that is too long shows where a lease expires, and seldom otherwise.
    faults = Counter(dict.fromkeys(FAULTS[:1] if is_sabotaged else FAULTS, 0))
    stopped = threading.Event()
    network = threading.Thread(target=rivals.disturb, args=(stopped, faults), daemon=True)
    if is_sabotaged:  # as if it were counted from long after the answer
        monkeypatch.setattr(holding_term, "margin", lambda ttl: -3 * ttl)
    network.start()
    try:
        if is_sabotaged:
            rivals.contend(lambda: rivals.overlaps > 0)
        else:
            rivals.contend(lambda: min(faults.values()) >= ROUNDS)
    finally:
        stopped.set()
        network.join()
        rivals.close()
    print(f"{dict(rivals.outcomes)}, faults {dict(faults)}, overlaps {rivals.overlaps}")

    assert (rivals.overlaps > 0) is is_sabotaged
    assert Lease.objects.get().grants >= len(set(rivals.tokens)) == len(rivals.tokens)
    if not is_sabotaged:
        assert rivals.outcomes["held"] >= 5
        assert rivals.outcomes["lost"] + rivals.outcomes["failed"] > 0
        assert min(faults.values()) >= ROUNDS


@pytest.mark.django_db(transaction=True)
@override_settings(LEASING={"RENEW_EVERY": 0.5})
def test_a_hold_survives_a_restart_and_no_absence_that_outlasts_its_trust(spawn: Spawn) -> None:
    (port,) = free_ports(1)

    def serve() -> Process:
        args = ["manage.py", "runserver", "--noreload", "--skip-checks", f"127.0.0.1:{port}"]
        server = spawn(args, PYTHONWARNINGS="default")
        wait_for(partial(answers, port), timeout=60)
        return server

    server, store = serve(), store_at(f"127.0.0.1:{port}", timeout=2.0)
    with store.hold("crane:1", ttl=60) as long:
        server.kill()
        wait_for(lambda: keeper.draining, timeout=30)
        trusted_until = long.trusted_until
        server = serve()
        wait_for(lambda: long.trusted_until > trusted_until, timeout=30)

        late = pytest.raises(LeaseLost, match="not renewed in time")
        with late, store.hold("crane:2", ttl=2) as short:
            server.kill()
            assert short.lost.wait(30)
        assert long.valid
        serve()
        assert store.current("crane:1") is not None
    assert Lease.objects.get(resource="crane:1").released_at is not None
    store.disconnect()
