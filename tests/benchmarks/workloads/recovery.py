"""Taking back the tasks of a worker that is gone, thousands at once."""

from __future__ import annotations

import time
from datetime import timedelta

from django.db.models import F

from tasks.maintenance.recovery import sweep
from tasks.models import Task, TaskStatus
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures


def run(bench: Bench) -> Figures:
    """Tasks recovered a second, by one process."""
    count = bench.size.expired
    Task.objects.enqueue("bench.nothing", {"n": 1})
    (lost,) = Task.objects.claim("bench-dead", limit=1, ttl=30)
    filling.copies_of_task(lost, count - 1, grant_id="gen_random_uuid()")
    long_ago = timedelta(hours=1)
    Task.objects.update(
        acquired_at=F("acquired_at") - long_ago, expires_at=F("expires_at") - long_ago
    )
    filling.settle(Task)
    start = time.perf_counter()
    while sweep():
        pass
    took = time.perf_counter() - start
    recovered = Task.objects.filter(status=TaskStatus.READY).count()
    if recovered != count:
        raise RuntimeError(f"{recovered} of {count} tasks were recovered")
    filling.forget_tasks()
    return {f"recovery of {count:,} expired tasks (tasks/s)": {"ours": count / took}}
