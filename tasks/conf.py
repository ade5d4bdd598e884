"""``settings.TASK_QUEUE`` with types and defaults, read live. (Django owns ``TASKS``.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from leasing.conf import AppSettings

#: A time for which rows are kept: seconds, a timedelta, or None for no limit.
Age = float | timedelta | None
#: The time for which ended tasks are kept where RETENTION does not say. Failed ones wait for
#: someone to look at them, which may take a quarter of a year.
KEPT: Mapping[str, Age] = {
    "succeeded": timedelta(days=7),
    "cancelled": timedelta(days=7),
    "failed": timedelta(days=90),
}
#: The name in RETENTION of tasks with an idempotency key, of any state: as long as one is kept, a
#: request that is sent again finds it.
KEYED = "keyed"


class TaskQueueSettings(AppSettings):
    """``settings.TASK_QUEUE``. Times are in seconds."""

    #: Attempts of a task, unless the caller or its handler sets them.
    MAX_ATTEMPTS: int = 10
    #: The pause before a retry, unless the handler has a policy: random, up to
    #: ``base`` * 2 ** (attempt - 1), at most ``cap``.
    BACKOFF: Mapping[str, float] = {"base": 1.0, "cap": 3600.0}
    #: All queues. Other names are refused, so that a typo does not hide tasks.
    QUEUES: tuple[str, ...] = ("default",)
    #: Each worker looks for tasks whose holder is gone when the next deadline that it knows has
    #: passed, and at least this often, or as often as its ttl says if that is shorter. So only a
    #: task with a shorter ttl or progress_timeout that was claimed since its last look is found
    #: late, by less than this. Celery beat and remote workers know no deadlines.
    SWEEP_EVERY: float = 5.0
    #: Seconds between checks of the other invariants, by one of all workers.
    EXAMINE_EVERY: float = 60.0
    #: Seconds between the deletions of what RETENTION does not keep, by one of all workers; None:
    #: workers delete nothing.
    PRUNE_EVERY: float | None = 3600.0
    #: The time for which ended tasks are kept, by their state: seconds, a timedelta, or None for no
    #: limit. The defaults of other states are in ``tasks.conf.KEPT``. "keyed": the least time for
    #: those with an idempotency key, by default that of failed tasks.
    RETENTION: Mapping[str, Age] = {}
    #: True to record the charts' samples every ten seconds, by one of all workers.
    SAMPLES: bool = True
    #: The time for which samples are kept, by default a day; None: no limit.
    SAMPLE_RETENTION: Age = 86_400.0
    #: Seconds between polls of an idle worker; five times as long while notifications arrive.
    POLL_EVERY: float = 1.0
    #: Seconds for which tasks may continue after their worker was asked to stop.
    STOP_TIMEOUT: float = 30.0
    #: Seconds after which a worker closes a connection that does not answer its statement, in case
    #: the network has dropped the answer.
    ANSWER_TIMEOUT: float = 15.0
    #: The same for statements of handlers and of housekeeping; None: no limit.
    HANDLER_ANSWER_TIMEOUT: float | None = 300.0
    #: The store of the lease under which one generator generates, an alias in LEASING["STORES"].
    GENERATOR_STORE: str = "default"
    #: The name of that lease. In a store that several sites share, each needs a name of its own.
    GENERATOR_LEASE: str = "leasing_tasks.generator"
    #: The path of the Celery application ("project.celery.app"), for the relay.
    CELERY_APP: str | None = None
    #: The queues whose tasks a relay also publishes to the broker, for Celery workers.
    CELERY_QUEUES: tuple[str, ...] = ()
    #: The greatest number of ready tasks of a queue that are at the broker at a time.
    CELERY_WINDOW: int = 1000
    #: Seconds that a published task may stay unclaimed until it is published again, if the broker
    #: seems to have lost it.
    CELERY_PATIENCE: float = 60.0
    #: The path of the callable that hands one message of ``tasks.outbox`` to its receiver, and
    #: returns once that has it; None: Celery's broker does.
    OUTBOX_PUBLISHER: str | None = None
    #: The exchange to which messages of ``tasks.outbox`` are published over Celery's broker.
    OUTBOX_EXCHANGE: str = "outbox"
    #: The time for which published messages are kept, by default a week; None: no limit.
    OUTBOX_RETENTION: Age = 7 * 86_400.0


task_settings = TaskQueueSettings("TASK_QUEUE")


def outbox_publisher() -> Callable[[Any], object] | None:
    """Return the callable that OUTBOX_PUBLISHER names; None if it names none. Raises
    ImproperlyConfigured."""
    path = task_settings.OUTBOX_PUBLISHER
    if path is None:
        return None
    try:
        publisher = import_string(path)
    except Exception as error:  # whatever its module raises
        text = f"TASK_QUEUE['OUTBOX_PUBLISHER'] cannot be loaded: {error}"
        raise ImproperlyConfigured(text) from error
    # What only makes a coroutine or a generator would send nothing, and look as if it had.
    for is_other, what in (
        (not callable(publisher), "not callable"),
        (iscoroutinefunction(publisher), "a coroutine function"),
        (isgeneratorfunction(publisher) or isasyncgenfunction(publisher), "a generator function"),
    ):
        if is_other:
            raise ImproperlyConfigured(
                f"TASK_QUEUE['OUTBOX_PUBLISHER'] must be a plain function of one message: {path} "
                f"is {what}."
            )
    return cast("Callable[[Any], object]", publisher)


def retention() -> dict[str, timedelta | None]:
    """Return the time for which the tasks of each ended state are kept, and the least time for
    those with an idempotency key (KEYED); None: for ever."""
    kept = {**KEPT, **task_settings.RETENTION}
    return {
        state: each if each is None or isinstance(each, timedelta) else timedelta(seconds=each)
        for state, each in {**kept, KEYED: kept.get(KEYED, kept["failed"])}.items()
    }
