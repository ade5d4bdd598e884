"""Derive the status of a schedule and its reason, for pages and the admin."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from leasing.humanize import ago, stamp
from leasing.web.badges import Badge
from tasks import registry
from tasks.exceptions import InvalidSchedule
from tasks.models import Schedule

#: Future moments that are shown.
FORETOLD = 5

ACTIVE: Final = Badge("active", "ok", "clock", "◷")
PAUSED: Final = Badge("paused", "warn", "pause", "‖")
OVERDUE: Final = Badge("overdue", "crit", "alert", "▲")
ORPHANED: Final = Badge("orphaned", "warn", "info", "?")
UNKNOWN_TASK: Final = Badge("unknown task", "crit", "cross", "✕")
BROKEN: Final = Badge("invalid rule", "crit", "cross", "✕")


@dataclass(frozen=True)
class ScheduleStatus:
    """The state of a schedule: its badge, the reason in a sentence, and the moments to come."""

    badge: Badge
    #: In words, some of which tell the time.
    why: str = field(default="", compare=False)
    rule: str = ""
    upcoming: tuple[datetime, ...] = ()


def status_of(schedule: Schedule, now: datetime) -> ScheduleStatus:
    """Return the status of ``schedule`` at ``now``, the database's clock."""
    try:
        rule = schedule.rule
    except InvalidSchedule as error:
        return ScheduleStatus(BROKEN, f"The rule is not valid: {error}")
    badge, why = _state(schedule, now)
    if badge is ACTIVE or badge is OVERDUE:
        begin = schedule.next_at or rule.first(now)
        return ScheduleStatus(badge, why, str(rule), tuple(rule.upcoming(begin, FORETOLD)))
    return ScheduleStatus(badge, why, str(rule))


def _state(schedule: Schedule, now: datetime) -> tuple[Badge, str]:
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
    """Return True if code declared ``schedule`` once, and no process that ran lately does."""
    declared_at = schedule.declared_at
    return schedule.declared and (
        declared_at is None or now - declared_at > Schedule.ORPHANED_AFTER
    )
