"""Derive the status of a schedule and its reason, for pages and the admin."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from leasing.humanize import Moment, Sentence, stamp
from leasing.web.badges import Badge
from leasing.web.counts import Capped
from tasks import registry
from tasks.exceptions import InvalidSchedule
from tasks.models import Schedule
from tasks.scheduling.rules import Rule

#: Future moments that are shown.
FORETOLD = 5
#: Due times that a pause skipped, which are counted one by one.
SKIPPED_COUNTED = 100

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
    #: The due times that have passed since it was paused.
    skipped: Capped = Capped(0, SKIPPED_COUNTED)


def status_of(schedule: Schedule, now: datetime) -> ScheduleStatus:
    """Return the status of ``schedule`` at ``now``, the database's clock."""
    try:
        rule = schedule.rule
    except InvalidSchedule as error:
        return ScheduleStatus(BROKEN, f"The rule is not valid: {error}")
    if schedule.paused_at is not None:
        # Nobody may have served it before its pause.
        skipped = _skipped(rule, schedule.next_at or rule.first(schedule.paused_at), now)
        by = f" by {schedule.paused_by}" if schedule.paused_by else ""
        reason = f": “{schedule.reason.rstrip('.')}”" if schedule.reason else ""
        so_far = f", {skipped} so far" if skipped else ""
        then = f"{reason}. Due times are skipped until it is resumed{so_far}."
        paused = Sentence(now, f"Paused{by} ", Moment(schedule.paused_at), then)
        return ScheduleStatus(PAUSED, paused, str(rule), skipped=skipped)
    badge, why = _state(schedule, now)
    if badge is ACTIVE or badge is OVERDUE:
        begin = schedule.next_at or rule.first(now)
        return ScheduleStatus(badge, why, str(rule), tuple(rule.upcoming(begin, FORETOLD)))
    return ScheduleStatus(badge, why, str(rule))


def _state(schedule: Schedule, now: datetime) -> tuple[Badge, str]:
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


def _skipped(rule: Rule, next_at: datetime, now: datetime) -> Capped:
    """Return the number of due times from ``next_at`` on, which no scheduler moves in a pause."""
    count, at = 0, next_at
    while at <= now and count <= SKIPPED_COUNTED:
        count, at = count + 1, rule.after(at, at)
    return Capped(count, SKIPPED_COUNTED)


def is_orphaned(schedule: Schedule, now: datetime) -> bool:
    """Return True if code declared ``schedule`` once, and no process that ran lately does."""
    declared_at = schedule.declared_at
    return schedule.declared and (
        declared_at is None or now - declared_at > Schedule.ORPHANED_AFTER
    )
