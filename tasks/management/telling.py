"""Tasks and their attempts as ``manage.py tasks`` prints them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.text import Truncator

from leasing.humanize import DATE, TIME, ago, stamp
from tasks.dashboard.badges import badge_of_task
from tasks.dashboard.listing import short_form
from tasks.diagnosis.trace import Event
from tasks.models import Task, TaskAttempt

#: Characters of the arguments of a task that a list shows.
ARGUMENTS_SHOWN = 60


def facts_of(task: Task) -> dict[str, Any]:
    """Return the public columns of a task: not its grant, which proves a term."""
    columns = (
        *("id", "name", "queue", "status", "priority", "scheduled_at", "created_at"),
        *("started_at", "processed_at", "attempts", "max_attempts", "holder", "expires_at"),
        *("fencing_token", "unique_key", "concurrency_key", "progress", "cancel_requested_at"),
        *("last_error", "parent_id"),
    )
    facts = {column: getattr(task, column) for column in columns}
    facts["parent"] = facts.pop("parent_id")
    return facts if task.grants else facts | {"expires_at": None}


def columns_of(task: Task, now: datetime) -> tuple[str, ...]:
    moment = task.processed_at or task.acquired_at or task.scheduled_at
    if task.status == "ready":
        moment = task.scheduled_at
    attempts = f"{task.attempts}/{task.max_attempts}"
    holder = task.holder if task.status == "running" else ""
    when = ago(moment, now)
    state = badge_of_task(task, now).word
    arguments = Truncator(short_form(task.task_data)).chars(ARGUMENTS_SHOWN)
    return str(task.pk), state, task.name, task.queue, attempts, when, holder, arguments


def facts_of_attempt(attempt: TaskAttempt) -> dict[str, Any]:
    names = ("number", "outcome", "holder", "started_at", "ended_at", "fencing_token", "error")
    return {name: getattr(attempt, name) for name in (*names, "traceback", "refused_verb")}


def columns_of_attempt(attempt: TaskAttempt) -> tuple[str, ...]:
    error = attempt.error.partition("\n")[0]
    refused = f"late {attempt.refused_verb} refused" if attempt.refused_verb else ""
    moment = stamp(attempt.ended_at)
    return f"attempt {attempt.number}", moment, attempt.outcome, attempt.holder, refused, error


def columns_of_event(event: Event, start: datetime) -> tuple[str, ...]:
    moment = timezone.localtime(event.at).strftime(f"{DATE} {TIME}.%f")[:-3]
    after = f"{(event.at - start).total_seconds():+.3f} s"
    attempt, token = (str(number or "") for number in (event.attempt, event.fencing_token))
    return moment, after, event.event, attempt, event.holder, token, event.text
