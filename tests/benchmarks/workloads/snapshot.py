"""Draining while somebody's transaction is open: what has ended cannot be cleaned away, and claims
have to wade through it. The rate is that after many tasks, when it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import psycopg

from tasks.models import Queue, Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.workloads.drain import end, fill_paused, start_workers, wait_until_drained


def run(bench: Bench) -> Figures:
    """Tasks a second, and the ratio of the two."""
    without = late_rate(bench)
    with open_snapshot(bench.url):
        under = late_rate(bench)
    after = f"drain after {bench.size.before_snapshot:,} tasks"
    return {
        f"{after} (tasks/s)": {"ours": without},
        f"{after} under an open snapshot (tasks/s)": {"ours": under},
        "drain under an open snapshot to without (ratio)": {"ours": under / without},
    }


def late_rate(bench: Bench) -> float:
    """Tasks a second of the last ones."""
    size = bench.size
    fill_paused(size.before_snapshot + size.after_snapshot)
    started = start_workers(bench, 1)
    Queue.objects.resume("default")
    wait_until_drained()
    end(started)
    ended = Task.objects.succeeded().order_by("processed_at").values_list("processed_at", flat=True)
    first: datetime = ended[size.before_snapshot]
    last = ended.last()
    assert last is not None
    later = ended.filter(processed_at__gt=first).count()
    filling.forget_tasks()
    return later / (last - first).total_seconds() if last > first else 0.0


@contextmanager
def open_snapshot(url: str) -> Iterator[None]:
    """A session that goes on seeing the database as it is now."""
    with psycopg.connect(url) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT count(*) FROM leasing_tasks_queue")
        yield
