"""The longest delay of a task."""

from __future__ import annotations

from datetime import timedelta

#: Beyond it lies a mistake in arithmetic, and not far behind that the end of every calendar.
LONGEST_DELAY = timedelta(days=3650)


def check_delay(value: float | timedelta) -> timedelta:
    """``value``, in seconds if it is a number, as a timedelta.

    Raises TypeError for what is neither, ValueError when it is negative, beyond ten years, or
    not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise TypeError(f"A delay must be a number of seconds or a timedelta, not {value!r}.")
    try:
        delay = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{value!r} is not a delay: {error}") from error
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        raise ValueError(f"A delay must be from 0 seconds to ten years, not {value!r}.")
    return delay
