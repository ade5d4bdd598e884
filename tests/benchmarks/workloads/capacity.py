"""How far one database goes: thousands of leases that expire at the same moment, and the renewals
of a growing number of holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from django.db import connections

from tasks.models import Task, Worker
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, percentile, soon
from tests.benchmarks.sizes import CALM_QUEUE
from tests.benchmarks.workloads import keeper
from tests.benchmarks.workloads.drain import of_coroutine
from tests.benchmarks.workloads.latency import EVERY

#: Of the leases of the worker that is killed; each renewal is of all of its tasks.
TTL = 6.0
#: Seconds for which other tasks are watched before the kill.
BEFORE = 3.0


def run(bench: Bench) -> Figures:
    """Transactions, seconds after a kill, and milliseconds of other tasks."""
    return {**holds(bench), **mass_expiry(bench)}


def mass_expiry(bench: Bench) -> Figures:
    """Kill a worker that runs thousands of coroutines, beside two workers of all queues."""
    number = bench.size.mass
    lost = bench.worker(
        *("--workers", "0", "--name", "lost", "--ttl", f"{TTL:g}"),
        *("--coroutines", str(number), "--processes", "1"),
        BENCH_ASYNC="1",
    )
    filling.copies_of_task(of_coroutine("bench.linger"), number - 1)
    running = Task.objects.filter(holder__startswith="lost:").running()
    soon(lambda: running.count() == number, "all tasks run")
    for name in ("first", "second"):
        arguments = ("--workers", "0", "--name", name, "--queue", CALM_QUEUE)
        bench.worker(*arguments, BENCH_ASYNC="1")
    soon(lambda: Worker.objects.count() == 3, "all workers are up")
    ended = Task.objects.filter(name="bench.linger").succeeded()
    with others(bench) as sent:
        time.sleep(BEFORE)
        before = time.monotonic()
        lost.kill()
        lost.wait()
        soon(lambda: not running.exists(), "all tasks were taken back")
        ready = time.monotonic() - before - TTL
        soon(lambda: ended.count() == number, "all tasks have run", timeout=300.0)
        done = time.monotonic() - before - TTL
    calm = Task.objects.filter(name="bench.clock")
    soon(lambda: calm.succeeded().count() == len(sent), "the other tasks have run")
    began = {pk: output["at"] for pk, output in calm.values_list("pk", "task_output")}
    waits = {moment: 1000 * (began[pk] - moment) for pk, moment in sent.items()}
    usual = [wait for moment, wait in waits.items() if moment < before]
    # The leases ran out no earlier than a renewal before the kill allows.
    meanwhile = [wait for moment, wait in waits.items() if moment > before + TTL / 2]
    filling.forget_tasks()
    what = f"{number:,} running tasks of one worker, killed:"
    return {
        f"{what} all ready after their ttl (s)": {"ours": max(0.0, ready)},
        f"{what} all have run after their ttl (s)": {"ours": max(0.0, done)},
        f"{what} other tasks before, p50 (ms)": {"ours": percentile(usual, 50)},
        f"{what} other tasks meanwhile, p50 (ms)": {"ours": percentile(meanwhile, 50)},
        f"{what} other tasks meanwhile, p99 (ms)": {"ours": percentile(meanwhile, 99)},
    }


@contextmanager
def others(bench: Bench) -> Iterator[dict[int, float]]:
    """Send a task to another queue every 50 ms during the block; yields the moment of each."""
    sent: dict[int, float] = {}
    stopping = threading.Event()

    def send() -> None:
        start = time.monotonic()
        for number in count():
            if stopping.wait(max(0.0, start + number * EVERY - time.monotonic())):
                break
            moment = time.monotonic()
            sent[Task.objects.enqueue("bench.clock", {"n": 1}, queue=CALM_QUEUE).pk] = moment
        connections.close_all()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        stopping.set()
        sender.join()


def holds(bench: Bench) -> Figures:
    """Transactions a second of one process, and its share of a core, for each number of holds."""
    figures: Figures = {}
    for number in bench.size.hold_points:
        share, transactions = keeper.measure(bench, number)
        what = f"{number:,} holds, ttl {keeper.TTL:g} s:"
        figures[f"{what} transactions a second"] = {"ours": transactions}
        figures[f"{what} % of a core"] = {"ours": share}
    return figures
