"""Compensation: the task that undoes one that failed for good.

The transaction that stores the failure stores the compensation too, so no process can die between
both, and no later search can miss it. The columns of the failed task say what to enqueue: recovery
may run in a process that has no handlers. An error of the enqueue must not keep the failure from
being stored; the compensation is then stored without the options of its handler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tasks.exceptions import GiveUp, TaskError
from tasks.querysets.base import COMPENSATION_KEYS, TaskRows, TaskStatus
from tasks.querysets.producer import NewTask, new_task
from tasks.querysets.producer import store as enqueue

if TYPE_CHECKING:
    from tasks.models import Task, TaskStep


class Compensated(NamedTuple):
    """A task that failed for good, and its finished steps, the last first."""

    task: Task
    steps: list[TaskStep]


def store(rows: TaskRows, ended: Iterable[Task]) -> None:
    """Enqueue the compensation of each of the ``ended`` tasks that failed for good and has one."""
    for task in ended:
        if task.status == TaskStatus.FAILED and task.compensation:
            enqueue(rows, _compensation_of(rows, task))


def key_of(task: Task) -> str:
    """Return the idempotency key of the compensation of ``task``, which has failed."""
    return f"{COMPENSATION_KEYS}{task.pk}:{task.attempts}"


def _compensation_of(rows: TaskRows, task: Task) -> NewTask:
    name, data = task.compensation or "", task.task_data
    try:
        new = new_task(rows, name, data, priority=task.priority)
    except (TaskError, ValueError):
        columns = {"name": name, "queue": task.queue, "priority": task.priority}
        new = NewTask({**columns, "task_data": data}, {}, json.dumps(data))
    keys = {"parent_id": task.pk, "idempotency_key": key_of(task), "compensation": ""}
    return new._replace(columns={**new.columns, **keys})


def compensated(rows: TaskRows, task: Task) -> Compensated:
    """Return the failed task that ``task`` compensates."""
    failed = rows._everything().failed().filter(pk=task.parent_id or 0).first()
    if task.compensation != "" or failed is None:
        raise GiveUp(f"task:{task.pk} is the compensation of no task that is still there.")
    return Compensated(failed, list(failed.step_set.using(rows.db).order_by("-pk")))
