"""Slots: the moments of a plan of Celery's beat, each of which is to be sent once.

Beat itself knows none. It counts from when it last sent, which is a little later each time, and
another each time that another beat sends.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import schedule

if TYPE_CHECKING:
    from leasing.models.beat import BeatEntry


def slot_of(entry: Any, last: datetime, catch_up: float) -> datetime:
    """Return the moment for which ``entry``, which is due, is due: the first after ``last``, or the
    latest if that one is too old.

    Args:
        entry: The entry of beat's schedule.
        last: The moment for which it was last sent.
        catch_up: Seconds after which a missed moment is too old.
    """
    now = entry.default_now().astimezone(UTC)
    plan = entry.schedule
    if _is_plain(plan):
        moment: datetime = last + plan.run_every
        if plan.run_every and now - moment > timedelta(seconds=catch_up):
            moment += plan.run_every * ((now - moment) // plan.run_every)
    else:
        # Plans are on whole seconds, and this is off by the duration of the look.
        moment = now + plan.remaining_estimate(zoned(last, entry))
        moment = (moment + timedelta(seconds=0.5)).replace(microsecond=0)
        if now - moment > timedelta(seconds=catch_up):
            moment = now
    return max(moment, last + timedelta(microseconds=1))


def _is_plain(plan: Any) -> bool:
    """Return True if ``plan`` is an interval, counted from the slot before."""
    if getattr(type(plan), "remaining_estimate", None) is not schedule.remaining_estimate:
        return False
    return not plan.relative or plan.run_every < timedelta(seconds=1)


def zoned(moment: datetime, entry: Any) -> datetime:
    """``moment`` in the zone in which ``entry`` counts: a crontab reads the hour off it."""
    return moment.astimezone(entry.default_now().tzinfo)


def marked(entry: Any, row: BeatEntry) -> Any:
    """``entry`` as it is sent: the message has the id that was claimed, and its slot."""
    sent = copy.copy(entry)
    options = dict(entry.options or {})
    options.setdefault("task_id", str(row.task_id))
    headers = {**(options.get("headers") or {}), "beat_slot": row.last_run_at.isoformat()}
    sent.options = {**options, "headers": headers}
    return sent
