"""Callbacks and receivers of users, on other threads than those that renew, claim and store.

A thread of a worker runs inside ``apart``: its receivers are called on threads of their own, so
that one that hangs delays only those after it.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log
from leasing.runtime.framework import open_connections

#: Callbacks that may run at a time: others are delayed only if this many are slow.
MAX_THREADS = 16
#: With this many waiting callbacks, code that causes more may have to wait until some are done.
BACKLOG = 1000
#: Seconds after which a callback counts as one that hangs.
HANGS_AFTER = 1.0
#: The greatest number of waiting calls; while receivers hang, further ones are dropped.
MAX_WAITING = 10_000

Callback = Callable[[], object]


class CallbackThreads:
    """Calls callbacks on daemon threads, of which there are MAX_THREADS at most. While there is
    one, they are called in order.

    Args:
        name: The name of the threads.
        patience: Seconds for which all threads have to be busy until another starts; 0: none, so
            that there is one for each callback that waits.
        most: The number of callbacks that may wait. Of more, the newest are dropped, with a line in
            the log.
    """

    def __init__(
        self, name: str = "leasing-callbacks", patience: float = 0.0, most: float = math.inf
    ) -> None:
        self._name = name
        self._patience = patience
        self._most = most
        self._lock = threading.Lock()
        self._callbacks: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
        self._pending = 0
        self._threads: list[threading.Thread] = []
        self._busy_since: dict[threading.Thread, float] = {}
        self._ended_at = float("-inf")
        #: The number of callbacks that were dropped.
        self.dropped = 0

    def call(self, callback: Callback) -> None:
        """Run ``callback`` soon. Its errors are logged."""
        with self._lock:
            if is_full := self._pending >= self._most:
                self.dropped += 1
            else:
                self._callbacks.put(callback)
                self._pending += 1
            self._grow()
        if is_full and self.dropped == 1:
            log.callbacks_dropped(waiting=self._pending)

    @property
    def is_behind(self) -> bool:
        """Return True if BACKLOG wait although callbacks end: not while they hang."""
        return self._pending >= BACKLOG and clock() - self._ended_at < HANGS_AFTER

    def tend(self) -> None:
        """Start threads for callbacks that wait behind others that hang, or whose thread has
        ended."""
        with self._lock:
            self._grow()

    def stop(self, patience: float) -> None:
        """Call what was submitted before, and end; wait for ``patience`` seconds at most."""
        until = clock() + patience
        for _ in self._threads:
            self._callbacks.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - clock()))

    def _grow(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= min(self._pending, MAX_THREADS):
            return
        latest = clock() - self._patience
        busy = [self._busy_since.get(thread, math.inf) <= latest for thread in self._threads]
        if not self._patience or all(busy):
            # At interpreter exit no thread can be started; nobody is left to be told either.
            with contextlib.suppress(RuntimeError):
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _run(self) -> None:
        me = threading.current_thread()
        while (callback := self._callbacks.get()) is not None:
            self._busy_since[me] = clock()
            try:
                self._run_one(callback)
            finally:
                with self._lock:
                    self._pending -= 1
                    self._ended_at = clock()
                    del self._busy_since[me]

    def _run_one(self, callback: Callback) -> None:
        try:
            try:
                callback()
            finally:
                self._tidy()
        except BaseException:  # sys.exit() too: it would end this thread, and no more
            log.hold_callback_failed(exc_info=True)

    def _tidy(self) -> None:
        """Close the connections of this thread, unless more callbacks wait."""
        connections = open_connections()
        if connections is None:
            return
        for connection in connections.all(initialized_only=True):
            left_open = connection.in_atomic_block
            if left_open or self._callbacks.empty():
                connection.close()
            if left_open:
                del connections[connection.alias]  # or it would believe that it is still inside


def receiver_threads() -> CallbackThreads:
    """Threads of a process, for receivers: in order, unless one hangs."""
    return CallbackThreads("receivers", HANGS_AFTER, MAX_WAITING)


class _Here(threading.local):
    callbacks: CallbackThreads | None = None


_here = _Here()


@contextmanager
def apart(callbacks: CallbackThreads | None) -> Iterator[None]:
    """Call receivers on ``callbacks`` rather than on this thread while the block runs; None: on
    this thread."""
    before, _here.callbacks = _here.callbacks, callbacks
    try:
        yield
    finally:
        _here.callbacks = before


def callbacks_here() -> CallbackThreads | None:
    """Return what calls the receivers of what this thread does; None: the thread itself."""
    return _here.callbacks


def call(callback: Callback) -> None:
    """Run ``callback``, which calls users' code: now, or apart from this thread."""
    callbacks = _here.callbacks
    if callbacks is None:
        callback()
    else:
        callbacks.call(callback)
