"""When to try again: pure decisions, without clock or database."""

from __future__ import annotations

import random
from collections.abc import Callable


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
