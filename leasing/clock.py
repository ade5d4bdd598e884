"""The holder's own clock.

It decides how long a holder may believe what the database told it. It never runs backwards, is
not set by anybody, and where the system has one it goes on while the machine sleeps.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def clock() -> float:
        """Seconds on a clock that also counts while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - other systems than Linux

    def clock() -> float:
        """Seconds on a clock that is never set."""
        return time.monotonic()
