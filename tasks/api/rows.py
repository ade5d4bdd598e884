"""Find the tasks that requests are about."""

from __future__ import annotations

import re

from django.http import Http404

from tasks.models import Task
from tasks.querysets import TaskQuerySet


def tasks() -> TaskQuerySet:
    """Return all tasks, in the database of leases."""
    rows = Task.objects.all().home()
    assert isinstance(rows, TaskQuerySet)
    return rows


def find(task_id: str) -> Task:
    """Return the task with that id. Raises Http404."""
    # Python reads more than digits as a number, and 1_7 or 017 is no id.
    task = None
    if re.fullmatch("[1-9][0-9]{0,18}", task_id):
        task = tasks().filter(pk=int(task_id)).first()
    if task is None:
        raise Http404(f"There is no task {task_id}.")
    return task
