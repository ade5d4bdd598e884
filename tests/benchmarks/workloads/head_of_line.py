"""Short tasks behind long ones: four of 2 s and 196 of 1 ms, at once, into two idle workers.

The long ones come first. With eight slots in all, four are free of them.
"""

from __future__ import annotations

import time

from django.db import transaction

from tasks.models import Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, percentile, soon
from tests.benchmarks.workloads.drain import end, start_workers

LONG, SHORT = {"seconds": 2.0}, {"seconds": 0.001}
LONG_ONES, SHORT_ONES = 4, 196
WORKERS = 2


def run(bench: Bench) -> Figures:
    """Milliseconds from the call of enqueue to the first line of a short task's handler."""
    started = start_workers(bench, WORKERS)
    Task.objects.enqueue_many("bench.nap", [SHORT] * SHORT_ONES)
    wait_for_all()  # so that the workers know such tasks, and have prepared their statements
    # All together: whether the worker that gets the long ones also gets short ones is chance.
    waits = [wait for _ in range(2 * bench.size.rounds) for wait in once()]
    end(started)
    filling.forget_tasks()
    what = "head of line: short tasks wait behind long ones"
    return {
        f"{what}, p50 (ms)": {"ours": percentile(waits, 50)},
        f"{what}, p95 (ms)": {"ours": percentile(waits, 95)},
    }


def once() -> list[float]:
    """Milliseconds that each short task waits."""
    sent = time.monotonic()
    with transaction.atomic():
        Task.objects.enqueue_many("bench.nap", [LONG] * LONG_ONES)
        short = {task.pk for task in Task.objects.enqueue_many("bench.nap", [SHORT] * SHORT_ONES)}
    wait_for_all()
    outputs = Task.objects.filter(pk__in=short).values_list("task_output", flat=True)
    return [(output["at"] - sent) * 1000 for output in outputs if output is not None]


def wait_for_all() -> None:
    """Until all tasks have succeeded."""
    soon(lambda: not Task.objects.exclude(pk__in=Task.objects.succeeded()).exists(), "all are done")
