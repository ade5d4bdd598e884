"""Routes of operators on one task, with the actions of the pages and the admin.

Each action is recorded in the audit, and answers the task as it is afterwards. An action that
changes nothing answers 409 with the reason.
"""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest
from ninja import Router
from ninja.errors import HttpError
from pydantic import Field

from leasing.api.access import Access
from leasing.api.bodies import WHOLE, Request, Text, Words
from leasing.api.errors import BAD_BODY, answers
from leasing.api.principals import principal_of
from leasing.dashboard.forms import REASON_LENGTH
from leasing.dashboard.operator_actions import FormData, OperatorAction
from leasing.validation.names import check_name
from tasks.api.acting import perform
from tasks.api.rows import find, tasks
from tasks.api.schemas import MomentIn, QueueName, TaskOut
from tasks.api.visibility import shown
from tasks.bounds import PRIORITIES
from tasks.dashboard.operator_actions import ACTIONS, REVOCATION

router = Router(tags=["tasks"])

ANSWERS = answers({200: TaskOut}, *BAD_BODY, 404, 409)


class Reasoned(Request):
    """The reason for an operator's action: stored in the audit."""

    reason: Text = Field("", max_length=REASON_LENGTH)


class Reason(Request):
    """The reason for an operator's action: stored with the task and in the audit."""

    reason: Words = Field(max_length=REASON_LENGTH)


class Reschedule(Reasoned):
    """Another queue, time or priority."""

    queue: QueueName | None = Field(None, description="The queue to move it to.")
    scheduled_at: MomentIn | None = Field(None, description="The earliest start.")
    at_once: bool = Field(False, description="True in place of a time: as soon as possible.")
    priority: Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[1]), WHOLE] | None = Field(
        None, description="Higher goes first."
    )


@router.put("/tasks/{task_id}/cancel", auth=Access(ACTIONS["cancel"].permission), response=ANSWERS)
def cancel_task(request: HttpRequest, task_id: str, body: Reason) -> TaskOut:
    """End a waiting task at once, and ask the holder of a running one to stop: until it does,
    `status` stays running and `cancel_requested_at` is set."""
    return _act(request, task_id, ACTIONS["cancel"], {"reason": body.reason})


@router.put("/tasks/{task_id}/retry", auth=Access(ACTIONS["retry"].permission), response=ANSWERS)
def retry_task(request: HttpRequest, task_id: str, body: Reasoned) -> TaskOut:
    """Set a failed or cancelled task ready, with one more attempt if all were used."""
    return _act(request, task_id, ACTIONS["retry"], {"reason": body.reason})


@router.put(
    "/tasks/{task_id}/reschedule",
    auth=Access(ACTIONS["reschedule"].permission),
    response=ANSWERS,
)
def reschedule_task(request: HttpRequest, task_id: str, body: Reschedule) -> TaskOut:
    """Move a waiting task to another queue, time or priority."""
    form_data = body.model_dump()
    if body.at_once and body.scheduled_at is not None:
        raise HttpError(400, "Give scheduled_at or at_once, not both.")
    times = body.at_once or body.scheduled_at is not None
    if not (times or body.queue or body.priority is not None):
        raise HttpError(400, "Give a queue, a time, or a priority.")
    if body.queue:
        principal_of(request).check_queue(check_name(body.queue, "queue"))
    return _act(request, task_id, ACTIONS["reschedule"], form_data)


@router.put("/tasks/{task_id}/revoke", auth=Access(REVOCATION.permission), response=ANSWERS)
def revoke_task(request: HttpRequest, task_id: str, body: Reason) -> TaskOut:
    """Take a running task from its holder now, as recovery does after the deadline. A late result
    of that holder is refused."""
    return _act(request, task_id, REVOCATION, {"reason": body.reason})


def _act(
    request: HttpRequest, task_id: str, action: OperatorAction, form_data: FormData
) -> TaskOut:
    """Do an action to one task, and return the task. Raises Http404; HttpError 409 if it changes
    nothing."""
    perform(request, action, tasks(), find(request, task_id).pk, form_data)
    return shown(request, find(request, task_id))
