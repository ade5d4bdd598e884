"""Find the tasks that requests name, of those that their clients may use."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest

from leasing.api.principals import principal_of
from tasks.models import Task
from tasks.querysets import TaskQuerySet


def tasks() -> TaskQuerySet:
    """Return all tasks, in the database of leases."""
    rows = Task.objects.all().home()
    assert isinstance(rows, TaskQuerySet)
    return rows


def tasks_of(request: HttpRequest) -> TaskQuerySet:
    """Return the tasks that the client of ``request`` may use."""
    return principal_of(request).tasks(tasks())


def find(request: HttpRequest, task_id: str) -> Task:
    """Return the task with that id, of those that the client may use. Raises Http404."""
    # int() reads more than digits, and 1_7 or 017 is no id.
    task = None
    if re.fullmatch("[1-9][0-9]{0,18}", task_id):
        task = tasks_of(request).filter(pk=int(task_id)).first()
    if task is None:
        raise Http404(f"There is no task {task_id}.")
    return task


def search_of(request: HttpRequest, *conditions: Any) -> Q | None:
    """Return the ``conditions`` of a list that no index serves, with the queues to which the client
    of ``request`` is limited; None if there are none."""
    queues = principal_of(request).queues
    if queues is not None:
        conditions = (*conditions, Q(queue__in=queues))
    return Q(*conditions) if conditions else None
