"""Routes of task holders, as clients of the public sample service know them.

Here the processor's name alone finds the term that a request is about: it suffices in the
compatible mode, where there is nothing else, and for now for signed-in users who may change
tasks as well. What is then done, is done with the grant of the row that was found. Unlike
workers of this project, which prove their grant by themselves, a processor is refused once its
deadline has passed, even while nobody else has the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Status

from leasing.api.access import Access
from leasing.api.bodies import Error, Notice
from leasing.api.errors import BAD_BODY, answers
from leasing.exceptions import LeaseLost
from leasing.validation.names import check_name
from tasks.api.rows import find, tasks
from tasks.api.schemas import Complete, Fail, Processor, TaskOut
from tasks.api.visibility import shown, shown_to_owner
from tasks.models import Task

may_change = Access("leasing_tasks.change_task")

router = Router(tags=["tasks"])


@router.post(
    "/tasks/next", auth=may_change, response=answers({202: TaskOut, 200: Notice}, *BAD_BODY)
)
def claim_next_task(request: HttpRequest, body: Processor) -> Status[Any]:
    """Lease the next task that is due, of any queue, to the processor."""
    for task in tasks().claim(body.processor):
        return Status(202, shown_to_owner(task))
    return Status(200, Notice(message="There is no task to run now."))


_REFUSED: dict[int, Any] = {200: Notice, 409: Notice | Error}


@router.put(
    "/tasks/{task_id}/heartbeat",
    auth=may_change,
    response=answers({202: TaskOut, **_REFUSED}, *BAD_BODY),
)
def heartbeat_task(request: HttpRequest, task_id: str, body: Processor) -> Status[Any]:
    """Move the deadline to the lease's ttl from now."""
    return by_processor(request, task_id, body, tasks().heartbeat)


@router.put(
    "/tasks/{task_id}/complete",
    auth=may_change,
    response=answers({202: TaskOut, **_REFUSED}, *BAD_BODY),
)
def complete_task(request: HttpRequest, task_id: str, body: Complete) -> Status[Any]:
    """End the task well and keep its output."""

    def complete(task: Task) -> Task:
        return tasks().complete(task, body.task_output, unexpired=True)

    return by_processor(request, task_id, body, complete)


@router.put(
    "/tasks/{task_id}/fail",
    auth=may_change,
    response=answers({202: TaskOut, **_REFUSED}, *BAD_BODY),
)
def fail_task(request: HttpRequest, task_id: str, body: Fail) -> Status[Any]:
    """End this attempt badly. The task is tried again, unless that was its last attempt."""

    def fail(task: Task) -> Task:
        return tasks().fail(task, body.error, unexpired=True)

    return by_processor(request, task_id, body, fail)


def by_processor(
    request: HttpRequest, task_id: str, body: Processor, verb: Callable[[Task], Task]
) -> Status[Any]:
    """Call a verb on a task for the processor that has it, with the grant it has. The verb itself
    records its refusal.

    Args:
        request: The processor's request.
        task_id: The id of the task, from the address.
        body: The body of the request, which names the processor.
        verb: Writes the task and returns it; it may raise LeaseLost.
    """
    processor = check_name(body.processor, "processor")
    try:
        task = find(task_id)
    except Http404 as missing:
        return Status(200, Notice(message=str(missing)))
    if task.holder != processor:
        return Status(200, Notice(message=f"Task {task_id} is not assigned to {processor}."))
    try:
        return Status(202, shown(request, verb(task), processor))
    except LeaseLost:
        if not tasks().filter(pk=task.pk, processed_at__isnull=False).exists():
            raise
    return Status(409, Notice(message=f"Task {task_id} was already processed."))
