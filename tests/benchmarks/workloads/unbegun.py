"""Tasks that are dead although their handler never began: of one attempt each, and workers killed.

The parent of a worker that is killed gives back what the worker had not begun. A task counts as
begun here once it has left a file: a worker can be killed between the call of the handler and that,
so one task a slot is excused at each kill.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

from tasks.models import Queue, Task, Worker
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
        started = start_workers(bench, 1, "--threads", str(THREADS), "--ttl", f"{TTL:g}")
        for number in range(1, kills + 1):
            kill_after(Path(folder), number * count // (kills + 1))
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


def kill_after(folder: Path, count: int) -> None:
    """Kill the worker once ``count`` tasks have begun in all."""
    soon(lambda: len(list(folder.iterdir())) >= count, "the worker works")
    os.kill(Worker.objects.latest("started_at").pid, signal.SIGKILL)
