"""Listens on PostgreSQL's channel of releases: one thread and one connection of its own.

The connection is opened when the first caller waits and closed soon after the last stopped. A
notification that is missed meanwhile costs a poll. Behind a pooler in transaction mode LISTEN
succeeds and nothing ever arrives: so each connection is tried out first, over another one, and
without an answer the polls alone serve for a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from leasing.db.notifications import CHANNEL, Notifications, can_listen, listening, notify_trial
from leasing.runtime import clock
from leasing.runtime.event_lines import log
from leasing.runtime.services import Service
from leasing.runtime.threads import start_thread

#: Seconds between looks whether anybody still waits.
CHECK_EVERY = 1.0
#: Seconds in which what was sent to try a connection out has to arrive, and for which nobody
#: listens when it did not.
ARRIVAL, DEAFNESS = 5.0, 300.0


class Listener:
    """Passes the notifications of the database ``using`` to ``hear`` while ``is_wanted``, which
    is asked under ``lock``."""

    def __init__(
        self,
        using: str,
        hear: Callable[[str], object],
        is_wanted: Callable[[], bool],
        lock: threading.Lock,
        channel: str = CHANNEL,
    ) -> None:
        self.using = using
        self._hear = hear
        self._is_wanted = is_wanted
        self._lock = lock
        self._channel = channel
        self._thread: threading.Thread | None = None
        self._service = Service(self._listen_once, log.notifications_failed, expected=(Exception,))
        #: Until when nobody listens, since nothing arrives.
        self._deaf_until = 0.0
        #: True while it listens and notifications are known to arrive.
        self.arrives = False

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Listen from now on, where that is possible. To be called under the lock."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._hears and can_listen(self.using):
            with suppress(RuntimeError):  # there can be no thread more: waiters poll
                self._thread = start_thread("leasing-listener", self._listen)

    @property
    def _hears(self) -> bool:
        return clock.system_clock() >= self._deaf_until

    def _listen(self) -> None:
        while self._goes_on():
            time.sleep(self._service.step())

    def _listen_once(self) -> float:
        try:
            return self._listen_until_unwanted()
        finally:
            self.arrives = False

    def _listen_until_unwanted(self) -> float:
        with listening(self.using, self._channel) as raw, Notifications(raw) as notes:
            trial = notify_trial(self.using, self._channel)
            # Not before: LISTEN_URL may lead to a server that answers while the pooler is away.
            self._service.failures.succeeded()
            arrives_by = clock.system_clock() + ARRIVAL
            while self._goes_on(end=False):
                for payload in notes.within(CHECK_EVERY):
                    if payload == trial:
                        arrives_by, self.arrives = math.inf, True
                        self._go_on_hearing()
                    self._hear(payload)
                if clock.system_clock() > arrives_by:
                    self._give_up()
                    break
        return 0.0

    def _give_up(self) -> None:
        if not self._deaf_until:
            log.notifications_swallowed()
        self._deaf_until = clock.system_clock() + DEAFNESS

    def _go_on_hearing(self) -> None:
        if self._deaf_until:
            log.notifications_arrive()
        self._deaf_until = 0.0

    def _goes_on(self, end: bool = True) -> bool:
        with self._lock:
            wanted = self._is_wanted() and self._hears
            if not wanted and end:
                self._thread = None
            return wanted
