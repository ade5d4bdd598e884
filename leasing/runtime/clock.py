"""The holder's own clock.

It decides how long a holder may believe what the database told it. It never runs backwards, is
not set by anybody, and where the system has one it goes on while the machine sleeps.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Protocol

if hasattr(time, "CLOCK_BOOTTIME"):

    def system_clock() -> float:
        """Seconds on a clock that also counts while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - other systems than Linux

    def system_clock() -> float:
        """Seconds on a clock that is never set."""
        return time.monotonic()


class StandIn(Protocol):
    """Time as a test would have it: see ``leasing.testing``."""

    @property
    def seconds(self) -> float:
        """In place of the holder's clock."""

    @property
    def stopped_at(self) -> datetime | None:
        """In place of the database's clock; None while that runs, ``passed`` seconds ahead."""

    @property
    def passed(self) -> float:
        """Seconds by which a test has advanced the clocks."""

    def pause(self, resource: str, seconds: float) -> float:
        """Called before a wait of up to ``seconds`` for ``resource``. Returns the seconds to wait
        really."""


#: Takes the place of both clocks while it is set.
stand_in: StandIn | None = None


def clock() -> float:
    """The holder's clock, in seconds."""
    return system_clock() if stand_in is None else stand_in.seconds
