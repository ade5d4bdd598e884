"""What services do while they fail: how long each pauses, and which failures are worth a line.

While the database is away every service of a process fails, again and again. The log gets one line
when that begins and one when it has ended; a failure of another kind, which says something else,
gets its own. What is said beyond that is said to whoever wants it, as DEBUG.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable
from weakref import WeakSet

from leasing.runtime.clock import system_clock
from leasing.runtime.event_logger import EventLogger, get_logger

logger = get_logger("leasing")

#: What errors are called that say that the database is away, in Django and in drivers.
AWAY = frozenset({"OperationalError", "InterfaceError", "ConnectionError", "TimeoutError"})


class Outage:
    """From the first failure of a service to the success of the last that failed."""

    def __init__(self, log: EventLogger = logger) -> None:
        self._log = log
        self.forget()

    def forget(self) -> None:
        """Begin again. In a forked child: the services are the parent's."""
        self._lock = threading.Lock()
        # Weak: a service that ended while it failed keeps none from being over.
        self._failing: WeakSet[Streak] = WeakSet()
        self._kinds: set[str] = set()
        self._since = 0.0

    def failed(self, service: Streak, error: BaseException) -> bool:
        """Note a failure. Return True if nothing of its kind failed in this outage before."""
        kind = _kind(error)
        with self._lock:
            if not self._failing:
                self._since = system_clock()
                self._kinds.clear()
            is_news = kind not in self._kinds
            self._failing.add(service)
            self._kinds.add(kind)
            return is_news

    def succeeded(self, service: Streak) -> None:
        """Note a success after failures."""
        with self._lock:
            self._failing.discard(service)
            if self._failing:
                return
            lasted = system_clock() - self._since
        self._log.info(
            "what failed succeeds again, after %.1f s",
            lasted,
            event="outage.ended",
            seconds=lasted,
        )


#: That of this process.
outage = Outage()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=outage.forget)


class Streak:
    """Failures in a row of one service, which pauses for ``first`` seconds after one, on average
    twice as long after each more, and ``longest`` at most."""

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        outage: Outage = outage,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._first = first
        self._longest = longest
        self._outage = outage
        self._uniform = uniform
        self._failures = 0
        #: How loudly to tell of the latest failure.
        self.level = logging.WARNING

    def failed(self, error: BaseException) -> float:
        """Note a failure. Returns the seconds to pause: drawn, so that those who failed together
        do not come back together."""
        is_news = self._outage.failed(self, error)
        self.level = logging.WARNING if is_news else logging.DEBUG
        bound = min(self._longest, self._first * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return max(self._first / 10, (self._uniform or random.uniform)(0.0, bound))

    def succeeded(self) -> None:
        """Note a success."""
        if self._failures:
            self._failures = 0
            self._outage.succeeded(self)


def _kind(error: BaseException) -> str:
    named = {each.__name__ for each in type(error).__mro__}
    return "away" if named & AWAY else type(error).__name__
