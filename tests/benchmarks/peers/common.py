"""Code that the adapters share. It runs in the peers' environments: the standard library only.

An adapter has ``prepare()``, ``enqueue(name, **data)``, ``enqueue_many(count)`` or None where the
peer has no such thing, ``left()`` (how many tasks have not ended), ``work()`` (which runs a worker,
for ever) and ``MOST``, as many tasks as are sensible for its speed. Its handlers call ``ran`` and
``noted``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERY = 0.05
WARM_UP = 10
#: Seconds within which everything has to end.
PATIENCE = 120.0

_ran = False


def folder():
    """Return the folder in which workers leave their reports."""
    return Path(os.environ["BENCH_FOLDER"])


def ran():
    """Called by each task that does nothing: tells when this process began with its first."""
    global _ran
    if not _ran:
        _ran = True
        (folder() / f"began-{os.getpid()}").write_text(str(time.monotonic()))
    return {"ok": True}


def noted(key):
    """Called by tasks that tell when they began."""
    with (folder() / "clock").open("a") as file:
        file.write(f"{key} {time.monotonic()}\n")
    return {"ok": True}


def main(adapter):
    """``on_<peer>.py measure SIZES`` prints figures; ``work`` is a worker."""
    if sys.argv[1] == "work":
        adapter.work()
        return
    size = json.loads(sys.argv[2])
    adapter.prepare()
    print(json.dumps(measure(adapter, size)))


def measure(adapter, size):
    """The same names of figures as for ours."""
    count = size["enqueued"]
    start = time.perf_counter()
    for number in range(count):
        adapter.enqueue("nothing", n=number)
    found = {"enqueue one by one (tasks/s)": count / (time.perf_counter() - start)}
    drained(adapter, 1, 0)
    if adapter.enqueue_many:
        bulk = min(size["bulk"], adapter.MOST)
        start = time.perf_counter()
        adapter.enqueue_many(bulk)
        found["bulk enqueue (tasks/s)"] = bulk / (time.perf_counter() - start)
        drained(adapter, 1, 0)
    count = min(size["drained"], adapter.MOST)
    found["drain, 1 worker (tasks/s)"] = drained(adapter, 1, count)
    found["drain, 2 workers (tasks/s)"] = drained(adapter, 2, count)
    waited = latencies(adapter, WARM_UP + max(1, int(size["latency_seconds"] / EVERY)))
    found["enqueue to start, p50 (ms)"] = percentile(waited, 50)
    found["enqueue to start, p95 (ms)"] = percentile(waited, 95)
    return found


def drained(adapter, workers, count):
    """Tasks a second, from the first that begins to the last that has ended."""
    if count and adapter.enqueue_many:
        adapter.enqueue_many(count)
    elif count:
        for number in range(count):
            adapter.enqueue("nothing", n=number)
    with running(workers) as started:
        wait_until_done(adapter, started)
        ended = time.monotonic()
        began = [float(each.read_text()) for each in folder().glob("began-*")]
    return count / (ended - min(began)) if count else 0.0


def latencies(adapter, count):
    """Milliseconds from the call of enqueue to the first line of the handler."""
    with running(1) as started:
        adapter.enqueue("nothing", n=0)
        wait_until_done(adapter, started)
        start, sent = time.monotonic(), {}
        for number in range(count):
            time.sleep(max(0.0, start + number * EVERY - time.monotonic()))
            sent[number] = time.monotonic()
            adapter.enqueue("clock", key=number)
        wait_until_done(adapter, started)
        lines = (folder() / "clock").read_text().split("\n")[:-1]
    began = {int(key): float(moment) for key, moment in map(str.split, lines)}
    return [(began[key] - moment) * 1000 for key, moment in sent.items() if key >= WARM_UP]


def wait_until_done(adapter, started):
    """Until nothing is left, as long as the workers are there."""
    deadline = time.monotonic() + PATIENCE
    while adapter.left():
        if time.monotonic() > deadline or any(each.poll() is not None for each in started):
            sys.exit(f"{adapter.left()} tasks are left, and no worker does them")
        time.sleep(0.02)


@contextlib.contextmanager
def running(workers):
    """Workers, with a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="leasing-bench-") as path:
        os.environ["BENCH_FOLDER"] = path
        command = [sys.executable, sys.argv[0], "work"]
        started = [
            subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
            for _ in range(workers)
        ]
        try:
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def percentile(figures, percent):
    """The smallest of ``figures`` that at least ``percent`` of them do not exceed."""
    return sorted(figures)[max(0, int(-(-len(figures) * percent // 100)) - 1)]
