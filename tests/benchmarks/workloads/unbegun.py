"""Tasks that are dead although their handler never began: of one attempt each, and workers killed.

A worker that is killed spends the attempts of all that it has claimed. It can claim a task for each
free slot and be killed before the handlers begin: as many as it has slots are excused at each kill.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from tasks.models import Queue, Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, soon
from tests.benchmarks.workloads.drain import end, fill_paused, start_workers, wait_until_drained

THREADS = 4
SECONDS = 0.01
TTL = 2.0


def run(bench: Bench) -> Figures:
    """Tasks."""
    count, kills = bench.size.single_attempts, bench.size.single_kills
    with tempfile.TemporaryDirectory(prefix="leasing-bench-") as folder:
        data = {"folder": folder, "n": 0, "seconds": SECONDS}
        first = Task.objects.enqueue("bench.mark", data, max_attempts=1)
        fill_paused(count, first, task_data="jsonb_set(task_data, '{n}', to_jsonb(n))")
        Queue.objects.resume("default")
        for number in range(1, kills + 1):
            work_and_die(bench, Path(folder), number * count // (kills + 1))
        started = start_workers(bench, 1, "--ttl", f"{TTL:g}")
        wait_until_drained()
        end(started)
        dead = Task.objects.failed().values_list("holder", "task_data__n")
        unbegun = Counter(holder for holder, n in dead if not Path(folder, str(n)).exists())
    filling.forget_tasks()
    beyond = sum(max(0, each - THREADS) for each in unbegun.values())
    what = f"dead without having begun, after {kills} kills"
    return {
        f"{what} (of {count} tasks)": {"ours": float(unbegun.total())},
        "dead without having begun, beyond the slots of the killed (tasks)": {
            "ours": float(beyond)
        },
    }


def work_and_die(bench: Bench, folder: Path, count: int) -> None:
    """Kill a worker once ``count`` tasks have begun in all."""
    name = f"unbegun-{count}"
    worker = bench.worker("--name", name, "--threads", str(THREADS), "--ttl", f"{TTL:g}")
    soon(lambda: len(list(folder.iterdir())) >= count, "the worker works")
    worker.kill()
    worker.wait()
