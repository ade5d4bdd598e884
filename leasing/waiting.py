"""Waiting for a lease: polls with growing, jittered pauses, and hears of releases.

On PostgreSQL a release is notified to those who wait, so a waiter tries again within
milliseconds. Elsewhere, and behind poolers that swallow notifications, the polls alone serve.
Waiters of one process on one resource take turns: a release wakes one of each process, not all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator

from leasing.runtime import clock as clocks
from leasing.runtime.aio import in_thread
from leasing.runtime.clock import clock, system_clock

#: Pauses between polls, in seconds: the first, and the longest.
FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0
#: Seconds between looks whether the caller was asked to stop.
CHECK_STOP_EVERY = 0.1


def pauses(
    uniform: Callable[[float, float], float] = random.uniform, longest: float = MAX_PAUSE
) -> Iterator[float]:
    """Seconds to wait before each next poll: doubling from FIRST_PAUSE up to ``longest``, of which
    each takes a random part between a half and all, so that waiters don't stay in step."""
    bound = FIRST_PAUSE
    while True:
        yield bound * uniform(0.5, 1.0)
        bound = min(longest, bound * 2)


class Waiter:
    """One caller that waits for ``resource``, woken by ``notify``."""

    def __init__(
        self, until: float, stopping: threading.Event | None = None, resource: str = ""
    ) -> None:
        self.until = until
        self.resource = resource
        self._stopping = stopping
        self._pauses = pauses()
        self._notified = threading.Event()
        self._notified_async: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def stopped(self) -> bool:
        """Return True if the caller was asked to stop waiting."""
        return self._stopping is not None and self._stopping.is_set()

    @property
    def left(self) -> float:
        """Seconds for which the caller goes on waiting."""
        return max(0.0, self.until - clock())

    def notify(self) -> None:
        """The resource was released. From any thread."""
        self._notified.set()
        notified = self._notified_async
        if notified is not None:
            loop, event = notified
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

    def wait(self) -> None:
        """Pause until notified, or until it is time for another poll."""
        end = system_clock() + self._next_pause()
        while not self.stopped and (left := end - system_clock()) > 0:
            # Nothing wakes a thread at the first of two events: it looks after the other.
            if self._notified.wait(left if self._stopping is None else min(left, CHECK_STOP_EVERY)):
                break
        self._notified.clear()

    async def await_(self) -> None:
        """``wait``, for an event loop."""
        stands_still = clocks.stand_in is not None
        pause = await in_thread(self._next_pause) if stands_still else self._next_pause()
        event = asyncio.Event()
        self._notified_async = asyncio.get_running_loop(), event
        if self._notified.is_set():
            event.set()
        try:
            # wait_for() of Python 3.11 can swallow a cancellation that comes with the notification.
            async with asyncio.timeout(pause):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._notified_async = None
            self._notified.clear()

    def _next_pause(self) -> float:
        return _in_earnest(min(self.left, next(self._pauses)), self.resource)


class Rest:
    """A pause of ``seconds``, for threads and coroutines; on a thread ``stopping`` ends it."""

    def __init__(self, seconds: float, stopping: threading.Event | None = None) -> None:
        self.seconds = seconds
        self._stopping = stopping or threading.Event()

    def wait(self) -> None:
        self._stopping.wait(_in_earnest(self.seconds))

    async def await_(self) -> None:
        """``wait``, for an event loop."""
        await asyncio.sleep(await in_thread(_in_earnest, self.seconds))


def _in_earnest(seconds: float, resource: str = "") -> float:
    """Seconds to wait; fewer in a test that has stopped the clocks."""
    return seconds if clocks.stand_in is None else clocks.stand_in.pause(resource, seconds)
