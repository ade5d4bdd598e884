"""Back off services that fail, and decide which failures are logged.

While the database is away every service of a process fails, again and again. The log gets one line
when that begins and one when it has ended; a failure of another kind, which says something else,
gets its own. What is said beyond that is logged as DEBUG.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable
from weakref import WeakSet

from leasing.runtime.clock import system_clock
from leasing.runtime.event_lines import log

#: Names of the errors, in Django and in drivers, that mean the database is down.
AWAY = frozenset({"OperationalError", "InterfaceError", "ConnectionError", "TimeoutError"})


#: Seconds within which every service meets an outage: the slowest looks about once a minute.
TOGETHER = 90.0
#: Seconds between tries: after the first failure, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0


class Outage:
    """From the first failure of a service to the success of the last that failed.

    Who fails later than TOGETHER after the first, or after another has succeeded, begins another:
    one service that keeps failing, for a reason of its own, mutes none of these.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again. In a forked child: the services are the parent's."""
        self._lock = threading.Lock()
        self._spells: list[_Spell] = []

    def failed(self, service: Streak, error: BaseException) -> bool:
        """Note a failure. Return True if nothing of its kind failed in this outage before."""
        kind = _kind(error)
        with self._lock:
            spell = self._spell_of(service) or self._latest() or self._begin()
            is_news = kind not in spell.kinds
            spell.failing.add(service)
            spell.kinds.add(kind)
            return is_news

    def succeeded(self, service: Streak) -> None:
        """Note a success after failures."""
        with self._lock:
            spell = self._spell_of(service)
            if spell is None:  # the failures were the parent's, before a fork
                return
            spell.failing.discard(service)
            spell.is_closed = True
            if spell.failing:
                return
            lasted = system_clock() - spell.since
        log.outage_ended(seconds=lasted)

    def _spell_of(self, service: Streak) -> _Spell | None:
        return next((each for each in self._spells if service in each.failing), None)

    def _latest(self) -> _Spell | None:
        """The one that a service which begins to fail has part in."""
        self._spells = [each for each in self._spells if each.failing]
        latest = self._spells[-1] if self._spells else None
        if latest is None or latest.is_closed or system_clock() - latest.since >= TOGETHER:
            return None
        return latest

    def _begin(self) -> _Spell:
        self._spells.append(_Spell(system_clock()))
        return self._spells[-1]


class _Spell:
    """One outage, while it lasts."""

    def __init__(self, since: float) -> None:
        self.since = since
        # Weak: a service that ended while it failed keeps none from being over.
        self.failing: WeakSet[Streak] = WeakSet()
        self.kinds: set[str] = set()
        #: True if a service has succeeded again.
        self.is_closed = False


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
