"""Measure the cost of ten thousand holds: the keeper's share of a core, and transactions for each
round of renewals (a third of the ttl)."""

from __future__ import annotations

import time
from contextlib import ExitStack

import psycopg

from leasing.models import Lease
from tests.benchmarks.bench import Bench, Figures

#: So that there are two rounds in twenty seconds.
TTL = 30.0
BATCH = 1_000


def run(bench: Bench) -> Figures:
    """Percent of a core, and transactions a round."""
    count = bench.size.holds
    share, transactions = measure(bench, count)
    return {
        f"keeper of {count:,} holds (% of a core)": {"ours": share},
        f"keeper of {count:,} holds (transactions a round)": {"ours": transactions * TTL / 3},
    }


def measure(bench: Bench, count: int) -> tuple[float, float]:
    """Return the percentage of a core, and the transactions a second, that ``count`` holds take."""
    names = [f"kept-{count}-{number:06}" for number in range(count)]
    with ExitStack() as held, psycopg.connect(bench.url, autocommit=True) as other:
        for start in range(0, count, BATCH):
            claim = Lease.objects.acquire_many(names[start : start + BATCH], ttl=TTL)
            held.enter_context(claim)
        before = transactions(other)
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(bench.size.keeper_seconds)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        done = transactions(other) - before
        lost = count - Lease.objects.active().filter(resource__startswith=f"kept-{count}-").count()
        if lost:
            raise RuntimeError(f"{lost} of {count} holds were lost")
    return 100 * cpu / wall, done / wall


def transactions(connection: psycopg.Connection[tuple[int]]) -> int:
    """Return the number of transactions of this database. Sessions report theirs with a second's
    delay."""
    row = connection.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database"
        " WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return row[0]
