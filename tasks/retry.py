"""When to try again: pure decisions, without clock or database."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol


class RetryPolicy(Protocol):
    """Decides, after an attempt failed, how long to wait for the next."""

    def __call__(self, error: BaseException, attempt: int) -> float | timedelta | None:
        """Seconds (or a timedelta) until the next attempt; None gives up. ``attempt`` is the
        number of the one that failed, the first is 1."""


def backoff(
    attempt: int,
    *,
    base: float,
    cap: float,
    uniform: Callable[[float, float], float] = random.uniform,
) -> float:
    """Seconds to wait after the ``attempt``-th attempt (the first is 1) failed.

    The bound doubles with each attempt up to ``cap``, and the wait is drawn evenly below it
    ("full jitter"), so that tasks that failed together do not come back together.
    """
    bound = min(cap, base * 2.0 ** min(attempt - 1, 60))
    return uniform(0.0, bound)
