"""Code that the adapters share. It runs in the peers' environments: the standard library only.

An adapter has ``prepare()``, ``enqueue(name, **data)``, ``enqueue_many(count)`` or None where the
peer has no such thing, ``left()`` (how many tasks have not ended), ``work()`` (which runs a worker,
for ever) and ``MOST``, as many tasks as are sensible for its speed. Its handlers call ``ran`` and
``noted``. ``common.mjs`` is the same for Node.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path

#: Of each thread, which need not share it.
_own = threading.local()


def folder():
    """Return the folder in which workers leave their reports."""
    return Path(os.environ["BENCH_FOLDER"])


def ran():
    """Called by each task of one system call: says when this thread began with its first, and
    how many there were so far."""
    try:
        count = _own.count
    except AttributeError:
        count = _own.count = _begin()
    os.access("/", os.F_OK)
    count[0] += 1
    return {"ok": True}


def _begin():
    thread = f"{os.getpid()}-{threading.get_ident()}"
    (folder() / f"began-{thread}").write_text(str(time.monotonic()))
    with (folder() / f"count-{thread}").open("w+b") as file:
        file.truncate(8)
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")


def noted(key):
    """Called by tasks that tell when they began."""
    with (folder() / "clock").open("a") as file:
        file.write(f"{key} {time.monotonic()}\n")
    return {"ok": True}


def main(adapter):
    """With ``work`` be a worker; otherwise do as each line of the input says, and answer."""
    if sys.argv[1:] == ["work"]:
        adapter.work()
        return
    adapter.prepare()
    answer(adapter.MOST)
    for line in sys.stdin:
        order, *values = line.split()
        answer(ORDERS[order](adapter, *map(float, values)))


def answer(value):
    """One line."""
    print(json.dumps(value), flush=True)


def enqueue(adapter, count):
    """Seconds for ``count`` tasks, one by one."""
    start = time.perf_counter()
    for number in range(int(count)):
        adapter.enqueue("nothing", n=number)
    return time.perf_counter() - start


def enqueue_many(adapter, count):
    """Seconds for ``count`` tasks, many at once; None where there is no such thing."""
    if adapter.enqueue_many is None:
        return None
    start = time.perf_counter()
    adapter.enqueue_many(int(count))
    return time.perf_counter() - start


def clock(adapter, count, every):
    """The moments at which tasks were sent, one ``every`` so many seconds."""
    start, sent = time.monotonic(), []
    for number in range(int(count)):
        time.sleep(max(0.0, start + number * every - time.monotonic()))
        sent.append(time.monotonic())
        adapter.enqueue("clock", key=number)
    return sent


ORDERS = {
    "enqueue": enqueue,
    "enqueue_many": enqueue_many,
    "clock": clock,
    "left": lambda adapter: adapter.left(),
}
