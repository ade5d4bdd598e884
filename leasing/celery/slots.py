"""Slots: the moments of a schedule of Celery's beat, for each of which one message is sent.

Beat itself has no slots. It counts from the time at which it last sent, which is a little later
each time, and different in each beat.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import schedule

if TYPE_CHECKING:
    from leasing.models.beat import BeatEntry


def slot_of(entry: Any, last: datetime, catch_up: float) -> datetime:
    """Return the slot of ``entry``, which is due: the first moment of its schedule after ``last``,
    or the latest moment if the first is too old.

    Args:
        entry: The entry of beat's schedule.
        last: The slot for which the entry was last sent.
        catch_up: Seconds after which a missed moment is too old.
    """
    now = entry.default_now().astimezone(UTC)
    plan = entry.schedule
    if _is_plain(plan):
        moment: datetime = last + plan.run_every
        if plan.run_every and now - moment > timedelta(seconds=catch_up):
            moment += plan.run_every * ((now - moment) // plan.run_every)
    else:
        # Schedules are in whole seconds; the moment is off by the duration of this computation.
        moment = now + plan.remaining_estimate(zoned(last, entry))
        moment = (moment + timedelta(seconds=0.5)).replace(microsecond=0)
        if now - moment > timedelta(seconds=catch_up):
            moment = now
    return max(moment, last + timedelta(microseconds=1))


def _is_plain(plan: Any) -> bool:
    """Return True if ``plan`` is an interval that is counted from the previous slot."""
    if getattr(type(plan), "remaining_estimate", None) is not schedule.remaining_estimate:
        return False
    return not plan.relative or plan.run_every < timedelta(seconds=1)


def zoned(moment: datetime, entry: Any) -> datetime:
    """Return ``moment`` in the time zone of ``entry``, from which a crontab reads the hour."""
    return moment.astimezone(entry.default_now().tzinfo)


def marked(entry: Any, row: BeatEntry) -> Any:
    """Return a copy of ``entry`` whose message has the id that was claimed, and the slot."""
    sent = copy.copy(entry)
    options = dict(entry.options or {})
    options.setdefault("task_id", str(row.task_id))
    headers = {**(options.get("headers") or {}), "beat_slot": row.last_run_at.isoformat()}
    sent.options = {**options, "headers": headers}
    return sent
