"""Run the duties that one of all workers does for all of them, whichever comes first: checking
invariants, cancelling the children of what was cancelled, and pruning.

Each is work of ``leasing.once``, which is done once a window. Who dies at it is succeeded when
its lease has run out; who asks while another is at it leaves it to that one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import connections

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseError
from leasing.functions import EPOCH
from leasing.idempotency import once
from leasing.pruning import prune_audit
from leasing.runtime.services import Service
from tasks.conf import KEYED, retention, task_settings
from tasks.log import log
from tasks.maintenance import recovery
from tasks.maintenance.invariants import is_anything_stopped
from tasks.models import Task
from tasks.querysets import BULK_BATCH

#: Seconds between two batches, in which other statements run.
PRUNE_PAUSE = 0.1
#: Seconds between looks for children whose parents were cancelled: so that their holders have heard
#: of it half a minute after the cancellation.
LEFT_BEHIND_EVERY = 15.0


class Stopped(Exception):
    """This process ends; another will go on."""


def prune(
    keep: Mapping[str, timedelta | None] | None = None,
    *,
    batch: int = BULK_BATCH,
    pause: float = PRUNE_PAUSE,
    stopping: threading.Event | None = None,
) -> dict[str, int]:
    """Delete tasks that ended long enough ago. Returns how many of each state.

    Args:
        keep: The time to keep tasks of each state; None: TASK_QUEUE["RETENTION"]. That decides in
            any case about tasks with an idempotency key, unless their state is kept for longer.
        batch: Rows that one transaction deletes.
        pause: Seconds between transactions.
        stopping: Set to stop early.

    Raises Stopped when ``stopping`` was set and there was more to do.
    """
    stopping = threading.Event() if stopping is None else stopping
    kept = retention()
    keyed = kept.pop(KEYED)
    pruned: dict[str, int] = {}

    def delete(rows: Any, age: timedelta) -> int:
        deleted, gone, since = 0, batch, EPOCH
        while gone == batch:
            if deleted:
                stopping.wait(pause)
            if stopping.is_set():
                raise Stopped
            rows = rows.filter(processed_at__gte=since)
            # Where the next batch begins: it does not read again what is kept for its key.
            old = rows.prunable(age).order_by("processed_at")
            since = old.values_list("processed_at", flat=True).first()
            gone = rows.filter(processed_at__gte=since).prune(age, batch) if since else 0
            deleted += gone
        return deleted

    for state, age in (kept if keep is None else keep).items():
        if age is None:
            continue
        rows = Task.objects.filter(status=state)
        pruned[state] = delete(rows.filter(idempotency_key=None), age)
        if keyed is not None:
            pruned[state] += delete(rows.exclude(idempotency_key=None), max(age, keyed))
    if any(pruned.values()):
        said = ", ".join(f"{count} {state}" for state, count in pruned.items() if count)
        log.tasks_pruned(pruned=said)
    return pruned


def services(stopping: threading.Event) -> list[Service]:
    """Examine, cancel children and prune in their time, or see that another process does. Pruning
    ends early, and another goes on with it, when ``stopping`` is set."""

    def prune_all() -> None:
        prune(stopping=stopping)
        prune_audit()

    examine_every, prune_every = task_settings.EXAMINE_EVERY, task_settings.PRUNE_EVERY
    # No shorter than the lease of its work allows.
    cancel_every = max(LEFT_BEHIND_EVERY, 2 * leasing_settings.MIN_TTL)
    duties = [
        _duty("examine", "Examining tasks", examine_every, recovery.examine),
        _duty(
            "left_behind",
            "Cancelling children",
            cancel_every,
            recovery.cancel_left_behind,
            # Most of the time nothing was cancelled, which one query tells.
            is_needed=is_anything_stopped,
        ),
    ]
    if prune_every is not None:
        duties.append(_duty("prune", "Pruning", prune_every, prune_all))
    return duties


def _duty(
    name: str,
    what: str,
    window: float,
    work: Callable[[], object],
    is_needed: Callable[[], bool] = lambda: True,
) -> Service:
    """Does ``work``, where it is needed, unless it was done within the last ``window`` seconds, or
    is being done."""
    key = f"leasing_tasks:{name}"

    def tick() -> float:
        ttl = min(leasing_settings.TTL, window / 2)
        try:
            if is_needed():
                once(key, window, ttl=ttl, wait=0).run(lambda: bool(work()))
        except (LeaseError, Stopped) as reason:
            log.housekeeping_left_to_another(duty=key, reason=reason)
        finally:
            connections.close_all()  # or it would idle until the next time
        # Later than the window: who is alone would find its own work just done.
        return window * random.uniform(1.0, 1.2)

    # A process that does not live for a window does its part too.
    soon = min(window, task_settings.EXAMINE_EVERY)
    return Service(
        tick,
        partial(log.housekeeping_failed, duty=what),
        starts_in=soon * random.uniform(0.75, 1.0),  # those that start together begin apart
        longest=soon,
    )
