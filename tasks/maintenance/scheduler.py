"""The scheduler: enqueues the tasks of schedules when their moments come.

One runs in every worker and in ``manage.py run_recovery``, and none is elected: a moment is
served by inserting a unique row (see ``querysets.schedule``), so the others find it served. A
scheduler that dies delays nothing. The database's clock decides what is due; the process's own
only how long to sleep.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from django.db import InterfaceError, OperationalError, connections
from django.db.models import F

from leasing.functions import DbNow
from leasing.runtime.services import Service
from tasks.exceptions import InvalidArguments, UnknownQueue, UnknownTask
from tasks.log import log
from tasks.models import Schedule, ScheduleSlot
from tasks.querysets.schedule import SLOT_BATCH
from tasks.scheduling import declarations

#: Seconds between two looks while nothing is due: how late a schedule is that was made in
#: between, and is due at once.
CHECK_EVERY = 15.0
#: Seconds after which to look again at what was due, and others were at.
PATIENCE = 1.0
#: Seconds between two rounds of housekeeping.
KEEP_HOUSE_EVERY = 1800.0
#: The last report about each schedule that cannot be served, by key: True if it was left to
#: others, and the error.
_said: dict[int, tuple[bool, str]] = {}
#: Batches of one schedule that are served before the others have their turn.
BATCHES = 10


def declare_all() -> int:
    """Store the schedules that code declares. Returns how many of them changed by it."""
    return sum(Schedule.objects.declare(each) for each in declarations.declared())


def serve_due() -> int:
    """Enqueue what is due now. Returns how many slots were taken: call again while there are
    some, to catch up with what was missed."""
    taken, _ = _look()
    return taken


def keep_house() -> int:
    """Confirm what is declared, and delete old slots. Returns how many were deleted."""
    Schedule.objects.confirm()
    total = 0
    while deleted := ScheduleSlot.objects.prune():
        total += deleted
    return total


def service(found: Callable[[], object] = lambda: None) -> Service:
    """Stores what code declares, then serves. ``found`` is called when something was enqueued."""
    is_declared = False

    def tick() -> float:
        nonlocal is_declared
        if not is_declared:
            declare_all()
            is_declared = True
        taken, pause = _look()
        if taken:
            found()
        return pause

    return Service(tick, log.schedules_failed)


def housekeeping() -> Service:
    """Keeps house every half hour."""

    def tick() -> float:
        try:
            keep_house()
        finally:
            connections.close_all()  # or it would idle until the next time
        return KEEP_HOUSE_EVERY * random.uniform(0.8, 1.0)

    failed = partial(log.housekeeping_failed, duty="Housekeeping of schedules")
    return Service(tick, failed, starts_in=KEEP_HOUSE_EVERY * random.uniform(0.8, 1.0))


def _look() -> tuple[int, float]:
    """Serve what is due. Returns how many slots were taken, and for how many seconds there is
    nothing else to do."""
    ahead = Schedule.objects.home().served_here().due(timedelta(seconds=CHECK_EVERY))
    rows = list(
        ahead.order_by(F("next_at").asc(nulls_first=True))
        .annotate(now=DbNow())
        .values_list("pk", "name", "next_at", "now")
    )
    due = [
        (key, name, timedelta(0) if at is None else now - at)
        for key, name, at, now in rows
        if at is None or at <= now
    ]
    if not due:
        waits = [(at - now).total_seconds() for _, _, at, now in rows if at is not None]
        return 0, min([CHECK_EVERY, *waits])
    taken = sum(_serve(key, name, overdue) for key, name, overdue in due)
    return taken, 0.0 if taken else PATIENCE


def _serve(key: int, name: str, overdue: timedelta) -> int:
    """Serve one schedule; what is wrong with it stops no other.

    During a rolling deploy it may be one of a release that has another handler or queue: then the
    processes of that release serve it, and it is an error only if none has after a while."""
    taken = 0
    try:
        for _ in range(BATCHES):
            served = Schedule.objects.serve(key)
            taken += served
            if served < SLOT_BATCH:
                break
    except (InterfaceError, OperationalError):
        raise  # The database is away, or busy: that concerns all of them.
    except Exception as error:
        may_be_known = isinstance(error, (UnknownTask, UnknownQueue, InvalidArguments))
        is_left = may_be_known and overdue < Schedule.OVERDUE_AFTER
        tell = log.schedule_left if is_left else log.schedule_failed
        # It stays due, so this comes with every look; once said is enough.
        if _said.get(key) != (is_left, str(error)):
            _said[key] = is_left, str(error)
            tell(schedule=name, error=error)
    else:
        _said.pop(key, None)
    return taken
