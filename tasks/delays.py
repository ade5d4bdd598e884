"""The longest delay of a task."""

from __future__ import annotations

from datetime import timedelta

#: Beyond it lies a mistake in arithmetic, and not far behind that the end of every calendar.
LONGEST_DELAY = timedelta(days=3650)


def check_interval(value: float | timedelta, what: str) -> timedelta:
    """``check_delay`` for an argument of ``enqueue``. Raises ValueError in any case."""
    try:
        return check_delay(value, what)
    except TypeError as error:
        raise ValueError(str(error)) from None


def check_limit(value: float | timedelta, what: str) -> timedelta:
    """``check_interval`` for a time that must be longer than none."""
    limit = check_interval(value, what)
    if not limit:
        raise ValueError(f"{what} must be more than 0 seconds.")
    return limit


def check_delay(value: float | timedelta, what: str = "A delay") -> timedelta:
    """``value``, in seconds if it is a number, as a timedelta. ``what`` names it in the error.

    Raises TypeError for what is neither, ValueError when it is negative, beyond ten years, or
    not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(f"{what} must be a number of seconds or a timedelta, not {value!r}.")
    try:
        delay = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{what} must be from 0 seconds to ten years, not {value!r}.") from error
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        raise ValueError(f"{what} must be from 0 seconds to ten years, not {value!r}.")
    return delay
