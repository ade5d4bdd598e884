"""Routes of queues: their waiting tasks, pause and resume."""

from __future__ import annotations

from typing import Literal

from django.http import Http404, HttpRequest
from ninja import Router
from pydantic import BaseModel, Field

from leasing.api.access import Access
from leasing.api.bodies import Moment
from leasing.api.errors import BAD_BODY, answers
from leasing.api.principals import principal_of
from leasing.dashboard.operator_actions import FormData
from tasks.api.acting import perform
from tasks.api.operators import Reason, Reasoned
from tasks.conf import task_settings
from tasks.dashboard.queue_actions import QUEUE_ACTIONS
from tasks.dashboard.queue_rows import QueueLine, read_queues
from tasks.models import Queue

VIEW = "leasing_tasks.view_queue"

may_see = Access(VIEW)
may_pause = Access(QUEUE_ACTIONS["pause"].permission)
may_resume = Access(QUEUE_ACTIONS["resume"].permission)

router = Router(tags=["queues"])


class QueueOut(BaseModel):
    """A queue. With more than 10,000 waiting tasks, its numbers are those of the latest sample."""

    name: str
    state: Literal["open", "paused", "unserved"]
    ready: int = Field(description="Tasks that could be claimed now.")
    scheduled: int = Field(description="Tasks whose start is in the future.")
    running: int
    due_since: Moment | None = Field(description="The time since which the next task has been due.")
    workers: int = Field(description="Workers that serve it and were seen recently.")
    paused_at: Moment | None
    paused_by: str
    reason: str
    waiting: list[str] = Field(
        description="Why its tasks wait, once one has been due for 15 s: a sentence a reason."
    )

    @classmethod
    def of(cls, line: QueueLine) -> QueueOut:
        """The queue as the pages show it."""
        paused = line.queue if line.is_paused else None
        return cls(
            name=line.name,
            state="paused" if paused else "unserved" if line.is_unserved else "open",
            ready=line.ready.value,
            scheduled=line.scheduled.value,
            running=line.running,
            due_since=line.due_since,
            workers=line.workers,
            paused_at=paused.paused_at if paused else None,
            paused_by=paused.paused_by if paused else "",
            reason=paused.reason if paused else "",
            waiting=[str(reason.sentence) for reason in line.reasons],
        )


class QueueList(BaseModel):
    """All queues that are known or have tasks, sorted by name."""

    queues: list[QueueOut]


ANSWERS = answers({200: QueueOut}, *BAD_BODY, 404, 409)


@router.get("/queues", auth=may_see, response=answers({200: QueueList}))
def list_queues(request: HttpRequest) -> QueueList:
    """List all queues."""
    client = principal_of(request)
    seen = [line for line in read_queues().lines if client.uses_queue(line.name)]
    return QueueList(queues=[QueueOut.of(line) for line in seen])


@router.put("/queues/{path:name}/pause", auth=may_pause, response=ANSWERS)
def pause_queue(request: HttpRequest, name: str, body: Reason) -> QueueOut:
    """Pause a queue: nothing is claimed from it until it is resumed. Running tasks continue."""
    return _act(request, name, "pause", {"reason": body.reason})


@router.put("/queues/{path:name}/resume", auth=may_resume, response=ANSWERS)
def resume_queue(request: HttpRequest, name: str, body: Reasoned) -> QueueOut:
    """Resume a queue."""
    return _act(request, name, "resume", {"reason": body.reason})


def _act(request: HttpRequest, name: str, verb: str, form_data: FormData) -> QueueOut:
    """Do an action to the queue of that name, and return the queue. Raises Http404."""
    principal_of(request).check_queue(name)
    rows = Queue.objects.home()
    if name in task_settings.QUEUES:
        rows.declare([name])
    elif not name.isprintable() or not rows.filter(name=name).exists():
        raise Http404("There is no such queue.")
    perform(request, QUEUE_ACTIONS[verb], rows, name, form_data)
    return next(QueueOut.of(line) for line in read_queues().lines if line.name == name)
