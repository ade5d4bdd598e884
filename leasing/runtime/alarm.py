"""Wakes a thread in time, and no more often than that."""

from __future__ import annotations

import math
import threading
from typing import Any

#: The threads look at the clock so often, in seconds, while something is held: their waiting
#: does not count the time for which the machine was suspended, and trust does.
CHECK_CLOCK_EVERY = 1.0


class Alarm(threading.Condition):
    """Wakes a thread only for work that is due before the thread would wake by itself. Every method
    is called under the lock."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self._looks_at = -math.inf
        self._lingers = False

    def sleep(self, now: float, seconds: float | None) -> None:
        """Sleep for ``seconds``; None: until there is work. After the last work, the thread stays
        ready for CHECK_CLOCK_EVERY, so that many short holds do not wake it each time. A hold that
        woke it and was released before it looked is work too."""
        lingers, self._lingers = self._lingers, seconds is not None
        if seconds is None and lingers:
            seconds = CHECK_CLOCK_EVERY
        self._looks_at = math.inf if seconds is None else now + seconds
        try:
            if self.wait(seconds):
                self._lingers = True
        finally:
            # The thread is awake, and checks everything before it sleeps again.
            self._looks_at = -math.inf

    def set_for(self, moment: float) -> None:
        """Wake the thread unless it wakes by ``moment`` by itself: there is work then."""
        if moment < self._looks_at:
            self.notify()
