"""Routes of producers: enqueue one task, or many.

The header Idempotency-Key, a UUID, is stored with the task. The same request, sent again because
its answer was lost, answers the stored task, ended or not, until that is pruned. Each task of a
batch is stored with that key and its place.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from django.http import HttpRequest
from ninja import Router, Status
from ninja.errors import HttpError
from pydantic import BaseModel, Field

from leasing.api.access import Access
from leasing.api.bodies import WHOLE, Name, Request, Sparse
from leasing.api.document import linked
from leasing.api.errors import BAD_BODY, answers
from leasing.api.keys import IDEMPOTENT, request_id
from leasing.api.principals import principal_of
from leasing.validation.names import MAX_TASKS
from tasks import registry
from tasks.api.errors import refusal_of
from tasks.api.holders import OF_TASK
from tasks.api.rows import tasks
from tasks.api.schemas import HandlerName, MomentIn, QueueName, TaskOut
from tasks.api.visibility import shown, shown_to_owner
from tasks.bounds import LONGEST_DELAY
from tasks.models import Task

may_add = Access("leasing_tasks.add_task")

router = Router(tags=["tasks"])

LONGEST: Final = LONGEST_DELAY.total_seconds()
#: Databases store whole microseconds.
Seconds = Annotated[float, Field(ge=0.000001, le=LONGEST)]

#: Fields that need a statement for each task.
KEYED: Final = {"unique_key", "unique_for", "on_duplicate"}
#: The key of a request does not depend on its body: another one under it is refused.
NOTHING: Final = Request()


class Enqueue(Request):
    """A task to enqueue."""

    name: HandlerName = Field(
        description="Name of a registered handler.", examples=["sample.sleep"]
    )
    data: dict[str, Any] | None = Field(
        None,
        description="Keyword arguments of the handler.",
        examples=[{"sleep_duration_seconds": 1}],
    )
    queue: QueueName | None = Field(
        None, description="Default: the queue of the handler.", examples=["default"]
    )
    priority: Annotated[int, WHOLE] = Field(
        0, ge=-32768, le=32767, description="Higher runs first."
    )
    scheduled_at: MomentIn | None = Field(None, description="Earliest start.")
    delay: float | None = Field(
        None, ge=0, le=LONGEST, description="The same in seconds from now, by the database's clock."
    )
    unique_key: Name | None = Field(
        None, description="At most one task can have it at a time.", examples=["report:2026-01"]
    )
    unique_for: Literal["waiting", "running", "finished"] | Seconds = Field(
        "finished",
        description="How long the task keeps its unique key: until it is claimed, until its first "
        "attempt ends, until it has ended, or for a number of seconds.",
    )
    on_duplicate: Literal["skip", "replace", "keep_time"] = Field(
        "skip",
        description="The effect on a waiting task that has the unique key: none, to become this "
        "one, or the same except for its time.",
    )
    max_attempts: Annotated[int, Field(ge=1, le=32767), WHOLE] | None = None
    timeout: Seconds | None = Field(None, description="Seconds that one attempt may run.")
    progress_timeout: Seconds | None = Field(
        None, description="Seconds without progress after which an attempt is lost."
    )
    concurrency_key: Name | None = Field(
        None, description="Tasks with this key share one limit.", examples=["printer:3"]
    )
    concurrency_limit: Annotated[int, Field(ge=1, le=32767), WHOLE] | None = Field(
        None, description="Maximum number of tasks with that key that run at a time."
    )

    def options(self) -> dict[str, Any]:
        """Return the other arguments of ``enqueue`` that the request sets."""
        fields = self.model_dump(exclude={"name", "data"}, exclude_unset=True)
        return {name: value for name, value in fields.items() if value is not None}


class EnqueueMany(Request):
    """Tasks to enqueue. A malformed request is refused as a whole; any other error affects one
    task."""

    tasks: list[Enqueue] = Field(min_length=1, max_length=MAX_TASKS)


class Enqueued(BaseModel):
    """The result for one task of a batch, as for a single request."""

    status: int = Field(description="201 stored; 200 a task has the unique key; 400, 409 an error.")
    id: int | None = None
    error: str | None = None


class EnqueuedMany(Sparse):
    """The results of a batch, in the order of the request."""

    results: list[Enqueued]


@router.post(
    "/tasks",
    auth=may_add,
    response=answers({200: TaskOut, 201: TaskOut}, 409, *BAD_BODY),
    openapi_extra=IDEMPOTENT | linked(201, **OF_TASK),
)
def enqueue_task(request: HttpRequest, body: Enqueue) -> Status[TaskOut]:
    """Enqueue a task. 200 with the existing task while one has the same unique key. With the header
    Idempotency-Key (a UUID) a retry gets 201 with the same task."""
    key = idempotency_key(request)
    try:
        task = stored(request, body, key)
    except ValueError as error:
        raise HttpError(400, str(error)) from error
    if not task.is_duplicate:
        return Status(201, shown_to_owner(tasks().get(pk=task.pk)))
    return Status(201 if is_the_same(task, key) else 200, shown(request, task))


@router.post(
    "/tasks/batch",
    auth=may_add,
    response=answers({200: EnqueuedMany}, *BAD_BODY),
    openapi_extra=IDEMPOTENT,
)
def enqueue_tasks(request: HttpRequest, body: EnqueueMany) -> EnqueuedMany:
    """Enqueue several tasks. A refused one does not affect the others. Tasks that differ only in
    their data, and have no key, are stored in one statement."""
    key = idempotency_key(request)
    if key:
        pairs = [(each, f"{key}:{place}") for place, each in enumerate(body.tasks)]
        return EnqueuedMany(results=[enqueued_alone(request, *pair) for pair in pairs])
    results: dict[int, Enqueued] = {}
    alike: dict[str, list[int]] = {}
    for place, each in enumerate(body.tasks):
        alike.setdefault(likeness(each) or str(place), []).append(place)
    for places in alike.values():
        items = [body.tasks[place] for place in places]
        results |= zip(places, enqueued_together(request, items), strict=True)
    return EnqueuedMany(results=[results[place] for place in range(len(body.tasks))])


def stored(request: HttpRequest, body: Enqueue, key: str | None) -> Task:
    """Enqueue one task. Raises what ``enqueue`` does, and HttpError."""
    check_queue(request, body)
    task = tasks().enqueue(body.name, body.data, idempotency_key=key, **body.options())
    if task.is_duplicate:
        principal_of(request).check_queue(task.queue)
    return task


def check_queue(request: HttpRequest, body: Enqueue) -> None:
    """Raise HttpError 403 if the client of ``request`` may not enqueue there. One that is limited
    to some queues replaces no task, which may be in another."""
    principal = principal_of(request)
    if principal.queues is None:
        return
    principal.check_queue(body.queue or registry.find(body.name).queue)
    if body.on_duplicate != "skip":
        raise HttpError(403, "This token is for some queues only, and cannot replace tasks.")


def enqueued_alone(request: HttpRequest, body: Enqueue, key: str | None = None) -> Enqueued:
    """Enqueue one task of a batch, and return the answer for it."""
    try:
        task = stored(request, body, key)
    except Exception as error:
        refusal = (400, str(error)) if isinstance(error, ValueError) else refusal_of(error)
        if refusal is None:
            raise
        return Enqueued(status=refusal[0], error=refusal[1])
    return Enqueued(status=201 if is_the_same(task, key) else 200, id=task.pk)


def enqueued_together(request: HttpRequest, bodies: list[Enqueue]) -> list[Enqueued]:
    """Enqueue tasks that are alike by one statement; one by one if that is refused."""
    if len(bodies) > 1:
        data = [each.data for each in bodies]
        try:
            check_queue(request, bodies[0])
            together = tasks().enqueue_many(bodies[0].name, data, **bodies[0].options())
            return [Enqueued(status=201, id=task.pk) for task in together]
        except Exception as error:
            if not isinstance(error, ValueError) and refusal_of(error) is None:
                raise
    return [enqueued_alone(request, each) for each in bodies]


def likeness(body: Enqueue) -> str:
    """Return a text that is equal for tasks that one statement can store; "" for a task with a
    unique key."""
    if body.unique_key is not None or KEYED & body.model_fields_set:
        return ""
    return body.model_dump_json(exclude={"data"}, exclude_unset=True)


def is_the_same(task: Task, key: str | None) -> bool:
    """Return True if this request stores ``task``, or stored it when it was sent before."""
    return not task.is_duplicate or key is not None and task.idempotency_key == key


def idempotency_key(request: HttpRequest) -> str | None:
    """Return the key of this request for its enqueue, distinct from keys of other clients and other
    code; None without the header. Raises HttpError."""
    key = request_id(request, NOTHING)
    return None if key is None else f"http:{key}"
