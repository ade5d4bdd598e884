"""Decide, for every route, how much of a task a client of the API sees.

| the client | sees |
|---|---|
| has just claimed or enqueued the task | everything, as it is: it is the client's own |
| may see tasks and their payload | everything, secrets masked |
| may see tasks | no payload, and no traceback of an attempt |
| may not see tasks, but named a processor or a unique key | nor the error, nor who has it |

A client without credentials, if such are allowed, may see tasks and their payload.
"""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest

from leasing.api.access import may, scope
from leasing.api.keys import term_shown
from leasing.web.masking import masked
from tasks.api.schemas import AttemptOut, ClaimedTask, HeldTask, TaskOut, fields_of
from tasks.models import Task, TaskAttempt

VIEW: Final = "leasing_tasks.view_task"
VIEW_PAYLOAD: Final = scope("leasing_tasks.view_payload")


def shown_to_owner(task: Task) -> TaskOut:
    """Return ``task`` for the client that has just enqueued it."""
    return TaskOut(**fields_of(task))


def shown_to_claimer(task: Task) -> ClaimedTask:
    """Return ``task`` for the client that has just claimed it."""
    term = term_shown(task, task.now)
    timeout = None if task.timeout is None else task.timeout.total_seconds()
    return ClaimedTask(
        **fields_of(task),
        **term,
        checkpoint=task.checkpoint,
        checkpoints=task.checkpoints,
        timeout=timeout,
    )


def shown_to_holder(request: HttpRequest, task: Task) -> HeldTask:
    """Return ``task`` for its holder, which has just renewed it."""
    assert task.renewed_at is not None
    out = shown(request, task, task.holder)
    return HeldTask(**vars(out), **term_shown(task, task.renewed_at))


def shown(request: HttpRequest, task: Task, processor: str = "") -> TaskOut:
    """Return a task with what the client may see of it.

    Args:
        request: The client's request.
        task: The task.
        processor: The processor that the client has named; empty: none.
    """
    sees_task = may(request, VIEW)
    out = shown_to_owner(task)
    if sees_task and may(request, VIEW_PAYLOAD):
        out.task_data, out.task_output = masked(task.task_data), masked(task.task_output)
        out.progress = masked(task.progress)
    else:
        out.task_data = out.task_output = out.progress = None
    if not sees_task:
        out.last_error = ""
        out.processor = processor or None
    return out


def shown_attempt(request: HttpRequest, attempt: TaskAttempt) -> AttemptOut:
    """Return an attempt with what the client, who may see tasks, may see of it."""
    names = AttemptOut.model_fields.keys() - {"traceback"}
    columns = {name: getattr(attempt, name) for name in names}
    seen = masked(attempt.traceback) if may(request, VIEW_PAYLOAD) else None
    return AttemptOut(**columns, traceback=seen)
