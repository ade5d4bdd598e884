"""An event loop: one thread that waits for descriptors, signals and timers. The parent of a fleet
runs on one, and so do the probes of a worker.

It is not asyncio's, since the parent forks: nothing of it may stay active in a child, which closes
what is registered here (``abandon``) and runs as a worker.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from leasing.runtime.clock import clock
from leasing.runtime.threads import LastingThread
from tasks.log import log

#: Maximum seconds between two readings of the clock: a timeout may not count the time for which the
#: machine was suspended.
LONGEST_WAIT = 5.0


class Readable(Protocol):
    """A socket, or another open file with a descriptor."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Loop:
    """Runs callbacks on the thread that calls ``step``. A callback must return quickly: it blocks
    the others."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        #: Moments, and what is called then; the numbers keep the order of what is due together.
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._signals: dict[int, Callable[[], object]] = {}
        self._before: dict[int, object] = {}
        #: The two ends of the pair into which Python writes the number of each signal.
        self._woken: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._is_abandoned = False

    def add_reader(self, file: Readable, callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever ``file`` is readable or at its end. A forked child closes
        ``file``."""
        self._selector.register(file, selectors.EVENT_READ, callback)

    def remove(self, file: Readable) -> None:
        """Unregister ``file``, which stays open."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, after ``seconds``."""
        heapq.heappush(self._timers, (clock() + seconds, next(self._numbers), callback))

    def repeat(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call ``callback`` now, and then every ``seconds``."""

        def call() -> None:
            self.call_later(seconds, call)
            callback()

        call()

    def step(self) -> None:
        """Wait until a callback is due, and run all that are."""
        wait = LONGEST_WAIT
        if self._timers:
            wait = min(wait, max(0.0, self._timers[0][0] - clock()))
        for key, _ in self._selector.select(wait):
            if self._selector.get_map().get(key.fd) is key:  # no callback has removed it meanwhile
                _call(key.data)
        while self._timers and self._timers[0][0] <= clock():
            _call(heapq.heappop(self._timers)[2])

    # Signals

    def on_signal(self, numbers: Iterable[int], callback: Callable[[], object]) -> None:
        """Call ``callback`` once for each signal of ``numbers`` that arrives."""
        if self._woken is None:
            self._woken, self._waker = socket.socketpair()
            self._woken.setblocking(False)
            self._waker.setblocking(False)
            signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
            self.add_reader(self._woken, self._hear)
        for number in numbers:
            self._signals[number] = callback
            # Not SIG_IGN: started processes would inherit it.
            self._before[number] = signal.signal(number, lambda number, frame: None)

    def _hear(self) -> None:
        assert self._woken is not None
        for number in self._woken.recv(4096):
            if number in self._signals:
                _call(self._signals[number])

    # The end

    def abandon(self) -> None:
        """Close what is registered, and restore the signal handlers. In a forked child this does
        not affect the parent. A second call does nothing."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        if self._waker is not None:
            signal.set_wakeup_fd(-1)  # it returns -1 in a child that Python 3.12 has forked
            for number, handler in self._before.items():
                signal.signal(number, handler or signal.SIG_DFL)  # type: ignore[arg-type]
            self._waker.close()
        files = [key.fileobj for key in self._selector.get_map().values()]
        # First: a file closed before it would stay in the selector that the parent shares.
        self._selector.close()
        for file in files:
            file.close()  # type: ignore[union-attr]
        self._timers.clear()


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # the others are due as well
        log.loop_callback_failed(exc_info=True)


class LoopThread(LastingThread):
    """A thread that runs a ``loop`` until ``ended`` is set. At least one callback has to repeat,
    as often as ``ended`` is to be observed."""

    def __init__(self, name: str, ended: threading.Event) -> None:
        super().__init__(name, self._run_loop)
        self.loop = Loop()
        self._ended = ended

    def _run_loop(self) -> None:
        while not self._ended.is_set():
            self.loop.step()
        self.loop.abandon()
