"""A child: a worker process that reports to a parent and follows its orders, over a channel:
reports are lines of JSON, orders single bytes.

The parent stops it over the channel. It also handles SIGTERM, which may be sent to one child, or to
all processes of a service: a SIGTERM in addition to the parent's order does not count as a second
signal. Ctrl-C reaches the whole process group of the terminal, so only the parent handles it. When
the parent exits, the channel closes and the child stops.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from leasing.runtime.clock import clock
from leasing.runtime.shutdown import on_stop_signal
from leasing.runtime.threads import start_thread
from tasks.fleet.start import ChildContext
from tasks.log import log
from tasks.runtime import marks
from tasks.worker.process import WorkerProcess

#: Orders of the parent: stop when the running tasks have ended; stop without waiting for them.
STOP, STOP_NOW = b"s", b"h"
#: Seconds between two reports of a child: once it is ready, and before.
REPORT_EVERY, READY_EVERY = 1.0, 0.05


class StopRequests:
    """Turns orders and signals into calls of ``stop``; the second call does not wait for tasks."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._stopped = 0
        self._signals = 0

    def on_signal(self) -> None:
        """Stop on the first signal; on the second, do not wait for tasks."""
        with self._lock:
            self._signals += 1
            self._reach(self._signals)

    def on_order(self, word: bytes) -> None:
        """Carry out an order of the parent."""
        with self._lock:
            self._reach(2 if word == STOP_NOW else 1)

    def _reach(self, times: int) -> None:
        while self._stopped < min(2, times):
            self._stopped += 1
            self._stop()


@contextmanager
def reporting(context: ChildContext, worker: WorkerProcess) -> Iterator[None]:
    """Make this process the child of a fleet during the block: it marks its tasks, sends reports
    and follows orders."""
    requests = StopRequests(worker.stop)
    marks.current = context.marks
    start_thread("fleet", lambda: _report_and_obey(context, worker, requests))
    with on_stop_signal(requests.on_signal, numbers=(signal.SIGTERM,)):
        try:
            yield
        finally:
            # It may have become ready and exited since its latest report: not a failed start.
            with suppress(OSError):
                _report(context, worker)


def _report(context: ChildContext, worker: WorkerProcess) -> bool:
    """Send a report. Return True if it is ready. Raises OSError if the parent has exited."""
    try:
        vitals = worker.vitals()
    except Exception:  # the channel is for orders, too
        log.fleet_report_failed(worker=context.name, exc_info=True)
        return False
    context.channel.sendall(json.dumps(vitals).encode() + b"\n")
    return bool(vitals["ready"])


def _report_and_obey(context: ChildContext, worker: WorkerProcess, requests: StopRequests) -> None:
    channel, due_at = context.channel, clock()
    while True:
        try:
            if clock() >= due_at:
                # The parent must know soon that it is ready: an exit before that is a failed start.
                due_at = clock() + (REPORT_EVERY if _report(context, worker) else READY_EVERY)
            channel.settimeout(max(0.001, due_at - clock()))
            words = channel.recv(64)
        except TimeoutError:
            continue
        except OSError:
            words = b""
        if not words:
            log.fleet_parent_gone(worker=context.name)
            requests.on_order(STOP)
            return
        for word in words:
            requests.on_order(bytes([word]))
