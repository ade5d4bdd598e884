"""Routes that show tasks: lists, one task, its attempts and its diagnosis.

A list is in the order of an index, or merged from lists that are. A filter that no index serves (a
queue, a name) searches a bounded number of rows a page: see ``leasing.api.lists``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query

from leasing.api.access import Access, may, scope
from leasing.api.bodies import Name
from leasing.api.errors import answers
from leasing.api.lists import At, Limit, Page, Source, list_route, page_at
from leasing.validation.names import check_name
from leasing.web.cursors import NEWEST_FIRST

# GET and POST of /tasks are one address, and so of one router.
from tasks import registry
from tasks.api.producers import router
from tasks.api.rows import find, search_of, tasks
from tasks.api.schemas import (
    AttemptOut,
    DiagnosisOut,
    StuckTask,
    TaskAnswer,
    TaskList,
    TraceEventOut,
    TraceOut,
)
from tasks.api.visibility import VIEW, shown, shown_attempt
from tasks.dashboard.listing import LATEST_ENDED_FIRST, SOONEST_FIRST, STATES, in_state
from tasks.diagnosis import diagnose, explain, read_context
from tasks.diagnosis.trace import read_trace
from tasks.models import Task, TaskAttempt, TaskStatus

may_see = Access(VIEW)
VIEW_AUDIT: Final = scope("leasing.view_auditentry")

#: The lists of the pages, each in the order of an index.
State = Literal["ready", "scheduled", "retrying", "running", "succeeded", "failed", "cancelled"]
Filter = Annotated[Name | None, Query()]


def task_at(place: str) -> dict[str, Any]:
    """Return the link from a list to the task whose id is at ``place`` in its answer."""
    return {"parameters": {"task_id": f"$response.body#{place}"}}


class AttemptList(Page):
    """The attempts of a task that did not succeed, the latest first."""

    attempts: list[AttemptOut]


class StuckList(Page):
    """A page of stuck tasks, newest first."""

    tasks: list[StuckTask]


@list_route(router, "/tasks", may_see, TaskList, get_task=task_at("/tasks/0/id"))
def list_tasks(
    request: HttpRequest,
    limit: Limit = 100,
    cursor: At = "",
    status: State | None = None,
    queue: Filter = None,
    name: Filter = None,
) -> TaskList:
    """List tasks, newest first. With a `status` as on the pages: waiting tasks by their start, the
    earliest first; ended tasks by their end, the latest first."""
    conditions = []
    if queue is not None:
        conditions.append(Q(queue=check_name(queue, "queue")))
    if name is not None:
        conditions.append(Q(name__in=registry.all_names(check_name(name, "name"))))
    rows, order = in_state(status or "all", tasks()), STATES[status or "all"].order
    search = search_of(request, *conditions)
    return _page(request, cursor, limit, Source(rows, order, search))


@list_route(router, "/tasks/started", may_see, TaskList, get_task=task_at("/tasks/0/id"))
def list_started_tasks(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> TaskList:
    """List tasks that have started and not ended: running ones, the newest first, and then those
    that wait to run again, the next to start first."""
    again = tasks().filter(status=TaskStatus.READY, started_at__isnull=False)
    running, waiting = (
        Source(rows, order, search_of(request))
        for rows, order in ((tasks().running(), NEWEST_FIRST), (again, SOONEST_FIRST))
    )
    return _page(request, cursor, limit, running, waiting, merged_by=is_running)


@list_route(router, "/tasks/processed", may_see, TaskList, get_task=task_at("/tasks/0/id"))
def list_processed_tasks(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> TaskList:
    """List tasks that have ended, in any state, the latest first."""
    ended = [
        Source(in_state(each, tasks()), LATEST_ENDED_FIRST, search_of(request))
        for each in ("succeeded", "failed", "cancelled")
    ]
    return _page(request, cursor, limit, *ended, merged_by=attrgetter("processed_at"))


@list_route(router, "/tasks/stuck", may_see, StuckList, get_task=task_at("/tasks/0/task/id"))
def list_stuck_tasks(request: HttpRequest, limit: Limit = 100, cursor: At = "") -> StuckList:
    """List running tasks that recovery is about to take back, each with its diagnosis: their
    deadline has passed, or they report no progress."""
    source = Source(tasks().lapsed(), search=search_of(request))
    rows, following = page_at(cursor, limit, source)
    context = read_context(rows) if rows else None
    stuck = [
        StuckTask(
            task=shown(request, task),
            diagnosis=DiagnosisOut(id=task.pk, **diagnose(task, context=context).as_json()),
        )
        for task in rows
    ]
    return StuckList(tasks=stuck, next=following)


@router.get("/tasks/{task_id}", auth=may_see, response=answers({200: TaskAnswer}, 404))
def get_task(request: HttpRequest, task_id: str) -> TaskAnswer:
    """Return one task."""
    return TaskAnswer(task=shown(request, find(request, task_id)))


@router.get(
    "/tasks/{task_id}/attempts", auth=may_see, response=answers({200: AttemptList}, 400, 404)
)
def list_attempts(
    request: HttpRequest, task_id: str, limit: Limit = 100, cursor: At = ""
) -> AttemptList:
    """List the unsuccessful attempts of a task. The successful one is the task itself."""
    task = find(request, task_id)
    rows: Any = TaskAttempt.objects.using(task._state.db).filter(task_id=task.pk)
    attempts, following = page_at(cursor, limit, Source(rows))
    shown_attempts = [shown_attempt(request, each) for each in attempts]
    return AttemptList(attempts=shown_attempts, next=following)


@router.get("/tasks/{task_id}/diagnosis", auth=may_see, response=answers({200: DiagnosisOut}, 404))
def diagnose_task(request: HttpRequest, task_id: str) -> DiagnosisOut:
    """Diagnose a task: the reason for its state, what happens next, and what can be done."""
    task = find(request, task_id)
    return DiagnosisOut(id=task.pk, **explain(task).as_json())


@router.get("/tasks/{task_id}/trace", auth=may_see, response=answers({200: TraceOut}, 404))
def trace_task(request: HttpRequest, task_id: str) -> TraceOut:
    """Return every recorded event of a task, the oldest first: of each table the newest 1,000 rows.
    Actions of operators are included for clients that may see the audit."""
    task = find(request, task_id)
    events = read_trace(task, with_actions=may(request, VIEW_AUDIT))
    return TraceOut(id=task.pk, events=[TraceEventOut.model_validate(each) for each in events])


def is_running(task: Task) -> bool:
    """Return True if ``task`` was running when it was read."""
    return task.status == TaskStatus.RUNNING


def _page(
    request: HttpRequest,
    cursor: str,
    limit: int,
    *sources: Source[Any],
    merged_by: Callable[[Any], Any] | None = None,
) -> TaskList:
    """Return a page of tasks: see ``page_at``."""
    rows, following = page_at(cursor, limit, *sources, merged_by=merged_by)
    return TaskList(tasks=[shown(request, task) for task in rows], next=following)
