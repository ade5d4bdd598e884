"""The threads of a process that its services share, and one that watches over all of them.

    services   tick on threads with a lasting connection each. Several may share one; a service
               that turns out to take long gets its own, so that no other waits for it again
    watcher    looks once a second, and starts again whichever of these has ended, and whatever
               else of the process it was given to watch
    any        looks after the watcher after each tick, so that none is unwatched

Receivers of users are called by ``callbacks``, so one that hangs holds up no service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from leasing.db.connection_watchdog import answers
from leasing.runtime.clock import clock
from leasing.runtime.services import Service, run_services
from leasing.runtime.threads import LastingThread, apart, receiver_threads
from tasks.log import log
from tasks.runtime.connection import LIMIT, lasting_connection
from tasks.runtime.timing import USUAL, Timing

#: Seconds that ``stop`` waits for what services have to do at their end.
PATIENCE = 5.0
_NONE: Mapping[str, Service] = {}


class Watched(Protocol):
    """A thread, or threads, that can end before their work."""

    def ensure_running(self) -> None:
        """Start again what has ended before its work."""


class ServiceThreads:
    """Runs services until ``ended``; ``watched`` is watched along with their threads."""

    def __init__(self, ended: threading.Event, *watched: Watched, timing: Timing = USUAL) -> None:
        self.ended = ended
        self._tend_every = timing.tend_every
        self.callbacks = receiver_threads()
        self._threads: list[LastingThread] = []
        self._closing: list[LastingThread] = []
        all_watched: list[Watched] = [self, self.callbacks, answers, *watched]
        watching = [self._watching(each) for each in all_watched]
        #: The first service of the watcher, which ticks as long as that goes on.
        self.watching = watching[0]
        self._watcher = self._thread("watcher", watching, limited_by=LIMIT)

    def start(
        self,
        name: str,
        *services: Service,
        quick: Mapping[str, Service] = _NONE,
        limited_by: str = LIMIT,
    ) -> None:
        """Run services on one thread.

        Args:
            name: The name of the thread.
            services: Those that stay there.
            quick: Those that move to a thread of their own, of this name, after a tick that took
                too long.
            limited_by: The setting that says when the connection is cut off.
        """
        all_of_it = [*services, *quick.values()]
        own = {service: name for name, service in quick.items()}

        def moves(service: Service, pause: float) -> bool:
            if service not in own:
                return False
            all_of_it.remove(service)  # also where the thread is started again
            service.starts_in = pause
            self.start(own[service], service, limited_by=limited_by)
            return True

        thread = self._thread(name, all_of_it, self._watcher.ensure_running, limited_by, moves)
        self._threads.append(thread)
        if any(service.close for service in all_of_it):
            self._closing.append(thread)
        thread.ensure_running()
        self._watcher.ensure_running()

    def ensure_running(self) -> None:
        """Start again the threads of services that have ended."""
        for thread in list(self._threads):
            thread.ensure_running()

    def stop(self) -> None:
        """End all of them, and call back what is left to be."""
        self.ended.set()
        self.join()
        self.callbacks.stop(PATIENCE)

    def join(self) -> None:
        """Wait a while for the services that have something to close: they have ``ended``."""
        until = clock() + PATIENCE
        for thread in self._closing:
            thread.join(max(0.0, until - clock()))

    def _watching(self, each: Watched) -> Service:
        def look() -> float:
            each.ensure_running()
            return self._tend_every

        return Service(look, log.worker_tending_failed, longest=self._tend_every)

    def _thread(
        self,
        name: str,
        services: Sequence[Service],
        after_each: Callable[[], object] = lambda: None,
        limited_by: str = LIMIT,
        moves: Callable[[Service, float], bool] = lambda service, pause: False,
    ) -> LastingThread:
        def work() -> None:
            with lasting_connection(self.ended, limited_by=limited_by), apart(self.callbacks):
                run_services(services, self.ended, after_each, moves)

        return LastingThread(name, work)
