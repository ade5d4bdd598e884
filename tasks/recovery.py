"""Recovery: finds tasks whose holder is gone and sets them ready again.

A controller runs in every worker, and alone under ``manage.py run_recovery``. It is never a
task in the queue it repairs, and none is elected: its repairs are conditional updates over rows
locked with SKIP LOCKED, so any number may run, and a dying one delays nothing.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from django.db import Error, close_old_connections, connections

from tasks.conf import task_settings
from tasks.models import Task
from tasks.querysets import SWEEP_BATCH

logger = logging.getLogger("tasks.recovery")

#: Seconds between sweeps while the database is away.
LONGEST_PAUSE = 30.0


def sweep() -> int:
    """Recover every stuck or stalled task there is now. Returns how many."""
    return _all_of(Task.objects.recover) + _all_of(Task.objects.recover_stalled)


def _all_of(recover: Callable[[int], int]) -> int:
    total = 0
    while True:
        recovered = recover(SWEEP_BATCH)
        total += recovered
        if recovered < SWEEP_BATCH:
            return total


def run_until(stopping: threading.Event, found: Callable[[], object] | None = None) -> None:
    """Sweep about every SWEEP_EVERY seconds until ``stopping``, whatever happens between.

    ``found`` is called after a sweep that recovered something.
    """
    failures = 0
    while not stopping.is_set():
        try:
            close_old_connections()
            if sweep() and found is not None:
                found()
            failures = 0
        except Error as error:
            failures += 1
            connections.close_all()
            logger.warning("a sweep failed, and is tried again: %s", error)
        except Exception:
            failures += 1
            logger.exception("a sweep failed, and is tried again")
        pause = min(LONGEST_PAUSE, task_settings.SWEEP_EVERY * 2.0 ** min(failures, 10))
        stopping.wait(pause * random.uniform(0.8, 1.0))
    connections.close_all()
