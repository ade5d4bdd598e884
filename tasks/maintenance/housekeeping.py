"""What is done once for all workers, by whichever comes first: examining, and pruning.

Each is work of ``leasing.once``, which is done once a window. Who dies at it is succeeded when
its lease has run out; who asks while another is at it leaves it to that one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.db import Error, close_old_connections, connections

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseError
from leasing.idempotency import once
from leasing.pruning import prune_audit
from leasing.runtime.clock import clock
from leasing.runtime.event_logger import get_logger
from leasing.runtime.outage import Streak
from tasks.conf import Age, task_settings
from tasks.models import Task, TaskStatus
from tasks.querysets import BULK_BATCH

logger = get_logger("tasks.housekeeping")

#: Seconds between two batches, in which others come to their turn.
PAUSE = 0.1
#: How often in PRUNE_EVERY each worker asks whether it is time to.
PRUNE_LOOKS = 6
#: How long ended tasks are kept where RETENTION does not say. The dead ones wait for someone
#: to look at them, and a quarter of a year is what such a look may take.
KEPT: Mapping[str, Age] = {
    TaskStatus.SUCCEEDED.value: timedelta(days=7),
    TaskStatus.CANCELLED.value: timedelta(days=7),
    TaskStatus.FAILED.value: timedelta(days=90),
}


class Stopped(Exception):
    """This process ends; another will go on."""


def retention() -> dict[str, timedelta | None]:
    """How long the tasks of each ended state are kept; None: for ever."""
    return {
        state: each if each is None or isinstance(each, timedelta) else timedelta(seconds=each)
        for state, each in ({**KEPT, **task_settings.RETENTION}).items()
    }


def prune(
    keep: Mapping[str, timedelta | None] | None = None,
    *,
    batch: int = BULK_BATCH,
    pause: float = PAUSE,
    stopping: threading.Event | None = None,
) -> dict[str, int]:
    """Delete tasks that ended longer ago than ``keep`` says for their state (None: what
    TASK_QUEUE["RETENTION"] says), ``batch`` rows in a transaction, with ``pause`` seconds
    between them. Returns how many of each state.

    Raises Stopped when ``stopping`` was set and there was more to do.
    """
    stopping = stopping or threading.Event()
    pruned: dict[str, int] = {}
    for state, age in (retention() if keep is None else keep).items():
        if age is None:
            continue
        pruned[state] = 0
        while True:
            if stopping.is_set():
                raise Stopped
            gone = Task.objects.filter(status=state).prune(age, batch)
            pruned[state] += gone
            if gone < batch:
                break
            stopping.wait(pause)
    if any(pruned.values()):
        said = ", ".join(f"{count} {state}" for state, count in pruned.items() if count)
        logger.info("pruned: %s", said, event="tasks.pruned", pruned=said)
    return pruned


def run_until(stopping: threading.Event, examine: Callable[[], object]) -> None:
    """Examine and prune in their time, or see that another does, until ``stopping``."""
    # Workers that start together begin apart.
    stopping.wait(task_settings.EXAMINE_EVERY * random.uniform(0.75, 1.0))
    asked_at = float("-inf")
    failures = Streak(task_settings.EXAMINE_EVERY, task_settings.EXAMINE_EVERY)
    while not stopping.is_set():
        _once(
            "leasing_tasks:examine",
            task_settings.EXAMINE_EVERY,
            lambda: bool(examine()),
            stopping,
            failures,
        )
        every = task_settings.PRUNE_EVERY
        if every is not None and clock() - asked_at >= every / PRUNE_LOOKS:
            asked_at = clock()
            _once("leasing_tasks:prune", every, lambda: _prune_all(stopping), stopping, failures)
        connections.close_all()  # or it would idle until the next time
        stopping.wait(task_settings.EXAMINE_EVERY * random.uniform(0.8, 1.0))


def _prune_all(stopping: threading.Event) -> None:
    prune(stopping=stopping)
    prune_audit()


def _once(
    key: str,
    window: float,
    work: Callable[[], Any],
    stopping: threading.Event,
    failures: Streak,
) -> None:
    """Do ``work`` unless it was done within the last ``window`` seconds, or is being done."""
    if stopping.is_set():
        return
    try:
        close_old_connections()
        once(key, window, ttl=min(leasing_settings.TTL, window / 2), wait=0).run(work)
        failures.succeeded()
    except (LeaseError, Stopped) as reason:
        failures.succeeded()
        logger.debug(
            "%s is left to another: %s",
            key,
            reason,
            event="housekeeping.left_to_another",
            duty=key,
            reason=reason,
        )
    except Error as error:
        failures.failed(error)
        connections.close_all()
        logger.log(
            failures.level,
            "%s failed, and is tried again: %s",
            key,
            error,
            event="housekeeping.failed",
            duty=key,
            error=error,
        )
    except Exception:
        logger.exception(
            "%s failed, and is tried again", key, event="housekeeping.failed", duty=key
        )
