"""A child: a worker process that reports to a parent and obeys it.

It is told to stop over the channel. SIGTERM is for whoever sends it to one child, or to all
processes of a service: one SIGTERM in addition to the parent's order is no second signal. Ctrl-C
reaches the whole group of the terminal, so the parent alone minds it. When the parent is gone the
channel ends, and the child stops.
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
from tasks.fleet.birth import Birth
from tasks.fleet.channel import HURRY, READY_EVERY, REPORT_EVERY, STOP, send_report
from tasks.log import log
from tasks.runtime import marks


class Stoppable(Protocol):
    """A worker process."""

    def stop(self) -> None: ...

    def vitals(self) -> Mapping[str, Any]: ...


class Obedience:
    """Turns orders and signals into ``stop``, which does not wait when it is called twice."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._stopped = 0
        self._signals = 0

    def hear_signal(self) -> None:
        """Stop; at the second signal, at once."""
        with self._lock:
            self._signals += 1
            self._reach(min(2, self._signals))

    def hear_order(self, word: bytes) -> None:
        """Do as the parent says."""
        with self._lock:
            self._reach(2 if word == HURRY else 1)

    def _reach(self, times: int) -> None:
        while self._stopped < times:
            self._stopped += 1
            self._stop()


@contextmanager
def reporting(birth: Birth, worker: Stoppable) -> Iterator[None]:
    """A block in which this process is the child of a fleet: its tasks are marked, it reports, and
    it obeys."""
    obedience = Obedience(worker.stop)
    marks.current = birth.marks
    start_thread("fleet", lambda: _report(birth, worker, obedience))
    with on_stop_signal(obedience.hear_signal, numbers=(signal.SIGTERM,)):
        try:
            yield
        finally:
            # It may have served and ended since its latest report, which was no failed start.
            with suppress(OSError):
                send_report(birth.channel, _vitals(birth, worker))


def _vitals(birth: Birth, worker: Stoppable) -> Mapping[str, Any]:
    try:
        return worker.vitals()
    except Exception:  # the channel is for orders, too
        log.fleet_report_failed(worker=birth.name, exc_info=True)
        return {}


def _report(birth: Birth, worker: Stoppable, obedience: Obedience) -> None:
    channel, due_at = birth.channel, clock()
    while True:
        try:
            if clock() >= due_at:
                vitals = _vitals(birth, worker)
                # The parent is to know soon when it serves: an end before that is a failed start.
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
            log.fleet_parent_gone(worker=birth.name)
            obedience.hear_order(STOP)
            return
        for word in words:
            obedience.hear_order(bytes([word]))
