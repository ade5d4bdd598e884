"""A task of higher priority into a long backlog of short ones, which one worker works on."""

from __future__ import annotations

import time

from tasks.models import Queue, Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, percentile, soon
from tests.benchmarks.workloads.drain import end, fill_paused, start_workers

SECONDS = 0.001
HIGHER = 5
#: Not in step with anything that a worker does.
EVERY = 0.217


def run(bench: Bench) -> Figures:
    """Milliseconds from the call of enqueue to the first line of the handler."""
    fill_paused(bench.size.backlog, Task.objects.enqueue("bench.nap", {"seconds": SECONDS}))
    started = start_workers(bench, 1)
    Queue.objects.resume("default")
    soon(lambda: Task.objects.succeeded().exists(), "the worker works")
    sent = {}
    for _ in range(bench.size.urgent):
        time.sleep(EVERY)
        moment = time.monotonic()
        sent[Task.objects.enqueue("bench.clock", {"n": 1}, priority=HIGHER).pk] = moment
    if not Task.objects.ready().filter(priority=0).exists():
        raise RuntimeError("the backlog was worked off before the last task came")
    urgent = Task.objects.succeeded().filter(pk__in=sent)
    soon(lambda: urgent.count() == len(sent), "the urgent ones are done")
    end(started)
    began = {pk: output["at"] for pk, output in urgent.values_list("pk", "task_output")}
    waits = [(began[pk] - moment) * 1000 for pk, moment in sent.items()]
    filling.forget_tasks()
    what = "priority: a higher one into a backlog"
    return {
        f"{what}, p50 (ms)": {"ours": percentile(waits, 50)},
        f"{what}, max (ms)": {"ours": max(waits)},
    }
