"""How a schedule stands, and why: for pages and the admin."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from leasing.humanize import ago, stamp
from leasing.web.badges import Sign
from tasks import registry
from tasks.exceptions import InvalidSchedule
from tasks.models import Schedule

#: How many moments to foretell.
FORETOLD = 5

ACTIVE: Final = Sign("active", "ok", "clock", "◷")
PAUSED: Final = Sign("paused", "warn", "pause", "‖")
OVERDUE: Final = Sign("overdue", "crit", "alert", "▲")
ORPHANED: Final = Sign("orphaned", "warn", "info", "?")
UNKNOWN_TASK: Final = Sign("unknown task", "crit", "cross", "✕")
BROKEN: Final = Sign("invalid rule", "crit", "cross", "✕")


@dataclass(frozen=True)
class Standing:
    """The state of a schedule: its sign, the reason in a sentence, and the moments to come."""

    sign: Sign
    #: In words, some of which tell the time.
    why: str = field(default="", compare=False)
    rule: str = ""
    upcoming: tuple[datetime, ...] = ()


def standing_of(schedule: Schedule, now: datetime) -> Standing:
    """How ``schedule`` stands at ``now``, which is the database's clock."""
    try:
        rule = schedule.rule
    except InvalidSchedule as error:
        return Standing(BROKEN, f"The rule is not valid: {error}")
    sign, why = _state(schedule, now)
    if sign is ACTIVE or sign is OVERDUE:
        begin = schedule.next_at or rule.first(now)
        return Standing(sign, why, str(rule), tuple(rule.upcoming(begin, FORETOLD)))
    return Standing(sign, why, str(rule))


def _state(schedule: Schedule, now: datetime) -> tuple[Sign, str]:
    if schedule.paused_at is not None:
        by = f" by {schedule.paused_by}" if schedule.paused_by else ""
        return PAUSED, (
            f"Paused{by} {ago(schedule.paused_at, now)}. Due times until it is resumed are skipped."
        )
    if is_orphaned(schedule, now):
        return ORPHANED, (
            f"Not declared by any running code since {stamp(schedule.declared_at)}. Nothing is "
            "enqueued; it can be deleted."
            if schedule.declared_at
            else "Not declared by any running code."
        )
    if schedule.task_name not in registry.names():
        return UNKNOWN_TASK, (
            f"No handler is registered here for {schedule.task_name}. Only a worker that has "
            "one enqueues it."
        )
    if schedule.next_at is not None and now - schedule.next_at > schedule.OVERDUE_AFTER:
        return OVERDUE, (
            f"Due since {stamp(schedule.next_at)}. No running worker has its handler, or "
            "enqueueing fails: see the workers' logs."
        )
    return ACTIVE, ""


def is_orphaned(schedule: Schedule, now: datetime) -> bool:
    """Whether code declared ``schedule`` once, and none that ran lately does."""
    declared_at = schedule.declared_at
    return schedule.declared and (
        declared_at is None or now - declared_at > Schedule.ORPHANED_AFTER
    )
