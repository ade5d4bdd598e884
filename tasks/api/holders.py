"""Routes of the holders of tasks, compatible with the public sample service: claim, report, end.

A request of a holder is judged by its ``lease_key``: see ``leasing.api.keys``. In the compatible
mode, whose clients have none, the processor's name alone finds the term of a request. The verb then
uses the grant of the row that was read. Unlike workers of this project, a processor is refused once
its deadline has passed, even while nobody else has the task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from django.http import Http404, HttpRequest
from ninja import Router, Status
from ninja.errors import HttpError
from pydantic import AliasChoices, BaseModel, Field, model_validator

from leasing.api.access import Access
from leasing.api.bodies import WHOLE, Between, Error, Name, Notice, Request, Text
from leasing.api.document import linked
from leasing.api.errors import BAD_BODY, answers
from leasing.api.keys import (
    HEADER,
    HoldersRequest,
    check_lease_key,
    documented,
    request_id,
    wait_id,
)
from leasing.api.principals import principal_of
from leasing.api.waiting import Wait, answer_with
from leasing.exceptions import LeaseLost
from leasing.runtime.aio import Undoable
from leasing.validation.names import MAX_TASKS, check_name
from tasks.api.rows import find, tasks
from tasks.api.schemas import ClaimedTask, ClaimedTasks, HeldTask, QueueName, TaskOut
from tasks.api.visibility import shown, shown_to_claimer, shown_to_holder
from tasks.api.waiting import claiming, end_wait
from tasks.models import Task, TaskStatus
from tasks.payload import is_same_json
from tasks.querysets.failure import FinalError

#: The reason with which tasks are given back if their claimer did not wait for the answer.
HUNG_UP = "its client hung up"

#: The greatest number of a checkpoint that a client may set; those without a number count on from
#: it.
MAX_NUMBERED = 1_000_000_000

may_change = Access("leasing_tasks.change_task")

#: The links of an answer with a lease_key, and of one that shows a task.
_ID = {"task_id": "$response.body#/id"}
_PROOF = {name: f"$response.body#/{name}" for name in ("processor", "lease_key")}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "heartbeat_task": {},
    "complete_task": {"task_output": {"rows": 17}},
    "fail_task": {"error": "the printer is out of paper"},
    "report_progress": {"progress": {"done": 3}},
    "store_checkpoint": {"state": {"next_row": 18}},
}
OF_HOLDER: dict[str, dict[str, Any]] = {
    name: {"parameters": _ID, "requestBody": {**_PROOF, **example}}
    for name, example in _EXAMPLES.items()
}
OF_TASK: dict[str, dict[str, Any]] = {
    **{name: {"parameters": _ID} for name in ("get_task", "list_attempts", "diagnose_task")},
    **{
        name: {"parameters": _ID, "requestBody": {"reason": "it is not needed"}}
        for name in ("cancel_task", "retry_task", "revoke_task")
    },
    "reschedule_task": {"parameters": _ID, "requestBody": {"at_once": True}},
}

CLAIM_KEY = documented(
    "A UUID that the client makes for each claim and sends again with it. A repetition is answered "
    "with those tasks of the first that still run; if none does, with 409: use a new key. With "
    "Retry-After, the first still claims. A key is remembered for ten minutes."
)

router = Router(tags=["tasks"])


class Claim(Request):
    """A request for tasks."""

    processor: Name = Field(description="The name of the holder.", examples=["worker-9"])
    limit: Annotated[int, Field(ge=1, le=MAX_TASKS), WHOLE] | None = Field(
        None, description="Claim up to this many tasks; the answer is then a list."
    )
    free: Annotated[int, Field(ge=0, le=MAX_TASKS), WHOLE] | None = Field(
        None,
        description="The number of tasks that begin at once. A task with one attempt, or that has "
        "run before, is claimed only if it is among the first so many: if the processor dies, it "
        "has not failed before it began. Default: all.",
    )
    queues: list[QueueName] | None = Field(
        None,
        min_length=1,
        max_length=MAX_TASKS,
        description="Default: all.",
        examples=[["default"]],
    )
    ttl: Annotated[float, Between("MIN_TTL", "MAX_TTL")] | None = Field(
        None,
        description="Seconds until the deadline, and from each heartbeat. Default: TTL.",
        examples=[30],
    )
    wait: Wait = 0


class Holder(HoldersRequest):
    """The holder of a task, proven by its lease_key, or in the compatible mode by its name."""

    processor: Name | None = Field(
        None, description="The name of the holder.", examples=["worker-9"]
    )

    @model_validator(mode="after")
    def _is_somebody(self) -> Holder:
        if self.lease_key is None and self.processor is None:
            raise ValueError("processor: required without a lease_key")
        return self


class HasOutput(BaseModel):
    """The outcome of a task, in both spellings."""

    task_output: Any = Field(
        None,
        validation_alias=AliasChoices("task_output", "taskOutput"),
        description="Any JSON.",
        examples=[{"rows": 17}],
    )


class HasError(BaseModel):
    """The error with which an attempt of a task failed, and if it may run again."""

    error: Text = Field(min_length=1, examples=["the printer is out of paper"])
    retry: bool = Field(
        True, description="False if another attempt would fail too: the task fails for good."
    )


class Complete(HasOutput, Holder):
    """The outcome of a task."""


class Fail(HasError, Holder):
    """The error with which an attempt of a task failed."""


class Progress(Holder):
    """The progress of a task."""

    progress: Any = Field(
        None,
        description="Any JSON; null reports only that the task makes progress.",
        examples=[{"done": 3, "total": 10}],
    )


class Checkpoint(Progress):
    """The state from which the next attempt of a task continues."""

    state: Any = Field(description="Any JSON.", examples=[{"next_row": 18}])
    number: Annotated[int, WHOLE] | None = Field(
        None,
        ge=1,
        le=MAX_NUMBERED,
        description="Its number among those of the task, from `checkpoints` + 1 on. If that one or "
        "a later one is stored, nothing is written: a late repetition overwrites nothing. Without "
        "it, the state is the latest.",
        examples=[1],
    )


@router.post(
    "/tasks/next",
    auth=may_change,
    response=answers({202: ClaimedTask | ClaimedTasks, 200: Notice}, *BAD_BODY, 409),
    openapi_extra=CLAIM_KEY | linked(202, **OF_HOLDER, **OF_TASK),
)
def claim_next_task(request: HttpRequest, body: Claim) -> Any:
    """Claim the next due task of the queues for the processor; with `limit` several, in one
    statement. With `wait` an enqueue ends the wait early."""
    principal = principal_of(request)
    for queue in body.queues or ():
        principal.check_queue(queue)
    queues, claim_key = body.queues or principal.queues, request_id(request, body)

    def claim() -> list[Task]:
        return tasks().claim(
            body.processor,
            queues=queues,
            limit=body.limit or 1,
            ttl=body.ttl,
            free=body.free,
            request_id=claim_key,
        )

    def answer(claimed: list[Task]) -> Any:
        if not claimed and claim_key is not None:
            claimed = tasks().note_empty_claim(body.processor, claim_key)
        if not claimed:
            return Status(200, Notice(message="There is no task to run now."))
        if body.limit is None:
            return Status(202, shown_to_claimer(claimed[0]))
        shown = [shown_to_claimer(task) for task in claimed]
        return Status(202, ClaimedTasks(tasks=shown))

    # A request with a key keeps the claimed tasks: its repetition finds them.
    undo = _keep if claim_key else partial(tasks().give_back_many, reason=HUNG_UP, begun=False)
    attempt = Undoable(claim, undo)
    return answer_with(
        request, body.wait, partial(claiming, attempt, queues, wait_id(request)), answer
    )


def _keep(claimed: list[Task]) -> None:
    """Leave the tasks to the client."""


@router.delete(
    "/tasks/next",
    auth=may_change,
    response=answers({200: Notice}, 400),
    openapi_extra=documented("The key of the claim.", required=True),
)
def end_claim(request: HttpRequest) -> Notice:
    """End the wait of the claim that was sent with the same Idempotency-Key: it is answered at
    once, with what it has claimed or with nothing. A claim that arrives later still waits: send
    this again until the claim is answered."""
    waits = wait_id(request)
    if waits is None:
        raise HttpError(400, f"{HEADER}: required")
    end_wait(waits)
    return Notice(message="The claim with this Idempotency-Key was told not to wait.")


_REFUSED: dict[int, Any] = {200: Notice, 409: Notice | Error}
_ANSWERS = answers({202: TaskOut, **_REFUSED}, *BAD_BODY)


@router.put(
    "/tasks/{task_id}/heartbeat",
    auth=may_change,
    response=answers({202: HeldTask, **_REFUSED}, *BAD_BODY),
    openapi_extra=linked(202, **OF_HOLDER),
)
def heartbeat_task(request: HttpRequest, task_id: str, body: Holder) -> Status[Any]:
    """Renew the lease of a task: its deadline is one ttl from now."""

    def heartbeat(task: Task) -> TaskOut:
        return shown_to_holder(request, tasks().heartbeat(task))

    return _by_holder(request, task_id, body, heartbeat)


@router.put("/tasks/{task_id}/complete", auth=may_change, response=_ANSWERS)
def complete_task(request: HttpRequest, task_id: str, body: Complete) -> Status[Any]:
    """Complete a task and store its output. A retry with its lease_key gets the same answer."""

    def complete(task: Task) -> TaskOut:
        if not (body.lease_key is not None and is_completed(task, body.task_output)):
            tasks().complete(task, body.task_output, unexpired=True)
        return shown(request, task, task.holder)

    return _by_holder(request, task_id, body, complete)


@router.put("/tasks/{task_id}/fail", auth=may_change, response=_ANSWERS)
def fail_task(request: HttpRequest, task_id: str, body: Fail) -> Status[Any]:
    """Fail the current attempt. The task is retried, unless that was its last attempt."""

    def fail(task: Task) -> TaskOut:
        failed = tasks().fail(task, failure(body.error, body.retry), unexpired=True)
        return shown(request, failed, task.holder)

    return _by_holder(request, task_id, body, fail)


@router.put("/tasks/{task_id}/progress", auth=may_change, response=_ANSWERS)
def report_progress(request: HttpRequest, task_id: str, body: Progress) -> Status[Any]:
    """Store the progress of a task, for operators. Restarts its progress_timeout, but does not
    renew its lease."""

    def progress(task: Task) -> TaskOut:
        return shown(request, tasks().progress(task, body.progress), task.holder)

    return _by_holder(request, task_id, body, progress)


@router.put("/tasks/{task_id}/checkpoint", auth=may_change, response=_ANSWERS)
def store_checkpoint(request: HttpRequest, task_id: str, body: Checkpoint) -> Status[Any]:
    """Store the state from which the next attempt continues: the answer to its claim contains
    it."""

    def checkpoint(task: Task) -> TaskOut:
        stored = tasks().checkpoint(task, body.state, progress=body.progress, number=body.number)
        return shown(request, stored, task.holder)

    return _by_holder(request, task_id, body, checkpoint)


def failure(error: str, retry: bool) -> str:
    """Return the error of a holder for the verb. Without ``retry`` the task fails for good."""
    return error if retry else FinalError(error)


def is_completed(task: Task, output: Any) -> bool:
    """Return True if the grant in ``task`` has ended it with this ``output``."""
    return task.status == TaskStatus.SUCCEEDED and is_same_json(task.task_output, output)


def _by_holder(
    request: HttpRequest, task_id: str, body: Holder, verb: Callable[[Task], TaskOut]
) -> Status[Any]:
    """Call a verb on a task for its holder, with the grant of the row. The verb itself records its
    refusal."""
    processor = None if body.processor is None else check_name(body.processor, "processor")
    try:
        task: Task | None = find(request, task_id)
    except Http404:
        task = None
    notice = why_refused(task_id, task, body.lease_key, processor)
    if task is None or notice:
        return Status(200, Notice(message=notice))
    try:
        return Status(202, verb(task))
    except LeaseLost:
        if not tasks().filter(pk=task.pk, processed_at__isnull=False).exists():
            raise
    return Status(409, Notice(message=f"Task {task_id} was already processed."))


def why_refused(
    task_id: int | str, task: Task | None, lease_key: str | None, processor: str | None
) -> str:
    """Return why a client does not hold a task, in the words of a notice; "" if it does.

    Args:
        task_id: The id of the task.
        task: The task; None if there is none.
        lease_key: The key that the client sent; None: its name counts.
        processor: The name of the holder that the client sent.

    Raises HttpError 409 if the key is wrong.
    """
    if lease_key is not None:
        check_lease_key(task, lease_key)
        return ""
    if task is None:
        return f"There is no task {task_id}."
    return "" if task.holder == processor else f"Task {task_id} is not assigned to {processor}."
