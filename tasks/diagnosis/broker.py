"""Tasks that only Celery workers would run, which claim what a message tells them of."""

from __future__ import annotations

from datetime import datetime

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import span
from tasks.conf import task_settings
from tasks.diagnosis.surroundings import Surroundings
from tasks.diagnosis.unclaimed import told
from tasks.models import Task

START_A_RELAY = "It waits until one is started: manage.py run_relay; or a worker: run_worker."


def unpublished(task: Task, around: Surroundings, facts: list[tuple[str, str]]) -> Diagnosis | None:
    """No message tells of it; None: one does."""
    if task.queue not in task_settings.CELERY_QUEUES:
        headline = (
            f"Only Celery workers serve the queue {task.queue}, and no message tells them of its "
            "tasks: TASK_QUEUE['CELERY_QUEUES'] does not name it."
        )
        next_ = "It waits until it does, or another worker serves the queue: manage.py run_worker."
        return told("no_worker", "critical", headline, next_, "Until then.", facts)
    if task.has_message:
        return None
    if not around.relays:
        headline = (
            f"Only Celery workers serve the queue {task.queue}, and no relay shows a sign of life "
            "that would publish its tasks to them."
        )
        until = "Until a relay publishes it."
        return told("no_relay", "critical", headline, START_A_RELAY, until, facts)
    headline = "It is due, and not published to Celery's broker yet."
    window = task_settings.CELERY_WINDOW
    next_ = (
        f"The relay publishes it at its next look, or when it is among the first {window:,} of its "
        "queue. If that lasts, the relay's log says why: the broker may be away."
    )
    return told("unpublished", "info", headline, next_, "Until the relay publishes it.", facts)


def published(task: Task, now: datetime, facts: list[tuple[str, str]]) -> Diagnosis:
    """A message tells of it, and a Celery worker has a place for it."""
    assert task.published_at is not None
    since = now - task.published_at
    facts = [*facts, ("Published", f"{span(since)} ago")]
    patience = span(task_settings.CELERY_PATIENCE)
    return Diagnosis(
        "published",
        "ok",
        f"It is due, and was published to Celery's broker {span(since)} ago.",
        f"The worker that gets the message claims it. If the broker lost it, it is published again "
        f"after {patience}.",
        until="Until a worker gets its message.",
        facts=facts,
    )
