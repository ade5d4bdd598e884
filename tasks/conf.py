"""``settings.TASK_QUEUE`` with types and defaults, read live. (Django owns ``TASKS``.)"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from leasing.conf import AppSettings

#: A time for which rows are kept: seconds, a timedelta, or None for ever.
Age = float | timedelta | None


class TaskQueueSettings(AppSettings):
    """``settings.TASK_QUEUE``. Times are in seconds."""

    #: Attempts of a task when neither the caller nor its handler says.
    MAX_ATTEMPTS: int = 10
    #: Waiting before a retry: at random up to ``base`` * 2 ** (attempt - 1), at most ``cap``.
    BACKOFF: Mapping[str, float] = {"base": 1.0, "cap": 3600.0}
    #: Every queue there is. Others are refused, so that a typo does not hide tasks.
    QUEUES: tuple[str, ...] = ("default",)
    #: After how long, at the latest, each worker looks again for tasks whose holder is gone. It
    #: knows of the deadlines of those that run, and looks when the next is over; so what is
    #: found late is only what was claimed meanwhile, for less than this.
    SWEEP_EVERY: float = 3.0
    #: Seconds between checks of the other invariants, by one of all workers.
    EXAMINE_EVERY: float = 60.0
    #: Seconds between the deletions of what RETENTION does not keep, by one of all workers; None:
    #: none does.
    PRUNE_EVERY: float | None = 3600.0
    #: The time for which ended tasks are kept, by their state: seconds, a timedelta, or None for
    #: ever. For states that it does not name see ``tasks.maintenance.housekeeping``.
    RETENTION: Mapping[str, Age] = {}
    #: True to record the charts' samples every ten seconds, by one of all workers.
    SAMPLES: bool = True
    #: The time for which samples are kept; None: for ever.
    SAMPLE_RETENTION: Age = 86_400.0
    #: Seconds between polls of an idle worker; five times as long while notifications arrive.
    POLL_EVERY: float = 1.0
    #: Seconds that a worker which was asked to stop lets its tasks run on.
    STOP_TIMEOUT: float = 30.0
    #: Seconds that a statement of a worker's own may take until its connection is cut off, for a
    #: network that has swallowed the answer.
    ANSWER_TIMEOUT: float = 15.0
    #: Seconds that a statement of a handler, or of housekeeping, may take; None: for ever.
    HANDLER_ANSWER_TIMEOUT: float | None = 300.0
    #: The path of the Celery application ("project.celery.app"), for the relay.
    CELERY_APP: str | None = None
    #: The queues whose tasks a relay also publishes to the broker, for Celery workers.
    CELERY_QUEUES: tuple[str, ...] = ()
    #: Tasks of a queue that are at the broker at a time: the first of those that are ready.
    CELERY_WINDOW: int = 1000
    #: Seconds that a published task may stay unclaimed until it is published again, if the broker
    #: seems to have lost it.
    CELERY_PATIENCE: float = 60.0
    #: The exchange to which the relay publishes the messages of ``tasks.outbox``.
    OUTBOX_EXCHANGE: str = "outbox"
    #: The time for which these are kept once they are published; None: for ever.
    OUTBOX_RETENTION: Age = 7 * 86_400.0


task_settings = TaskQueueSettings("TASK_QUEUE")
