"""Routes of workers and other processes that send heartbeats."""

from __future__ import annotations

from typing import Literal

from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel, Field

from leasing.api.access import Access
from leasing.api.bodies import Moment
from leasing.api.errors import answers
from leasing.api.lists import At, Limit, Page, Source, page_at
from leasing.api.principals import Principal, principal_of
from tasks.dashboard.worker_rows import SHOWN, WorkerRow, with_tasks
from tasks.models import Worker

may_see = Access("leasing_tasks.view_worker")

router = Router(tags=["workers"])


class SlotsOut(BaseModel):
    """The slots of one kind."""

    total: int
    busy: int
    blocked: int = Field(
        description="Slots blocked by a handler that still runs although its task has ended."
    )


class WorkerOut(BaseModel):
    """A process that sends heartbeats."""

    id: int
    name: str
    role: str
    state: Literal["live", "late", "gone", "stopped"]
    hostname: str
    pid: int
    queues: list[str]
    slots: dict[str, SlotsOut]
    tasks: list[int] = Field(
        description=f"Ids of the tasks that it holds: the first {SHOWN:,} of all workers of the "
        "page together, of those that the client may see."
    )
    started_at: Moment
    last_seen_at: Moment
    stopped_at: Moment | None

    @classmethod
    def of(cls, row: WorkerRow, seen_by: Principal) -> WorkerOut:
        """The worker as the pages show it, with the tasks that the client may see."""
        worker = row.worker
        slots = {
            each.kind: SlotsOut(total=each.total, busy=each.busy, blocked=each.blocked)
            for each in row.slots
        }
        return cls(
            id=worker.pk,
            name=worker.name,
            role=worker.role,
            state=row.state,  # type: ignore[arg-type]
            hostname=worker.hostname,
            pid=worker.pid,
            queues=worker.queues,
            slots=slots,
            tasks=[task.pk for task in row.tasks if seen_by.uses_queue(task.queue)],
            started_at=worker.started_at,
            last_seen_at=worker.last_seen_at,
            stopped_at=worker.stopped_at,
        )


class WorkerList(Page):
    """A page of workers, newest first."""

    workers: list[WorkerOut]


@router.get("/workers", auth=may_see, response=answers({200: WorkerList}, 400))
def list_workers(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> WorkerList:
    """List workers, relays and generators seen within the last day."""
    rows, following = page_at(cursor, limit, Source(Worker.objects.home().with_state()))
    client = principal_of(request)
    workers = [WorkerOut.of(row, client) for row in with_tasks(rows)]
    return WorkerList(workers=workers, next=following)
