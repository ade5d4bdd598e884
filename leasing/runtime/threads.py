"""Threads that must not die, and what delays none of them.

Threads that last are watched by others and started again when they have ended. Callbacks and
receivers of users run on other threads than those that renew, claim and store: a thread of a worker
runs inside ``apart``, so a receiver that hangs delays only those after it.

Services that fail back off, and an outage decides which failures are logged. While the database is
away every service of a process fails, again and again. The log gets one line when that begins and
one when it has ended; a failure of another kind, which says something else, gets its own. Whatever
else fails is logged as DEBUG.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from leasing.runtime.clock import clock, system_clock
from leasing.runtime.event_lines import log
from leasing.runtime.framework import open_connections

#: The number of times that a thread of this process ended before its work did, by its name.
replaced: Counter[str] = Counter()


def start_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """A daemon thread that has begun to ``work``. Raises RuntimeError where there can be none."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def note_replaced(name: str) -> None:
    """Log and count that the thread called ``name`` had ended, and was started again."""
    replaced[name] += 1
    log.thread_replaced(thread_name=name)


class LastingThread:
    """A daemon thread that does ``work``, until that returns: its watcher calls ``ensure_running``
    now and then."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self._work = work
        self._thread: threading.Thread | None = None
        self._starts = threading.Lock()
        self._is_done = False
        #: True if there could be no thread more when it was last to be started.
        self.start_failed = False

    def ensure_running(self) -> None:
        """Start it if it does not run, unless its work is done. Where there can be no thread more
        the next call tries again. Any thread may call this."""
        with self._starts:
            if self._is_done or self.is_alive():
                return
            ended = self._thread
            try:
                self._thread = start_thread(self.name, self._run)
            except RuntimeError as error:
                if not self.start_failed:
                    log.thread_not_started(thread_name=self.name, error=error)
                self.start_failed = True
                return
            self.start_failed = False
        if ended is not None:
            note_replaced(self.name)

    def is_alive(self) -> bool:
        """Return True while it runs."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def join(self, patience: float) -> None:
        """Wait for its end, for ``patience`` seconds at most."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)

    def _run(self) -> None:
        self._work()
        self._is_done = True


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

    def ensure_running(self) -> None:
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


def call_apart(callback: Callback) -> None:
    """Run ``callback``, which calls users' code: now, or apart from this thread."""
    callbacks = _here.callbacks
    if callbacks is None:
        callback()
    else:
        callbacks.call(callback)


#: Names of the errors, in Django and in drivers, that mean the database is down.
AWAY = frozenset({"OperationalError", "InterfaceError", "ConnectionError", "TimeoutError"})


#: Seconds within which every service meets an outage: the slowest looks about once a minute.
TOGETHER = 90.0
#: Seconds between tries: after the first failure, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0


class Outage:
    """From the first failure of a service to the success of the last that failed.

    A failure that begins more than TOGETHER seconds later, or after any service has recovered,
    counts as a new outage, so a service that always fails does not silence the others.
    """

    def __init__(self, clock: Callable[[], float] = system_clock) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Begin again. In a forked child: the services are the parent's."""
        self._lock = threading.Lock()
        #: The spell of each service that fails. Weak: one that ended while it failed keeps none
        #: from being over.
        self._spells: WeakKeyDictionary[Streak, _Spell] = WeakKeyDictionary()

    def failed(self, service: Streak, error: BaseException) -> bool:
        """Note a failure. Return True if nothing of its kind failed in this outage before."""
        kind = _kind(error)
        with self._lock:
            if service not in self._spells:
                self._spells[service] = self._current()
            kinds = self._spells[service].kinds
            is_news = kind not in kinds
            kinds.add(kind)
            return is_news

    def succeeded(self, service: Streak) -> None:
        """Note a success after failures."""
        with self._lock:
            spell = self._spells.pop(service, None)
            if spell is None:  # the failures were the parent's, before a fork
                return
            spell.is_closed = True
            if spell in self._spells.values():
                return
            lasted = self._clock() - spell.since
        log.outage_ended(seconds=lasted)

    def _current(self) -> _Spell:
        """Return the spell of a service that begins to fail: the latest, or a new one."""
        now = self._clock()
        latest = max(self._spells.values(), key=lambda spell: spell.since, default=None)
        if latest is None or latest.is_closed or now - latest.since >= TOGETHER:
            return _Spell(now)
        return latest


@dataclass(eq=False)
class _Spell:
    """One outage, while it lasts."""

    since: float
    #: The kinds of its failures.
    kinds: set[str] = field(default_factory=set)
    #: True if a service has succeeded again.
    is_closed: bool = False


#: The outage of this process.
outage = Outage()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=outage.forget)


class Streak:
    """Failures in a row of one service, with the pause after each.

    Args:
        first: The upper bound in seconds after one failure; it doubles with each more.
        longest: The upper bound in seconds after many.
        outage: The outage of this process, which tells news from repetitions in the log.
        uniform: Draws the pause between 0 and that bound; at random by default.
    """

    def __init__(
        self,
        first: float = FIRST_PAUSE,
        longest: float = LONGEST_PAUSE,
        *,
        outage: Outage = outage,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._first = first
        self._longest = longest
        self._outage = outage
        self._uniform = uniform
        #: The number of failures.
        self.count = 0
        #: The log level of the latest failure.
        self.level = logging.WARNING

    def failed(self, error: BaseException) -> float:
        """Note a failure. Returns the seconds to pause: drawn, so that services that failed
        together do not come back together."""
        is_news = self._outage.failed(self, error)
        self.level = logging.WARNING if is_news else logging.DEBUG
        bound = min(self._longest, self._first * 2.0 ** min(self.count, 16))
        self.count += 1
        return max(self._first / 10, (self._uniform or random.uniform)(0.0, bound))

    def succeeded(self) -> None:
        """Note a success."""
        if self.count:
            self.count = 0
            self._outage.succeeded(self)


def _kind(error: BaseException) -> str:
    named = {each.__name__ for each in type(error).__mro__}
    return "away" if named & AWAY else type(error).__name__
