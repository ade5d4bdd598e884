"""Diagnose tasks that only Celery workers can run, which claim a task after its message."""

from __future__ import annotations

from datetime import datetime

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import Moment, Sentence, span
from tasks.conf import task_settings
from tasks.diagnosis.context import DiagnosisContext
from tasks.diagnosis.unclaimed import diagnosed
from tasks.models import Task

START_A_RELAY = (
    "Its tasks wait until a relay (manage.py run_relay) or a worker (manage.py run_worker) is "
    "started."
)


def unpublished(
    task: Task, context: DiagnosisContext, facts: list[tuple[str, str]]
) -> Diagnosis | None:
    """Diagnose a task without a message; None if it has one.

    Args:
        task: The task, which is due.
        context: The workers and their tasks.
        facts: Names and values that the diagnosis shows.
    """
    if task.queue not in task_settings.CELERY_QUEUES:
        headline = (
            f"Only Celery workers serve the queue {task.queue}, and its tasks are not published to "
            "them: TASK_QUEUE['CELERY_QUEUES'] does not list it."
        )
        next_ = "Its tasks wait until it is listed, or a worker serves it: manage.py run_worker."
        until = "The queue is published or served."
        return diagnosed("no_worker", "critical", headline, next_, until, facts)
    if task.has_message:
        return None
    if not context.relays:
        headline = (
            f"Only Celery workers serve the queue {task.queue}, and no relay is running to publish "
            "its tasks to them."
        )
        until = "A relay publishes it."
        return diagnosed("no_relay", "critical", headline, START_A_RELAY, until, facts)
    headline = "Due, but not yet published to the Celery broker."
    window = task_settings.CELERY_WINDOW
    next_ = (
        f"At each poll the relay publishes due tasks, the first {window:,} of a queue. If that "
        "does not happen, check the relay's log: the broker may be down."
    )
    return diagnosed("unpublished", "info", headline, next_, "The relay publishes it.", facts)


def published(task: Task, now: datetime, facts: list[tuple[str, str]]) -> Diagnosis:
    """Diagnose a task that has a message, and for which a Celery worker has a free slot.
    Arguments are those of ``unpublished``, and the database's clock."""
    assert task.published_at is not None
    since = Moment(task.published_at)
    facts = [*facts, ("Published", Sentence(now, since))]
    patience = span(task_settings.CELERY_PATIENCE)
    return Diagnosis(
        "published",
        "ok",
        Sentence(now, "Due. Published to the Celery broker ", since, "."),
        f"The worker that receives the message claims the task. If the broker lost the message, it "
        f"is published again after {patience}.",
        until="A worker receives its message.",
        facts=facts,
    )
