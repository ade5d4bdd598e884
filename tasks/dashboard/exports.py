"""Columns that the lists of tasks and recoveries export."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from leasing.web.export import Column, plain, secret

VIEW_PAYLOAD: Final = "leasing_tasks.view_payload"
#: Columns that are shown only with that permission.
PAYLOAD: Final = ("task_data", "task_output", "progress", "checkpoint")

TASKS: Final = [
    *plain("id", "name", "queue", "status", "priority", "attempts", "max_attempts"),
    *plain("created_at", "scheduled_at", "started_at", "processed_at", "holder", "acquired_at"),
    Column("expires_at", lambda task: task.expires_at if task.grants else None),
    *plain("fencing_token", "unique_key", "concurrency_key", "cancel_requested_at"),
    *plain("cancel_requested_by", "last_error"),
    *secret(VIEW_PAYLOAD, *PAYLOAD),
]
RECOVERED: Final = [
    *plain("task_id"),
    Column("name", lambda attempt: attempt.task.name),
    Column("queue", lambda attempt: attempt.task.queue),
    *plain("number", "holder", "started_at", "ended_at", "error", "fencing_token"),
    *plain("refused_at", "refused_verb"),
    Column("status", lambda attempt: attempt.task.status),
    Column("attempts", lambda attempt: attempt.task.attempts),
]


def readable(rows: Any, user: AbstractBaseUser | AnonymousUser) -> Any:
    """Return ``rows`` of tasks without the columns that ``user`` may not see."""
    may: Any = user
    return rows if may.has_perm(VIEW_PAYLOAD) else rows.defer(*PAYLOAD)
