"""Compute when schedules are due: pure functions of a rule and of times, with nothing read or
stored.

A cron expression is meant in a time zone, and daylight saving time is treated as Debian's cron
does. An expression that names both minute and hour is a time of day: when clocks go forward over
it, it comes as soon as they have; when clocks go back over it, it comes the first time and not
the second. One with ``*`` in the minute or the hour is a rhythm, and follows the time that
passes: what clocks skip is not made up for, and an hour that comes twice has its moments twice.

An interval follows the time that passes, counted from its own earlier moments, so that serving
one late does not put off the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from django.db import models

from leasing.humanize import span
from leasing.runtime.terminal import closest
from tasks.exceptions import InvalidSchedule

SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_INTERVAL = timedelta(days=3650)
#: As long as the column of a schedule.
LONGEST_EXPRESSION = 200
#: The delay up to which a moment still counts as served on time.
ON_TIME = timedelta(minutes=1)


class MissedSlots(models.TextChoices):
    """The handling of moments at which no scheduler ran."""

    SKIP = "skip", "none of them"
    LATEST = "latest", "the latest"
    ALL = "all", "all of them"


class Rule(ABC):
    """Says which moments there are. All moments are aware, and returned in UTC."""

    @abstractmethod
    def after(self, moment: datetime, anchor: datetime) -> datetime:
        """The first moment after ``moment``, where ``anchor`` is any moment of the rule."""

    @abstractmethod
    def latest(self, anchor: datetime, now: datetime) -> datetime:
        """The last moment up to ``now``; ``anchor`` is one that has come."""

    def first(self, now: datetime) -> datetime:
        """The moment that a schedule made ``now`` begins with."""
        return self.after(now, now)

    def upcoming(self, moment: datetime, count: int) -> list[datetime]:
        """``moment``, which is one of the rule, and those that follow: ``count`` in all."""
        moments = [moment]
        while len(moments) < count:
            moments.append(self.after(moments[-1], moments[-1]))
        return moments


@dataclass(frozen=True)
class Interval(Rule):
    """Every so often."""

    every: timedelta

    def __post_init__(self) -> None:
        if not SHORTEST_INTERVAL <= self.every <= LONGEST_INTERVAL:
            raise InvalidSchedule("An interval must be from 1 second to 3650 days.")

    def after(self, moment: datetime, anchor: datetime) -> datetime:
        return (anchor + ((moment - anchor) // self.every + 1) * self.every).astimezone(UTC)

    def latest(self, anchor: datetime, now: datetime) -> datetime:
        return (anchor + (now - anchor) // self.every * self.every).astimezone(UTC)

    def __str__(self) -> str:
        return f"Every {span(self.every)}"


@dataclass(frozen=True)
class Cron(Rule):
    """A cron expression of five fields in a time zone."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or len(self.expression.split()) != 5:
            raise InvalidSchedule("A cron expression must have five fields, such as '30 3 * * *'.")
        if len(self.expression) > LONGEST_EXPRESSION:
            raise InvalidSchedule("A cron expression must not exceed 200 characters.")
        self.first(datetime.now(UTC))

    @cached_property
    def tz(self) -> tzinfo:
        try:
            return UTC if self.zone == "UTC" else ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            meant = closest(self.zone, sorted(available_timezones()))
            hint = f"Did you mean {meant!r}?" if meant else "Write one such as 'Europe/Berlin'."
            raise InvalidSchedule(f"Unknown time zone {self.zone!r}. {hint}") from error

    def after(self, moment: datetime, anchor: datetime | None = None) -> datetime:
        for local in self._run(moment):
            found = local.astimezone(UTC)
            # In an hour that comes twice, cronsim counts on from its first coming.
            if found > moment:
                return found
        raise InvalidSchedule(f"{self.expression!r} never matches a date.")

    def latest(self, anchor: datetime, now: datetime) -> datetime:
        # From ever further back: the last moments of a long absence are near its end.
        reach = timedelta(hours=1)
        while now - reach > anchor:
            found = self._last(now - reach, now)
            if found is not None:
                return found
            reach *= 8
        return self._last(anchor, now) or anchor.astimezone(UTC)

    def _last(self, moment: datetime, now: datetime) -> datetime | None:
        last = None
        while (moment := self.after(moment)) <= now:
            last = moment
        return last

    def _run(self, moment: datetime) -> CronSim:
        tz = self.tz  # its error is no error of the expression
        try:
            return CronSim(self.expression, moment.astimezone(tz))
        except (CronSimError, AssertionError, TypeError, ValueError) as error:
            # Some of what cannot be read trips over the reader's own assertions.
            reason = str(error) or "it cannot be parsed"
            raise InvalidSchedule(
                f"{self.expression!r} is not a valid cron expression: {reason}."
            ) from error

    def __str__(self) -> str:
        return f"{self._run(datetime.now(UTC)).explain()} ({self.zone})"


def rule_of(cron: str, every: timedelta | None, timezone: str = "UTC") -> Rule:
    """Return the rule of a schedule with these columns. Raises InvalidSchedule.

    Args:
        cron: A cron expression; empty for an interval.
        every: The interval; None for a cron expression.
        timezone: The time zone of the cron expression.
    """
    if bool(cron) == (every is not None):
        raise InvalidSchedule("Give either a cron expression or an interval.")
    return Interval(every) if every is not None else Cron(cron, timezone)


def due_slots(
    rule: Rule, due_at: datetime, now: datetime, missed: str, limit: int
) -> tuple[list[datetime], datetime]:
    """Return the moments to serve now, and the moment to go on with. That one may have come too, if
    there were more than ``limit``.

    Args:
        rule: The rule of the schedule.
        due_at: The first moment that was not served.
        now: The database's clock.
        missed: One of MissedSlots.
        limit: The number of moments, at most.
    """
    if missed == MissedSlots.ALL:
        slots, at = [due_at], rule.after(due_at, due_at)
        while at <= now and len(slots) < limit:
            slots.append(at)
            at = rule.after(at, at)
        return slots, at
    newest = rule.latest(due_at, now)
    is_missed = now - newest > ON_TIME
    served = [] if missed == MissedSlots.SKIP and is_missed else [newest]
    return served, rule.after(now, newest)
