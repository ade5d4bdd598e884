"""Keeps a store in trouble from being stormed by renewals.

Closed, everything passes. An error, or an answer that was slow, opens it: nothing passes for a
pause that doubles with each failure in a row and is jittered, so that many processes do not come
back together. Then one batch is let through to try; its success closes the breaker, its failure
opens it for longer. Time is the holder's own clock: a breaker on the wall clock could be held
open by somebody who sets it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

#: Seconds of the first pause, before jitter.
FIRST_PAUSE = 0.2


class Breaker:
    """Judges one store. Not for several threads at once: the keeper has one that renews."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._failures = 0
        #: The moment of the next try, on the holder's clock.
        self.opens_again_at = 0.0

    @property
    def is_closed(self) -> bool:
        return not self._failures

    def lets_pass(self, now: float) -> bool:
        """Return True if a request may be sent at ``now``."""
        return self.is_closed or now >= self.opens_again_at

    def succeeded(self) -> bool:
        """An answer came in good time. Returns whether that closed it."""
        was_open, self._failures = bool(self._failures), 0
        return was_open

    def failed(self, now: float, longest: float) -> float:
        """A request failed, or was answered slowly. Returns for how many seconds, at most
        ``longest``, nothing passes."""
        self._failures += 1
        pause = min(longest, FIRST_PAUSE * 2.0 ** min(self._failures - 1, 16))
        pause *= self._uniform(0.5, 1.0)
        self.opens_again_at = now + pause
        return pause
