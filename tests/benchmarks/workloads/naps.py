"""Many threads that wait, in several worker processes, with handlers of two kinds registered.

The ideal is that every slot starts its next task the moment it has ended one.
"""

from __future__ import annotations

from django.db.models import Max, Min

from tasks.models import Queue, Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.workloads.drain import end, fill_paused, start_workers, wait_until_drained

WORKERS = 4
THREADS = 25
SECONDS = 0.01
IDEAL = WORKERS * THREADS / SECONDS


def run(bench: Bench) -> Figures:
    """Tasks a second, to those of the ideal."""
    count = bench.size.naps
    fill_paused(count, Task.objects.enqueue("bench.nap", {"seconds": SECONDS}))
    started = start_workers(bench, WORKERS, "--threads", str(THREADS), BENCH_ASYNC="1")
    Queue.objects.resume("default")
    wait_until_drained()
    end(started)
    times = Task.objects.aggregate(first=Min("acquired_at"), last=Max("processed_at"))
    filling.forget_tasks()
    rate = count / (times["last"] - times["first"]).total_seconds()
    name = f"{WORKERS} workers with {THREADS} threads on {SECONDS * 1000:g} ms naps, to the ideal"
    return {f"{name} (ratio)": {"ours": rate / IDEAL}}
