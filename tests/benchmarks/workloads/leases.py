"""Leases: cycles a second of acquire and release, with and without a renewal between, on one
connection, on eight threads with a resource each, on eight threads and on eight processes that want
one; and a hundred at once.

The limit is the same work in plain psycopg. "no history" is that without writing down who held
what; "advisory" are PostgreSQL's own locks; "redis" is redis-py's Lock, where it was asked for.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from django.db import connection as django_connection

from leasing.exceptions import LeaseHeld
from leasing.models import Lease
from leasing.runtime.aio import drive
from leasing.validation.terms import Terms
from tests.benchmarks.bench import Bench, Figures, Puppet, in_turns, rate
from tests.benchmarks.models import Parcel
from tests.benchmarks.plain import leases

THREADS = 8
AT_ONCE = 100
CLAIMED = 10
NAMES = [f"bench-{number}" for number in range(AT_ONCE)]

#: Does one cycle on the resource, and says whether it got the lease.
Cycle = Callable[[str], bool]


def run(bench: Bench) -> Figures:
    """Cycles a second, and leases a second where many are taken at once."""
    size = bench.size
    plain = leases.connect(bench.url)
    leases.create(plain, NAMES)
    Lease.objects.acquire_many(NAMES).__enter__().__exit__(None, None, None)
    Parcel.objects.bulk_create([Parcel(article=name) for name in NAMES])
    turns = partial(in_turns, rounds=size.rounds)
    seconds = size.lease_seconds

    def alone(cycles: dict[str, Cycle]) -> dict[str, float]:
        return turns(
            {
                name: partial(rate, partial(cycle, NAMES[0]), seconds)
                for name, cycle in cycles.items()
            }
        )

    def together(resources: list[str]) -> dict[str, float]:
        return turns(
            {
                name: partial(on_threads, make, resources, seconds)
                for name, make in makers(bench.url).items()
            }
        )

    figures = {
        "acquire, release (cycles/s)": alone(
            {name: make() for name, make in makers(bench.url).items()}
        ),
        "acquire, renew, release (cycles/s)": alone(
            {
                "limit": plain_renewing(plain, leases.HISTORY),
                "ours": our_renewing,
                "no history": plain_renewing(plain, leases.WITHOUT_HISTORY),
            }
        ),
        "8 threads, a resource each (cycles/s)": together(NAMES[:THREADS]),
        "8 threads, one resource (cycles/s)": together(NAMES[:1] * THREADS),
        "8 processes, one resource (cycles/s)": turns(
            {
                name: partial(by_processes, rivals(bench, name, seconds))
                for name in ("limit", "ours", "no history")
            }
        ),
        "100 leases at once (leases/s)": turns(
            {
                "limit": lambda: AT_ONCE * rate(lambda: plain_many(plain), seconds),
                "ours": lambda: AT_ONCE * rate(our_many, seconds),
            }
        ),
        "acquire by a request, release (cycles/s)": alone(
            {"limit": plain_cycle(plain, leases.HISTORY), "ours": our_requesting}
        ),
        "10 rows by a filter (rows/s)": turns(
            {
                "limit": lambda: CLAIMED * rate(lambda: plain_claim(plain), seconds),
                "ours": lambda: CLAIMED * rate(our_claim, seconds),
            }
        ),
        "10 rows of a manager that hides rows (rows/s)": turns(
            {
                "limit": lambda: CLAIMED * rate(lambda: plain_claim(plain), seconds),
                "ours": lambda: CLAIMED * rate(our_hidden_claim, seconds),
            }
        ),
    }
    plain.close()
    return figures


def makers(url: str) -> dict[str, Callable[[], Cycle]]:
    """Return the function by which each contender makes the cycle of one thread, with a connection
    of its own."""
    return {
        "limit": lambda: plain_cycle(leases.connect(url), leases.HISTORY),
        "ours": lambda: our_cycle,
        "no history": lambda: plain_cycle(leases.connect(url), leases.WITHOUT_HISTORY),
        "advisory": lambda: advisory_cycle(leases.connect(url)),
    }


def on_threads(make: Callable[[], Cycle], resources: list[str], seconds: float) -> float:
    """Cycles a second of as many threads as there are ``resources``."""
    meeting = threading.Barrier(len(resources) + 1)
    over = threading.Event()
    done = [0] * len(resources)

    def work(number: int) -> None:
        cycle = make()
        cycle(resources[number])
        meeting.wait()
        while not over.is_set():
            done[number] += cycle(resources[number])
        django_connection.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(resources))]
    for thread in threads:
        thread.start()
    meeting.wait()
    start = time.perf_counter()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start)


def rivals(bench: Bench, contender: str, seconds: float) -> list[Puppet]:
    """Return THREADS processes that want one resource, for all turns: to start them takes longer
    than a turn."""
    return [bench.puppet("rival", contender, str(seconds)) for _ in range(THREADS)]


def by_processes(rivals: list[Puppet]) -> float:
    """Cycles a second of these processes."""
    for rival in rivals:
        rival.tell("contend")
    return float(sum(rival.answer() for rival in rivals))


def our_cycle(resource: str) -> bool:
    """As a program does that has no keeper renew for it."""
    try:
        lease = Lease.objects.acquire(resource, wait=0)
    except LeaseHeld:
        return False
    Lease.objects.release(lease)
    return True


def our_renewing(resource: str) -> bool:
    lease = Lease.objects.acquire(resource)
    Lease.objects.renew(lease)
    Lease.objects.release(lease)
    return True


def our_requesting(resource: str) -> bool:
    """As the API does it for a request that may be sent again."""
    terms = replace(Terms.check(), request_id=uuid.uuid4())
    Lease.objects.release(drive(Lease.objects.acquiring_named(resource, terms, 0)))
    return True


def our_claim() -> None:
    """With a filter that is compiled anew at every call, as any filter of a user's may be."""
    Parcel.objects.filter(packed=False).claim(CLAIMED).give_back()


def our_hidden_claim() -> None:
    Parcel.unpacked.claim(CLAIMED).give_back()


def plain_claim(connection: leases.Connection) -> None:
    leases.HISTORY.give_back(connection, leases.HISTORY.claim(connection, CLAIMED))


def our_many() -> None:
    with Lease.objects.acquire_many(NAMES):
        pass


def plain_cycle(connection: leases.Connection, verbs: leases.Verbs) -> Cycle:
    def cycle(resource: str) -> bool:
        row = verbs.acquire(connection, resource)
        if row is not None:
            verbs.release(connection, row)
        return row is not None

    return cycle


def plain_renewing(connection: leases.Connection, verbs: leases.Verbs) -> Cycle:
    def cycle(resource: str) -> bool:
        row = verbs.acquire(connection, resource)
        verbs.renew(connection, row)
        verbs.release(connection, row)
        return True

    return cycle


def plain_many(connection: leases.Connection) -> None:
    leases.HISTORY.release_many(connection, leases.HISTORY.acquire_many(connection, NAMES))


def advisory_cycle(connection: leases.Connection) -> Cycle:
    def cycle(resource: str) -> bool:
        taken = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
        row = connection.execute(taken, [resource]).fetchone()
        if row is None or not row[0]:
            return False
        connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [resource])
        return True

    return cycle
