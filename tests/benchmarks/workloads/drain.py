"""Running tasks of one system call, with one and two worker processes, and what it takes of them.

All tasks are stored before, in a paused queue, and the workers are up and have looked at it: then
it is resumed. The time is the database's, from the first claim to the last completion, for the
limit too. The processor time is the kernel's, of workers and of the whole server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db.models import Max, Min

from tasks.models import Queue, Task, Worker
from tasks.registry import Kind
from tests.benchmarks import cpu, filling
from tests.benchmarks.bench import Bench, Figures, until
from tests.benchmarks.plain import queue
from tests.benchmarks.tasks import nothing_of_django
from tests.processes import Process

#: Tasks from which on the server would be wrong to read whole tables.
MANY = 5_000


@dataclass
class Drained:
    """The measurements of one drain."""

    #: Tasks a second.
    rate: float
    #: Microseconds of processor time for each task.
    worker_us: float
    server_us: float | None
    #: Megabytes, at the most, of one worker.
    memory: float


def run(bench: Bench) -> Figures:
    """Tasks a second, ratios, microseconds, and megabytes."""
    count = bench.size.drained
    limits = {workers: limit(bench, count, workers=workers) for workers in (1, 2)}
    one = ours(bench, count)
    beside = ours(bench, count, BENCH_ASYNC="1")
    coroutines = ours(bench, count, first=of_coroutine(), BENCH_ASYNC="1")
    two = ours(bench, count, workers=2)
    single = Task.objects.enqueue("bench.nothing", {"n": 1}, max_attempts=1)
    once = ours(bench, count, first=single)
    quiet = ours(bench, count, first=_of_django())
    logged = ours(bench, count, first=_of_django(), BENCH_LOGGING="django")
    through = "drain through django.tasks"
    figures: Figures = {
        "drain, 1 worker (tasks/s)": {"limit": limits[1].rate, "ours": one.rate},
        "drain beside an async handler (tasks/s)": {"limit": limits[1].rate, "ours": beside.rate},
        "drain, 2 workers (tasks/s)": {"limit": limits[2].rate, "ours": two.rate},
        f"{through}, 1 worker (tasks/s)": {"limit": limits[1].rate, "ours": quiet.rate},
        "drain with max_attempts=1 to without (ratio)": {"ours": once.rate / one.rate},
        f"{through}, django at WARNING, to handlers (ratio)": {"ours": quiet.rate / one.rate},
        f"{through}, Django's default logging, to handlers (ratio)": {
            "ours": logged.rate / one.rate
        },
        "worker memory while draining (MB)": {"ours": one.memory},
    }
    worker = "CPU of the worker while draining"
    figures |= {
        f"{worker} (us a task)": {"limit": limits[1].worker_us, "ours": one.worker_us},
        f"{worker} coroutines (us a task)": {"ours": coroutines.worker_us},
        f"{worker} with max_attempts=1 (us a task)": {"ours": once.worker_us},
        f"{worker} through django.tasks (us a task)": {"ours": quiet.worker_us},
        f"{worker} through django.tasks, logged (us a task)": {"ours": logged.worker_us},
    }
    if limits[1].server_us is not None and one.server_us is not None:
        figures["CPU of the server while draining (us a task)"] = {
            "limit": limits[1].server_us,
            "ours": one.server_us,
        }
    return figures


def of_coroutine(name: str = "bench.coroutine") -> Task:
    """Return a task of a handler that the workers register and this process does not."""
    task = Task.objects.enqueue("bench.nothing", {"n": 1})
    Task.objects.filter(pk=task.pk).update(name=name, kind=Kind.COROUTINE.number)
    return task


def _of_django() -> Task:
    return Task.objects.get(pk=nothing_of_django.enqueue(n=1).id)


def ours(
    bench: Bench, count: int, *, workers: int = 1, first: Task | None = None, **env: str
) -> Drained:
    """Drain ``count`` tasks.

    Args:
        bench: The means.
        count: The number of tasks.
        workers: The number of worker processes.
        first: The task that the others are copies of; one of ``bench.nothing`` by default.
        env: Variables of the workers' environment.
    """
    fill_paused(count, first)
    started = start_workers(bench, workers, **env)
    used, served = sum(cpu.of_session(each.pid) for each in started), cpu.of_server(bench.url)
    Queue.objects.resume("default")
    wait_until_drained()
    used = sum(cpu.of_session(each.pid) for each in started) - used
    server_us = _each(cpu.of_server(bench.url), served, count)
    memory = max(map(peak_memory, Worker.objects.values_list("pid", flat=True)))
    end(started)
    times = Task.objects.aggregate(first=Min("acquired_at"), last=Max("processed_at"))
    stored = Task.objects.succeeded().filter(attempts=1, task_output__isnull=False).count()
    if stored != count:
        raise RuntimeError(f"{stored} of {count} tasks have a result after one attempt")
    filling.forget_tasks()
    rate = count / (times["last"] - times["first"]).total_seconds()
    return Drained(rate, used / count * 1e6, server_us, memory)


def limit(bench: Bench, count: int, *, workers: int) -> Drained:
    """Drain ``count`` tasks by the plain loop."""
    with queue.connect(bench.url) as plain:
        queue.create(plain)
        plain.execute("TRUNCATE plain_queue")
        queue.fill(plain, count)
        if count >= MANY:
            queue.check_plans(plain)
        puppets = [bench.puppet("plain.worker") for _ in range(workers)]
        used, served = sum(cpu.of_process(each.pid) for each in puppets), cpu.of_server(bench.url)
        for puppet in puppets:
            puppet.tell("drain")
        done = sum(puppet.answer() for puppet in puppets)
        used = sum(cpu.of_process(each.pid) for each in puppets) - used
        server_us = _each(cpu.of_server(bench.url), served, count)
        memory = max(peak_memory(each.pid) for each in puppets)
        for puppet in puppets:
            puppet.end()
        row: Any = plain.execute(
            "SELECT extract(epoch FROM max(done_at) - min(claimed_at)),"
            " count(*) FILTER (WHERE status = 'succeeded' AND attempts = 1 AND result IS NOT NULL)"
            " FROM plain_queue"
        ).fetchone()
        plain.execute("TRUNCATE plain_queue")
    if (done, row[1]) != (count, count):
        raise RuntimeError(f"the plain loop did {done} of {count}, and {row[1]} are stored")
    return Drained(count / float(row[0]), used / count * 1e6, server_us, memory)


def _each(after: float | None, before: float | None, count: int) -> float | None:
    return None if after is None or before is None else (after - before) / count * 1e6


def fill_paused(count: int, first: Task | None = None, **other: str) -> None:
    """Have ``count`` tasks, copies of ``first``, in the paused queue; ``other`` gives columns of
    the copies, as for ``filling.copy``."""
    Queue.objects.pause("default")
    first = first or Task.objects.enqueue("bench.nothing", {"n": 1})
    filling.copies_of_task(first, count - 1, **other)


def start_workers(bench: Bench, count: int, *args: str, **env: str) -> list[Process]:
    """Workers that are up: present, and so past all imports."""
    names = [f"bench-{number}" for number in range(count)]
    Worker.objects.all().delete()
    started = [bench.worker("--name", name, *args, **env) for name in names]
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


def peak_memory(pid: int) -> float:
    """Megabytes of a process that were resident at the most, as Linux says."""
    status = Path("/proc", str(pid), "status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
