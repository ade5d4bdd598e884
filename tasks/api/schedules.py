"""Routes of schedules: when each is due, pause, resume and run now."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest
from ninja import Router, Status
from pydantic import BaseModel, Field

from leasing.api.access import Access
from leasing.api.bodies import Moment
from leasing.api.errors import BAD_BODY, answers
from leasing.api.lists import At, Limit, Page, Source, page_at
from leasing.api.principals import principal_of
from leasing.functions import database_now
from tasks import registry
from tasks.api.acting import perform
from tasks.api.operators import Reasoned
from tasks.dashboard.schedule_actions import CHANGE, SCHEDULE_ACTIONS
from tasks.dashboard.schedule_status import status_of
from tasks.models import Schedule

may_see, may_change = Access("leasing_tasks.view_schedule"), Access(CHANGE)

router = Router(tags=["schedules"])


class ScheduleOut(BaseModel):
    """A schedule, and its latest slot."""

    name: str
    state: str = Field(description="active, paused, overdue, orphaned, unknown task, invalid rule.")
    why: str = Field(description="The reason, where it is not active.")
    rule: str
    task_name: str
    queue: str = Field(description="Empty for the queue of the handler.")
    priority: int
    declared: bool = Field(description="True if code declares it.")
    paused_at: Moment | None
    paused_by: str
    reason: str = Field(description="The reason of the pause.")
    next_at: Moment | None
    last_at: Moment | None = Field(description="The latest slot.")
    last_task: int | None = Field(description="The id of its task; null if it was pruned since.")
    last_skipped: bool = Field(description="True if its task was not enqueued.")
    last_by: str = Field(description="The operator who ran it by hand.")

    @classmethod
    def of(cls, schedule: Any, now: datetime) -> ScheduleOut:
        """The ``schedule``, which was read ``with_last()``."""
        status = status_of(schedule, now)
        return cls(
            name=schedule.name,
            state=status.badge.word,
            why=status.why,
            rule=status.rule,
            task_name=schedule.task_name,
            queue=schedule.queue,
            priority=schedule.priority,
            declared=schedule.declared,
            paused_at=schedule.paused_at,
            paused_by=schedule.paused_by,
            reason=schedule.reason,
            next_at=status.upcoming[0] if status.upcoming else None,
            last_at=schedule.last_at,
            last_task=schedule.last_task,
            last_skipped=bool(schedule.last_skipped),
            last_by=schedule.last_by or "",
        )


class ScheduleList(Page):
    """A page of schedules, newest first."""

    schedules: list[ScheduleOut]


ANSWERS = answers({200: ScheduleOut}, *BAD_BODY, 404, 409)


@router.get("/schedules", auth=may_see, response=answers({200: ScheduleList}, 400))
def list_schedules(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> ScheduleList:
    """List all schedules."""
    rows = schedules_of(request)
    now = database_now(rows.db)
    schedules, following = page_at(cursor, limit, Source(rows.with_last()))
    shown = [ScheduleOut.of(each, now) for each in schedules]
    return ScheduleList(schedules=shown, next=following)


@router.put("/schedules/{path:name}/pause", auth=may_change, response=ANSWERS)
def pause_schedule(request: HttpRequest, name: str, body: Reasoned) -> ScheduleOut:
    """Pause a schedule: it enqueues nothing until it is resumed."""
    return _act(request, name, "pause", body)


@router.put("/schedules/{path:name}/resume", auth=may_change, response=ANSWERS)
def resume_schedule(request: HttpRequest, name: str, body: Reasoned) -> ScheduleOut:
    """Resume a schedule at its next due time. Times during the pause are skipped."""
    return _act(request, name, "resume", body)


@router.post(
    "/schedules/{path:name}/run",
    auth=may_change,
    response=answers({201: ScheduleOut}, *BAD_BODY, 404, 409),
)
def run_schedule(request: HttpRequest, name: str, body: Reasoned) -> Status[ScheduleOut]:
    """Run a schedule once, now, in addition to its rule. `last_task` is the id of the new task."""
    return Status(201, _act(request, name, "run_now", body))


def schedules_of(request: HttpRequest) -> Any:
    """Return the schedules that the client of ``request`` may use: those of its queues, if it is
    limited to some. A schedule that names no queue has the queue of its handler."""
    rows, queues = Schedule.objects.home(), principal_of(request).queues
    if queues is None:
        return rows
    handlers = [name for name in registry.names() if registry.find(name).queue in queues]
    return rows.filter(Q(queue__in=queues) | Q(queue="", task_name__in=handlers))


def _act(request: HttpRequest, name: str, verb: str, body: Reasoned) -> ScheduleOut:
    """Do an action to the schedule of that name, and return the schedule. Raises Http404."""
    rows = schedules_of(request)
    named = rows.filter(name=name).with_last()
    schedule = named.first() if name.isprintable() else None
    if schedule is None:
        raise Http404("There is no such schedule.")
    perform(request, SCHEDULE_ACTIONS[verb], rows, schedule.pk, {"reason": body.reason})
    return ScheduleOut.of(named.get(), database_now(rows.db))
