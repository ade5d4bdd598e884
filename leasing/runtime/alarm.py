"""Wakes a thread in time, and no more often than that."""

from __future__ import annotations

import math
import threading
from typing import Any

#: The threads look at the clock so often, in seconds, while something is held: their waiting
#: does not count the time for which the machine was suspended, and trust does.
CHECK_CLOCK_EVERY = 1.0


class Alarm(threading.Condition):
    """Wakes a thread for what comes before it would have looked by itself, and for nothing
    else. All of it under the lock."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self._looks_at = -math.inf
        self._lingers = False

    def sleep(self, now: float, seconds: float | None) -> None:
        """Sleep for ``seconds``; None: until something comes. What comes within CHECK_CLOCK_EVERY
        of the last need not wake it: else whoever holds something for moments would do so each
        time."""
        lingers, self._lingers = self._lingers, seconds is not None
        if seconds is None and lingers:
            seconds = CHECK_CLOCK_EVERY
        self._looks_at = math.inf if seconds is None else now + seconds
        try:
            self.wait(seconds)
        finally:
            # Awake: it looks at everything before it sleeps again.
            self._looks_at = -math.inf

    def set_for(self, moment: float) -> None:
        """There is something to do at ``moment``."""
        if moment < self._looks_at:
            self.notify()
