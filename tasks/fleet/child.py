"""A child: a worker process that reports to a parent and follows its orders.

The parent stops it over the channel. It also handles SIGTERM, which may be sent to one child, or to
all processes of a service: a SIGTERM in addition to the parent's order does not count as a second
signal. Ctrl-C reaches the whole process group of the terminal, so only the parent handles it. When
the parent exits, the channel closes and the child stops.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from leasing.runtime.clock import clock
from leasing.runtime.shutdown import on_stop_signal
from leasing.runtime.threads import start_thread
from tasks.fleet.channel import READY_EVERY, REPORT_EVERY, STOP, STOP_NOW, send_report
from tasks.fleet.child_start import ChildContext
from tasks.log import log
from tasks.runtime import marks


class Stoppable(Protocol):
    """A worker process."""

    def stop(self) -> None: ...

    def vitals(self) -> Mapping[str, Any]: ...


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
            self._reach(min(2, self._signals))

    def on_order(self, word: bytes) -> None:
        """Carry out an order of the parent."""
        with self._lock:
            self._reach(2 if word == STOP_NOW else 1)

    def _reach(self, times: int) -> None:
        while self._stopped < times:
            self._stopped += 1
            self._stop()


@contextmanager
def reporting(context: ChildContext, worker: Stoppable) -> Iterator[None]:
    """Make this process the child of a fleet during the block: it marks its tasks, sends reports
    and follows orders."""
    requests = StopRequests(worker.stop)
    marks.current = context.marks
    start_thread("fleet", lambda: _report(context, worker, requests))
    with on_stop_signal(requests.on_signal, numbers=(signal.SIGTERM,)):
        try:
            yield
        finally:
            # It may have become ready and exited since its latest report: not a failed start.
            with suppress(OSError):
                send_report(context.channel, _vitals(context, worker))


def _vitals(context: ChildContext, worker: Stoppable) -> Mapping[str, Any]:
    try:
        return worker.vitals()
    except Exception:  # the channel is for orders, too
        log.fleet_report_failed(worker=context.name, exc_info=True)
        return {}


def _report(context: ChildContext, worker: Stoppable, requests: StopRequests) -> None:
    channel, due_at = context.channel, clock()
    while True:
        try:
            if clock() >= due_at:
                vitals = _vitals(context, worker)
                # The parent must know soon that it is ready: an exit before that is a failed start.
                due_at = clock() + (REPORT_EVERY if vitals.get("ready") else READY_EVERY)
                if vitals:
                    send_report(channel, vitals)
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
