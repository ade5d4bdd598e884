"""The server's time of looks for tasks of a kind that has none, beside a long backlog of another.

A worker with four threads on naps works on the backlog, with an async handler and without, in
turns. The difference of the server's processor time is that of the looks.
"""

from __future__ import annotations

import statistics
import time

from tasks.models import Queue, Task
from tests.benchmarks import cpu, filling
from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.workloads.drain import end, fill_paused, start_workers

#: Long enough that both have the same little to do.
SECONDS = 0.01
#: Until a worker that has just come up has found its pace.
SETTLED_AFTER = 1.0


def run(bench: Bench) -> Figures:
    """Percent of a core."""
    if cpu.of_server(bench.url) is None:
        return {}
    fill_paused(bench.size.ready, Task.objects.enqueue("bench.nap", {"seconds": SECONDS}))
    without, beside = [], []
    for _ in range(max(1, bench.size.rounds // 2)):
        without.append(share(bench))
        beside.append(share(bench, BENCH_ASYNC="1"))
    filling.forget_tasks()
    looks = statistics.median(beside) - statistics.median(without)
    return {
        "server beside a backlog, threads only (% of a core)": {"ours": statistics.median(without)},
        "looks for a kind without tasks (% of a core)": {"ours": max(0.0, looks)},
    }


def share(bench: Bench, **env: str) -> float:
    """Percent of a core that the server runs while a worker works."""
    started = start_workers(bench, 1, **env)
    Queue.objects.resume("default")
    time.sleep(SETTLED_AFTER)
    used, wall = cpu.of_server(bench.url) or 0.0, time.perf_counter()
    time.sleep(bench.size.look_seconds)
    used = (cpu.of_server(bench.url) or 0.0) - used
    wall = time.perf_counter() - wall
    Queue.objects.pause("default")
    end(started)
    return 100 * used / wall
