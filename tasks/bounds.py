"""Bounds of the numbers and times that callers give."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

#: The lowest and the highest priority: the bounds of the column.
PRIORITIES = (-32768, 32767)
#: Bounds of the number of attempts, and of the tasks of a concurrency key that run at a time.
COUNTS = (1, 32767)
#: Beyond it lies a mistake in arithmetic, and not far behind that the end of every calendar.
LONGEST_DELAY = timedelta(days=3650)


def check_between(value: int, lowest: int, highest: int, what: str) -> int:
    """Return ``value`` if it is a whole number within the bounds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"The {what} must be a whole number from {lowest} to {highest}.")
    return value


def check_limit(value: float | timedelta, what: str) -> timedelta:
    """``check_delay`` for a time that must be longer than none."""
    limit = check_delay(value, what)
    if not limit:
        raise ValueError(f"{what} must be more than 0 seconds.")
    return limit


def check_delay(value: float | timedelta, what: str = "A delay") -> timedelta:
    """``value``, in seconds if it is a number, as a timedelta. ``what`` names it in the error.

    Raises ValueError for what is neither, negative, beyond ten years, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise ValueError(f"{what} must be a number of seconds or a timedelta, not {value!r}.")
    with suppress(OverflowError, ValueError):
        delay = value if isinstance(value, timedelta) else timedelta(seconds=value)
        if timedelta(0) <= delay <= LONGEST_DELAY:
            return delay
    raise ValueError(f"{what} must be from 0 seconds to ten years, not {value!r}.")
