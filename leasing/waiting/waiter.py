"""Waiting for a lease: polls with growing, jittered pauses, which a release ends early.

On PostgreSQL a release notifies the waiters, so one of them tries again within milliseconds. On
other databases, and behind poolers that drop notifications, they only poll. Waiters of one process
on one resource take turns: a release wakes one in each process, not all. Where that works, those
behind poll less often, so that hundreds of them send few statements.
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
#: A waiter behind others that poll for it pauses longer, by its place in the line: so many times as
#: long from this place on.
LAST_PLACE = 10
#: Seconds between checks whether the caller was asked to stop.
CHECK_STOP_EVERY = 0.1


def pauses(
    uniform: Callable[[float, float], float] = random.uniform,
    *,
    first: float = FIRST_PAUSE,
    longest: float = MAX_PAUSE,
) -> Iterator[float]:
    """Yield the seconds to wait before each try. The bound doubles from ``first`` up to
    ``longest``; each pause is a random part of it, between a half and all, so that those who wait
    do not stay in step."""
    bound = min(first, longest)
    while True:
        yield bound * uniform(0.5, 1.0)
        bound = min(longest, bound * 2)


class Waiter:
    """One caller that waits for a resource, woken by ``notify``.

    Args:
        until: The moment on the caller's clock at which it gives up; infinity: never.
        stopping: An event that ends the waiting.
        resource: The resource; empty if it waits for something else.
    """

    def __init__(
        self, until: float, stopping: threading.Event | None = None, resource: str = ""
    ) -> None:
        self.until = until
        self.resource = resource
        #: Returns the number of waiters of this process that poll for the same, and more often.
        self.ahead: Callable[[], int] = int
        self._stopping = stopping
        #: Seconds until each poll.
        self.pauses = pauses()
        self.woken = threading.Event()
        self._notified_async: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def stopped(self) -> bool:
        """Return True if the caller was asked to stop waiting."""
        return self._stopping is not None and self._stopping.is_set()

    @property
    def left(self) -> float:
        """Seconds for which the caller still waits."""
        return max(0.0, self.until - clock())

    def notify(self) -> None:
        """Wake the waiter: the resource was released. Call it from any thread."""
        self.woken.set()
        notified = self._notified_async
        if notified is not None:
            loop, event = notified
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

    def end(self) -> None:
        """Have the waiter look once more, and then give up. Call it from any thread."""
        self.until = clock()
        self.notify()

    def wait(self) -> None:
        """Pause until notified, or until it is time for another poll."""
        end = system_clock() + self._next_pause()
        while not self.stopped and (left := end - system_clock()) > 0:
            # A thread cannot wait for two events: it waits for one and polls the other.
            if self.woken.wait(left if self._stopping is None else min(left, CHECK_STOP_EVERY)):
                break
        self.woken.clear()

    async def await_(self) -> None:
        """``wait``, for an event loop."""
        stands_still = clocks.stand_in is not None
        pause = await in_thread(self._next_pause) if stands_still else self._next_pause()
        event = asyncio.Event()
        self._notified_async = asyncio.get_running_loop(), event
        if self.woken.is_set():
            event.set()
        try:
            # wait_for() of Python 3.11 can swallow a cancellation that comes with the notification.
            async with asyncio.timeout(pause):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._notified_async = None
            self.woken.clear()

    def _next_pause(self) -> float:
        pause = next(self.pauses) * min(1 + self.ahead(), LAST_PLACE)
        return _real_pause(min(self.left, pause), self.resource)


class Rest:
    """A pause of ``seconds``, for threads and coroutines; on a thread ``stopping`` ends it."""

    def __init__(self, seconds: float, stopping: threading.Event | None = None) -> None:
        self.seconds = seconds
        self._stopping = threading.Event() if stopping is None else stopping

    def wait(self) -> None:
        self._stopping.wait(_real_pause(self.seconds))

    async def await_(self) -> None:
        """``wait``, for an event loop."""
        await asyncio.sleep(await in_thread(_real_pause, self.seconds))


def _real_pause(seconds: float, resource: str = "") -> float:
    """Return the seconds to wait; fewer in a test that has stopped the clocks."""
    return seconds if clocks.stand_in is None else clocks.stand_in.pause(resource, seconds)
