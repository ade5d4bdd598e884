"""Times and counts in words, for the pages and the admin.

``static/leasing/live.js`` updates them with the same words between two polls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils import timezone

MINUTE, HOUR, DAY = 60, 3_600, 86_400
#: The parts of a date and time, as pages write them everywhere.
DATE, TIME_TO_MINUTE, TIME = "%Y-%m-%d", "%H:%M", "%H:%M:%S"


def span(length: float | timedelta) -> str:
    """Return ``length`` (seconds or a timedelta) in its two greatest units."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    whole = int(abs(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return _two(whole, MINUTE, "min", 1, "s")
    if whole < DAY:
        return _two(whole, HOUR, "h", MINUTE, "min")
    return _two(whole, DAY, "d", HOUR, "h")


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    count, rest = divmod(whole, large)
    fine = rest // small
    return f"{count} {large_name} {fine} {small_name}" if fine else f"{count} {large_name}"


def left(length: timedelta) -> str:
    """Return the remaining time ``length`` in the words of a countdown."""
    return span(math.ceil(length.total_seconds()))


def brief(length: timedelta) -> str:
    """Return a duration in words, with a tenth of a second where it was short."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 0.05:
        return "< 0.1 s"
    return f"{seconds:.1f} s" if seconds < 9.95 else span(seconds)


def ago(moment: datetime, now: datetime) -> str:
    """Return the distance of ``moment`` from ``now``, in either direction."""
    seconds = (now - moment).total_seconds()
    if seconds <= -1:
        return f"in {span(seconds)}"
    return "just now" if seconds < 1 else f"{span(seconds)} ago"


def until(deadline: datetime, now: datetime, ahead: str = "", past: str = "expired") -> str:
    """Return the time until ``deadline`` ("in 3 s"), or since it passed ("expired 3 s ago").

    Args:
        deadline: The deadline.
        now: The moment, by the database's clock.
        ahead: The word before a deadline that is to come.
        past: The word before one that has passed.
    """
    seconds = (deadline - now).total_seconds()
    if seconds > 0:
        return f"{ahead} in {left(deadline - now)}".lstrip()
    return f"{past} {ago(deadline, now)}"


def stamp(moment: datetime) -> str:
    """``moment`` to the second in the current time zone, which it names."""
    return timezone.localtime(moment).strftime(f"{DATE} {TIME} %Z")


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: ``1 task``, ``2 tasks``, ``12,000 tasks``.

    Args:
        count: The number, written with commas between thousands.
        one: The noun in the singular.
        many: The noun in the plural; ``one`` with an s by default.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def in_a_row(names: Sequence[str]) -> str:
    """Return ``names``, of which there are some, in a sentence: ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


class Moment(NamedTuple):
    """A moment in a ``Sentence``: "in 3 s", "3 s ago", or "3 s" where it counts what lasts."""

    at: datetime
    #: Of a deadline, the word before it once it has passed; None: a moment of the past.
    past: str | None = None
    #: True for the bare time since a moment of the past.
    lasts: bool = False

    def words(self, now: datetime) -> str:
        """Return the distance from ``now``, as a page counts it."""
        if self.lasts:
            return span(max(timedelta(0), now - self.at))
        return ago(self.at, now) if self.past is None else until(self.at, now, past=self.past)


class Sentence(str):
    """A text with moments in it, as of ``now``. A page keeps these up to date, so that they do not
    lag behind its other countdowns; its fingerprint is the same while only they have moved.

    Args:
        now: The moment at which the text is true.
        parts: Its words and moments.
    """

    fingerprint_field = "constant"

    def __new__(cls, now: datetime, *parts: str | Moment) -> Sentence:
        words = (part if isinstance(part, str) else part.words(now) for part in parts)
        sentence = super().__new__(cls, "".join(words))
        sentence.now, sentence.parts = now, parts
        return sentence

    now: datetime
    parts: tuple[str | Moment, ...]

    @property
    def constant(self) -> str:
        """The text, with its moments as they are stored."""
        return repr(self.parts)

    def __add__(self, more: str) -> Sentence:
        return Sentence(self.now, *self.parts, *getattr(more, "parts", (more,)))

    def __getnewargs__(self) -> Any:  # for pickle
        return (self.now, *self.parts)
