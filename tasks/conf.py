"""``settings.TASK_QUEUE`` with types and defaults, read live. (Django owns ``TASKS``.)"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from leasing.conf import AppSettings

#: How long something is kept: seconds, a timedelta, or None for ever.
Age = float | timedelta | None


class TaskQueueSettings(AppSettings):
    """``settings.TASK_QUEUE``. Times are in seconds."""

    #: How often a task is tried when neither the caller nor its handler says.
    MAX_ATTEMPTS: int = 10
    #: Waiting before a retry: at random up to ``base`` * 2 ** (attempt - 1), at most ``cap``.
    BACKOFF: Mapping[str, float] = {"base": 1.0, "cap": 3600.0}
    #: Every queue there is. Others are refused, so that a typo does not hide tasks.
    QUEUES: tuple[str, ...] = ("default",)
    #: After how long, at the latest, each worker looks again for tasks whose holder is gone. It
    #: knows of the deadlines of those that run, and looks when the next is over; so what is
    #: found late is only what was claimed meanwhile, for less than this.
    SWEEP_EVERY: float = 3.0
    #: How often one of all workers looks for the other states that must not be.
    EXAMINE_EVERY: float = 60.0
    #: How often one of all workers deletes what RETENTION does not keep; None: none does.
    PRUNE_EVERY: float | None = 3600.0
    #: How long tasks are kept that have ended, by their state: seconds, a timedelta, or None
    #: for ever. States that it does not name: see ``tasks.maintenance.housekeeping``.
    RETENTION: Mapping[str, Age] = {}
    #: Whether one of all workers notes every ten seconds what the charts show.
    SAMPLES: bool = True
    #: How long that is kept; None: for ever.
    SAMPLE_RETENTION: Age = 86_400.0
    #: How often an idle worker looks for tasks; a fifth as often while notifications arrive.
    POLL_EVERY: float = 1.0
    #: How long a worker that was asked to stop lets its tasks run on.
    STOP_TIMEOUT: float = 30.0
    #: How long a statement of a worker's own may take until its connection is cut off, for a
    #: network that has swallowed the answer.
    ANSWER_TIMEOUT: float = 15.0
    #: How long a statement may take that is a handler's, or housekeeping's; None: for ever.
    HANDLER_ANSWER_TIMEOUT: float | None = 300.0
    #: Where the Celery application is found ("project.celery.app"), for the relay.
    CELERY_APP: str | None = None
    #: The queues whose tasks a relay also publishes to the broker, for Celery workers.
    CELERY_QUEUES: tuple[str, ...] = ()
    #: How many tasks of a queue are at the broker at a time: the first of those that are ready.
    CELERY_WINDOW: int = 1000
    #: How long a published task may stay unclaimed until it is published again, if the broker
    #: seems to have lost it.
    CELERY_PATIENCE: float = 60.0
    #: The exchange to which the relay publishes the messages of ``tasks.outbox``.
    OUTBOX_EXCHANGE: str = "outbox"
    #: How long these are kept once they are published; None: for ever.
    OUTBOX_RETENTION: Age = 7 * 86_400.0


task_settings = TaskQueueSettings("TASK_QUEUE")
