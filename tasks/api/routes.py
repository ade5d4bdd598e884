"""The task and generator routes, as clients of the public sample service know them.

Here the processor's name alone finds the term that a request is about: it suffices in the
compatible mode, where there is nothing else, and for now for signed-in users who may change
tasks as well. What is then done, is done with the grant of the row that was found. Unlike
workers of this project, which prove their grant by themselves, a processor is refused once its
deadline has passed, even while nobody else has the task.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Status

from leasing.api.access import Access, caller
from leasing.api.bodies import Error, Limit, Notice
from leasing.api.errors import BAD_BODY, ERRORS, answers
from leasing.exceptions import LeaseLost
from leasing.validation.names import check_name
from tasks.api.schemas import (
    Complete,
    DiagnosisOut,
    Enqueue,
    Fail,
    GeneratorOut,
    Processor,
    TaskAnswer,
    TaskList,
    TaskOut,
)
from tasks.api.visibility import VIEW, shown, shown_to_owner
from tasks.diagnosis import diagnose
from tasks.exceptions import (
    InvalidArguments,
    KeyBusy,
    NotSerializable,
    UnknownQueue,
    UnknownTask,
)
from tasks.generator import GeneratorStatus, generator_status, start_generator, stop_generator
from tasks.models import Task
from tasks.querysets import TaskQuerySet

ERRORS.update(
    dict.fromkeys((UnknownTask, UnknownQueue, InvalidArguments, NotSerializable), (400, ""))
)
ERRORS.update({KeyBusy: (409, "")})

may_see, may_add = Access(VIEW), Access("leasing_tasks.add_task")
may_change, may_control = (
    Access("leasing_tasks.change_task"),
    Access("leasing_tasks.control_generator"),
)

router = Router(tags=["tasks"])


@router.get("/tasks", auth=may_see, response=answers({200: TaskList}, 400))
def list_tasks(request: HttpRequest, limit: Limit = 100) -> TaskList:
    """Tasks in any state."""
    return newest(request, tasks(), limit)


@router.get("/tasks/started", auth=may_see, response=answers({200: TaskList}, 400))
def list_started_tasks(request: HttpRequest, limit: Limit = 100) -> TaskList:
    """Tasks that were begun and are not done; between two attempts too."""
    return newest(request, tasks().filter(started_at__isnull=False, processed_at=None), limit)


@router.get("/tasks/processed", auth=may_see, response=answers({200: TaskList}, 400))
def list_processed_tasks(request: HttpRequest, limit: Limit = 100) -> TaskList:
    """Tasks that have ended, in any way."""
    return newest(request, tasks().filter(processed_at__isnull=False), limit)


@router.post("/tasks", auth=may_add, response=answers({200: TaskOut, 201: TaskOut}, 409, *BAD_BODY))
def enqueue_task(request: HttpRequest, body: Enqueue) -> Status[TaskOut]:
    """Store a task. 200 and the task that is there already, while one with the same unique key
    has not ended."""
    task = tasks().enqueue(
        body.name,
        body.data,
        queue=body.queue,
        priority=body.priority,
        scheduled_at=body.scheduled_at,
        unique_key=body.unique_key,
        max_attempts=body.max_attempts,
    )
    if task.is_duplicate:
        return Status(200, shown(request, task))
    return Status(201, shown_to_owner(find(str(task.pk))))


@router.post(
    "/tasks/next", auth=may_change, response=answers({202: TaskOut, 200: Notice}, *BAD_BODY)
)
def claim_next_task(request: HttpRequest, body: Processor) -> Status[Any]:
    """Lease the next task that is due, of any queue, to the processor."""
    for task in tasks().claim(body.processor):
        return Status(202, shown_to_owner(task))
    return Status(200, Notice(message="There is no task to run now."))


@router.get("/tasks/{task_id}", auth=may_see, response=answers({200: TaskAnswer}, 404))
def get_task(request: HttpRequest, task_id: str) -> TaskAnswer:
    """One task."""
    return TaskAnswer(task=shown(request, find(task_id)))


@router.get("/tasks/{task_id}/diagnosis", auth=may_see, response=answers({200: DiagnosisOut}, 404))
def diagnose_task(request: HttpRequest, task_id: str) -> DiagnosisOut:
    """Why a task is where it is, what happens next, and what can be done."""
    task = find(task_id)
    return DiagnosisOut(id=task.pk, **diagnose(task).as_json())


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


@router.post(
    "/generator/start",
    auth=may_control,
    tags=["generator"],
    response=answers({200: GeneratorOut, 409: GeneratorOut}),
)
def start(request: HttpRequest) -> Status[GeneratorOut]:
    """Set the desired state to running. 409 if someone stopped it again at the same moment."""
    return generator_answer(start_generator(by=caller(request), via="api"), wanted=True)


@router.delete(
    "/generator/stop",
    auth=may_control,
    tags=["generator"],
    response=answers({200: GeneratorOut, 409: GeneratorOut}),
)
def stop(request: HttpRequest) -> Status[GeneratorOut]:
    """Set the desired state to stopped: once this is answered, none are. 409 if someone
    started it again at the same moment."""
    return generator_answer(stop_generator(by=caller(request), via="api"), wanted=False)


@router.get(
    "/generator/status", auth=may_see, tags=["generator"], response=answers({200: GeneratorOut})
)
def status(request: HttpRequest) -> Status[GeneratorOut]:
    """STARTED is to run and does not produce yet, RUNNING producing, STOPPED otherwise."""
    seen = generator_status()
    return generator_answer(seen, wanted=seen.status != "STOPPED")


def tasks() -> TaskQuerySet:
    """All tasks, in the database of leases."""
    rows = Task.objects.all().home()
    assert isinstance(rows, TaskQuerySet)
    return rows


def newest(request: HttpRequest, rows: TaskQuerySet, limit: int) -> TaskList:
    """Return the newest of some tasks.

    Args:
        request: The client's request.
        rows: The tasks among which they are.
        limit: The number of tasks, at most.
    """
    return TaskList(tasks=[shown(request, task) for task in rows.order_by("-pk")[:limit]])


def find(task_id: str) -> Task:
    """The task with that id. Raises Http404."""
    # Python reads more than digits as a number, and 1_7 or 017 is no id.
    task = None
    if re.fullmatch("[1-9][0-9]{0,18}", task_id):
        task = tasks().filter(pk=int(task_id)).first()
    if task is None:
        raise Http404(f"There is no task {task_id}.")
    return task


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


def generator_answer(seen: GeneratorStatus, *, wanted: bool) -> Status[GeneratorOut]:
    """200 when the generator is as ``wanted``, else 409."""
    is_as_wanted = (seen.status != "STOPPED") == wanted
    return Status(200 if is_as_wanted else 409, GeneratorOut.model_validate(seen))
