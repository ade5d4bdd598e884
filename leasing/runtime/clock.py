"""The holder's own clock.

It decides how long a holder may believe what the database told it. It never runs backwards, is
not set by anybody, and where the system has one it goes on while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Protocol

#: Seconds on a clock that also counts while the machine is suspended, or else on one that is never
#: set. It is read several times for each task, so it is no function of Python's.
system_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


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
