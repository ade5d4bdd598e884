"""From the call of enqueue to the first line of the handler, at twenty tasks a second.

One worker is idle otherwise. All processes of a machine share its monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tasks.models import Task
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, percentile, soon
from tests.benchmarks.plain import queue
from tests.benchmarks.workloads.drain import end, start_workers

EVERY = 0.05
#: Tasks that are not counted: the first ones find cold caches and nothing prepared.
WARM_UP = 10

P50, P95 = "enqueue to start, p50 (ms)", "enqueue to start, p95 (ms)"


def run(bench: Bench) -> Figures:
    """Milliseconds."""
    count = WARM_UP + max(1, int(bench.size.latency_seconds / EVERY))
    plain, own = limit(bench, count), ours(bench, count)
    return {
        P50: {"limit": percentile(plain, 50), "ours": percentile(own, 50)},
        P95: {"limit": percentile(plain, 95), "ours": percentile(own, 95)},
    }


def ours(bench: Bench, count: int) -> list[float]:
    """Milliseconds of each task."""
    started = start_workers(bench, 1)
    sent = at_pace(lambda: int(Task.objects.enqueue("bench.clock", {"n": 1}).pk), count)
    succeeded = Task.objects.succeeded()
    soon(lambda: succeeded.count() >= count, "all tasks have succeeded")
    end(started)
    began = {pk: output["at"] for pk, output in succeeded.values_list("pk", "task_output")}
    filling.forget_tasks()
    return waited(sent, began)


def limit(bench: Bench, count: int) -> list[float]:
    """Milliseconds of each task, with a plain loop that waits for notifications."""
    with queue.connect(bench.url) as plain:
        queue.create(plain)
        plain.execute("TRUNCATE plain_queue")
        puppet = bench.puppet("plain.worker")
        puppet.tell("listen")
        time.sleep(0.2)
        sent = at_pace(lambda: queue.enqueue(plain, queue.INSERT_AND_TELL, "clock"), count)
        soon(lambda: _done(plain) >= count, "all tasks of the plain loop are done")
        rows: Any = plain.execute("SELECT id, (result->>'at')::float FROM plain_queue")
        began = dict(rows.fetchall())
        puppet.kill()
        puppet.end()
    return waited(sent, began)


def at_pace(enqueue: Callable[[], int], count: int) -> dict[int, float]:
    """Return the moment at which each task was sent, by its key."""
    sent = {}
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number * EVERY - time.monotonic()))
        moment = time.monotonic()
        sent[enqueue()] = moment
    return sent


def waited(sent: dict[int, float], began: dict[int, float]) -> list[float]:
    """Milliseconds between the two, without those of the beginning."""
    return [(began[key] - moment) * 1000 for key, moment in list(sent.items())[WARM_UP:]]


def _done(plain: queue.Connection) -> int:
    row: Any = plain.execute("SELECT count(*) FROM plain_queue WHERE done_at IS NOT NULL")
    return int(row.fetchone()[0])
