"""Running tasks that do nothing, with one and two worker processes, and how large they get.

All tasks are stored before, in a paused queue, and the workers are up and have looked at it: then
it is resumed. The time is the database's, from the first claim to the last completion, for the
limit too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from django.db.models import Max, Min

from tasks.models import Queue, Task, Worker
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, until
from tests.benchmarks.plain import queue
from tests.benchmarks.tasks import nothing_of_django
from tests.processes import Process


def run(bench: Bench) -> Figures:
    """Tasks a second, and megabytes."""
    count = bench.size.drained
    one, memory = ours(bench, count, workers=1)
    return {
        "drain, 1 worker (tasks/s)": {"limit": limit(bench, count, workers=1), "ours": one},
        "drain, 2 workers (tasks/s)": {
            "limit": limit(bench, count, workers=2),
            "ours": ours(bench, count, workers=2)[0],
        },
        "drain through django.tasks, 1 worker (tasks/s)": {
            "limit": limit(bench, count, workers=1),
            "ours": ours(bench, count, workers=1, of_django=True)[0],
        },
        "worker memory while draining (MB)": {"ours": memory},
    }


def ours(bench: Bench, count: int, *, workers: int, of_django: bool = False) -> tuple[float, float]:
    """Tasks a second, and the most memory that a worker had, in megabytes."""
    first = Task.objects.get(pk=nothing_of_django.enqueue(n=1).id) if of_django else None
    fill_paused(count, first)
    started = start_workers(bench, workers)
    Queue.objects.resume("default")
    wait_until_drained()
    memory = max(map(peak_memory, started))
    end(started)
    times = Task.objects.aggregate(first=Min("acquired_at"), last=Max("processed_at"))
    stored = Task.objects.succeeded().filter(attempts=1, task_output__isnull=False).count()
    if stored != count:
        raise RuntimeError(f"{stored} of {count} tasks have a result after one attempt")
    filling.forget_tasks()
    return count / (times["last"] - times["first"]).total_seconds(), memory


def limit(bench: Bench, count: int, *, workers: int) -> float:
    """Tasks a second by the plain loop."""
    with queue.connect(bench.url) as plain:
        queue.create(plain)
        plain.execute("TRUNCATE plain_queue")
        queue.fill(plain, count)
        puppets = [bench.puppet("plain.worker") for _ in range(workers)]
        for puppet in puppets:
            puppet.tell("drain")
        done = sum(puppet.answer() for puppet in puppets)
        if done != count:
            raise RuntimeError(f"the plain loop did {done} of {count}")
        for puppet in puppets:
            puppet.end()
        row: Any = plain.execute(
            "SELECT extract(epoch FROM max(done_at) - min(claimed_at)) FROM plain_queue"
        ).fetchone()
        plain.execute("TRUNCATE plain_queue")
    return count / float(row[0])


def fill_paused(count: int, first: Task | None = None) -> None:
    """Have ``count`` tasks, copies of ``first``, in the paused queue."""
    Queue.objects.pause("default")
    first = first or Task.objects.enqueue("bench.nothing", {"n": 1})
    filling.copies_of_task(first, count - 1)


def start_workers(bench: Bench, count: int, *args: str) -> list[Process]:
    """Workers that are up: present, and so past all imports."""
    names = [f"bench-{number}" for number in range(count)]
    Worker.objects.all().delete()
    started = [bench.worker("--name", name, *args) for name in names]
    until(lambda: Worker.objects.count() == count, "workers are up", timeout=60)
    return started


def wait_until_drained() -> None:
    """Until nothing is ready, then until nothing runs."""
    until(lambda: not Task.objects.ready().exists(), "all tasks are claimed")
    until(lambda: not Task.objects.running().exists(), "all tasks have ended")


def end(started: list[Process]) -> None:
    """Stop workers, all at once."""
    for process in started:
        process.terminate()
    for process in started:
        process.end()


def peak_memory(process: Process) -> float:
    """Megabytes that were resident at the most, as Linux says."""
    status = Path("/proc", str(process.pid), "status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
