"""Recovery, pruning and schedules as entries of Celery's beat, for sites without ``run_worker``.

    from tasks.celery.beat import housekeeping

    app.conf.beat_schedule = {**housekeeping(), ...}
    app.conf.imports = ["tasks.celery.beat"]

Any number of these may run at a time, also together with ``run_worker`` and ``run_recovery``, which
do the same by themselves. Each entry runs under a lease of its own, so that a long run is not
started twice. A run that has not started when the next is due is dropped.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any

from celery import shared_task

from leasing.celery import LeasedTask

#: Seconds between looks for schedules that are due: what is planned for in between is late by it.
SERVE_EVERY = 5.0
#: The time for which leased rows of beat are remembered.
FORGET_AFTER = timedelta(days=30)

_OPTIONS: dict[str, Any] = {"base": LeasedTask, "when_held": "skip", "ignore_result": True}


@shared_task(resource="leasing_tasks:beat:sweep", **_OPTIONS)  # type: ignore[untyped-decorator]
def sweep() -> int:
    """Take back what dead workers held. Returns how many tasks."""
    from tasks.maintenance import recovery

    return recovery.sweep()


@shared_task(resource="leasing_tasks:beat:examine", **_OPTIONS)  # type: ignore[untyped-decorator]
def examine() -> dict[str, Any]:
    """Check the invariants. Returns what was found."""
    from tasks.maintenance import recovery

    return recovery.examine().as_json()


@shared_task(resource="leasing_tasks:beat:children", **_OPTIONS)  # type: ignore[untyped-decorator]
def cancel_left_behind() -> int:
    """Cancel children that were left open when their parent was cancelled. Returns how many."""
    from tasks.maintenance import recovery

    return recovery.cancel_left_behind()


@shared_task(resource="leasing_tasks:beat:serve", **_OPTIONS)  # type: ignore[untyped-decorator]
def serve_schedules() -> int:
    """Enqueue what the schedules of this project say is due. Returns how many slots."""
    from tasks.maintenance import scheduler

    _declare()
    total = 0
    while taken := scheduler.serve_due():
        total += taken
    return total


@shared_task(resource="leasing_tasks:beat:prune", **_OPTIONS)  # type: ignore[untyped-decorator]
def prune() -> dict[str, int]:
    """Delete what is kept no longer: tasks, slots, leases, events. Returns how many of each."""
    from leasing import pruning
    from tasks.maintenance import housekeeping, scheduler

    leases = pruning.prune(FORGET_AFTER)
    return {
        **housekeeping.prune(),
        "slots": scheduler.keep_house(),
        "leases": leases.leases,
        "events": leases.events,
        "once_keys": leases.once_keys,
        "audit_entries": pruning.prune_audit(),
    }


@cache
def _declare() -> None:
    """Store the schedules that code declares: once, or old processes would undo what those of a
    new release say."""
    from tasks.maintenance import scheduler

    scheduler.declare_all()


def housekeeping() -> dict[str, dict[str, Any]]:
    """The entries for ``beat_schedule``, as often as TASK_QUEUE says: SWEEP_EVERY,
    EXAMINE_EVERY, and PRUNE_EVERY unless that is None."""
    from tasks.conf import task_settings
    from tasks.maintenance.housekeeping import LEFT_BEHIND_EVERY

    plans: list[tuple[Any, float | None]] = [
        (sweep, task_settings.SWEEP_EVERY),
        (examine, task_settings.EXAMINE_EVERY),
        (cancel_left_behind, LEFT_BEHIND_EVERY),
        (serve_schedules, SERVE_EVERY),
        (prune, task_settings.PRUNE_EVERY),
    ]
    return {
        name: {"task": name, "schedule": every, "options": {"expires": every}}
        for name, every in ((f"{__name__}.{task.__name__}", every) for task, every in plans)
        if every is not None
    }
