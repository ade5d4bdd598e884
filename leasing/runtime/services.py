"""Services: work that a process repeats.

A service *ticks*: it does a little, and returns the seconds until its next tick. Services that
share a thread, and its connection, take turns. So a tick lasts about a second at most: longer work
is split into ticks, or has a thread of its own. A tick that fails is tried again after a pause (see
``leasing.runtime.threads``); it does not end the service or delay the others of its thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from django.db import Error, close_old_connections, connections

from leasing.runtime.clock import system_clock
from leasing.runtime.threads import LONGEST_PAUSE, Streak

#: Seconds after which a tick that has more to do leaves it to the next.
LONGEST_TICK = 1.0


class Service:
    """Calls ``tick`` again and again.

    Args:
        tick: returns the seconds until its next call.
        failed: the event that logs a failure.
        close: called once after the last tick; it logs its own failures.
        starts_in: seconds until the first tick.
        longest: seconds between tries at most, when it fails again and again.
        expected: errors that are no bugs. They are logged as part of an outage; others with a
            traceback, each time.
        survives: errors after which it is tried again; others are raised.
    """

    def __init__(
        self,
        tick: Callable[[], float],
        failed: Callable[..., object],
        *,
        close: Callable[[], object] | None = None,
        starts_in: float = 0.0,
        longest: float = LONGEST_PAUSE,
        expected: tuple[type[Exception], ...] = (Error,),
        survives: tuple[type[Exception], ...] = (Exception,),
    ) -> None:
        self.close = close
        self.starts_in = starts_in
        self.failures = Streak(longest=longest)
        #: The moment, on the system's clock, at which the latest tick began; None before the first.
        self.began_at: float | None = None
        self.is_ticking = self.has_succeeded = False
        self._tick = tick
        self._failed = failed
        self._expected, self._survives = expected, survives

    def step(self) -> float:
        """Tick once. Returns the seconds until the next tick."""
        self.began_at, self.is_ticking = system_clock(), True
        try:
            close_old_connections()
            pause = self._tick()
        except self._survives as error:
            return self.fail(error)
        finally:
            self.is_ticking = False
        self.failures.succeeded()
        self.has_succeeded = True
        return pause

    @property
    def is_failing(self) -> bool:
        """Return True if the latest tick failed."""
        return self.failures.count > 0

    def fail(self, error: Exception) -> float:
        """Note and log the failure of a tick, or of what was tried in its place. Returns the
        seconds until the next try."""
        pause = self.failures.failed(error)
        if isinstance(error, Error):
            connections.close_all()
        is_expected = isinstance(error, self._expected)
        self._failed(
            level=self.failures.level if is_expected else logging.ERROR,
            pause_seconds=pause,
            error=error,
            exc_info=None if is_expected else error,
        )
        return pause


def run_services(
    services: Sequence[Service],
    ended: threading.Event,
    after_each: Callable[[], object] = lambda: None,
    moves: Callable[[Service, float], bool] = lambda service, pause: False,
) -> None:
    """Tick each of ``services`` when it is due, until ``ended``; then close them.

    Args:
        services: The services that share this thread.
        ended: Set when they are to end.
        after_each: Called after every tick.
        moves: Called with a service whose tick took longer than LONGEST_TICK, and the seconds until
            it is due. If it returns True, another thread goes on with the service.
    """
    now = system_clock()
    due_at = {service: now + service.starts_in for service in services}
    while due_at and not ended.is_set():
        service = min(due_at, key=due_at.__getitem__)
        if ended.wait(max(0.0, due_at[service] - system_clock())):
            break
        began_at = system_clock()
        pause = service.step()
        now = system_clock()
        due_at[service] = pause + now
        if now - began_at > LONGEST_TICK and moves(service, pause):
            del due_at[service]
        after_each()
    for service in due_at:
        if service.close is not None:
            service.close()
    connections.close_all()
