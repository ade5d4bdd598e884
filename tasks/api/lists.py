"""Routes that show tasks: lists, one task, its attempts, and why it is where it is."""

from __future__ import annotations

from django.http import HttpRequest
from pydantic import BaseModel

from leasing.api.access import Access
from leasing.api.bodies import Limit
from leasing.api.errors import answers

# GET and POST of /tasks are one address, and so of one router.
from tasks.api.producers import router
from tasks.api.rows import find, tasks
from tasks.api.schemas import (
    AttemptOut,
    DiagnosisOut,
    StuckTask,
    TaskAnswer,
    TaskList,
)
from tasks.api.visibility import VIEW, shown, shown_attempt
from tasks.diagnosis import diagnose, look_around
from tasks.models import TaskAttempt
from tasks.querysets import TaskQuerySet

may_see = Access(VIEW)


class AttemptList(BaseModel):
    """The attempts of a task that did not succeed, the latest first."""

    attempts: list[AttemptOut]


class StuckList(BaseModel):
    """Some stuck tasks, newest first."""

    tasks: list[StuckTask]


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


@router.get("/tasks/stuck", auth=may_see, response=answers({200: StuckList}, 400))
def list_stuck_tasks(request: HttpRequest, limit: Limit = 100) -> StuckList:
    """Running tasks that recovery is to take from their holders: the deadline has passed, or they
    report no progress. Each with its diagnosis."""
    found = list(tasks().lapsed().order_by("-pk")[:limit])
    around = look_around(found) if found else None
    explained = [
        DiagnosisOut(id=task.pk, **diagnose(task, around=around).as_json()) for task in found
    ]
    return StuckList(
        tasks=[
            StuckTask(task=shown(request, task), diagnosis=diagnosis)
            for task, diagnosis in zip(found, explained, strict=True)
        ]
    )


@router.get("/tasks/{task_id}", auth=may_see, response=answers({200: TaskAnswer}, 404))
def get_task(request: HttpRequest, task_id: str) -> TaskAnswer:
    """One task."""
    return TaskAnswer(task=shown(request, find(task_id)))


@router.get("/tasks/{task_id}/attempts", auth=may_see, response=answers({200: AttemptList}, 404))
def list_attempts(request: HttpRequest, task_id: str, limit: Limit = 100) -> AttemptList:
    """The attempts of a task that did not succeed: the good one is the task itself."""
    task = find(task_id)
    rows = TaskAttempt.objects.using(tasks().db).filter(task_id=task.pk).order_by("-pk")
    return AttemptList(attempts=[shown_attempt(request, each) for each in rows[:limit]])


@router.get("/tasks/{task_id}/diagnosis", auth=may_see, response=answers({200: DiagnosisOut}, 404))
def diagnose_task(request: HttpRequest, task_id: str) -> DiagnosisOut:
    """Why a task is where it is, what happens next, and what can be done."""
    task = find(task_id)
    return DiagnosisOut(id=task.pk, **diagnose(task).as_json())


def newest(request: HttpRequest, rows: TaskQuerySet, limit: int) -> TaskList:
    """Return the newest of some tasks.

    Args:
        request: The client's request.
        rows: The tasks among which they are.
        limit: The number of tasks, at most.
    """
    return TaskList(tasks=[shown(request, task) for task in rows.order_by("-pk")[:limit]])
