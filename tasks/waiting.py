"""Waiting for the end of a task.

A caller polls the row, with growing pauses up to a second. On PostgreSQL it also asks the workers,
by a notification, for one at the end of the task: then it need not wait for its next poll. A task
that nobody waits for costs its worker nothing.
"""

from __future__ import annotations

import math
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import connections

from leasing.runtime.aio import Steps, adrive, drive
from leasing.runtime.clock import clock
from leasing.validation.names import check_duration
from leasing.waiting.notifier import notify, waiting
from tasks.diagnosis import diagnose
from tasks.exceptions import TaskFailed, WaitInTransaction, WaitTimeout
from tasks.models import Task, TaskStatus
from tasks.notifier import WAITED_FOR, ask_for_end
from tasks.querysets import TaskQuerySet

#: Seconds after which the workers are asked again: some may have started since.
ASK_EVERY = WAITED_FOR / 4


def wait_for(task: Task, timeout: float | timedelta | None) -> Any:
    """Wait until ``task`` has ended, and return its result. ``task`` is refreshed then.

    A failed attempt is not the end if the task is retried. Blocks the calling thread, in a handler
    one of the worker; holds no lock and no transaction.

    Args:
        task: The task.
        timeout: Seconds to wait, or a timedelta; None: for ever. 0 looks once.

    Raises TaskFailed if it failed or was cancelled, WaitTimeout (a TimeoutError) if it has not
    ended in time, WaitInTransaction inside a transaction if it has not ended yet, and
    Task.DoesNotExist if its row is gone.
    """
    return drive(_steps(task, timeout))


async def await_for(task: Task, timeout: float | timedelta | None) -> Any:
    """``wait_for``, for async code. It can be cancelled."""
    return await adrive(_steps(task, timeout))


def _steps(task: Task, timeout: float | timedelta | None) -> Steps[Any]:
    seconds = math.inf if timeout is None else check_duration(timeout, "timeout").total_seconds()
    rows, resource = Task.objects.home(task), task.lease_resource
    until = clock() + seconds
    if not (yield partial(_has_ended, rows, task)):
        yield partial(_refuse_transaction, rows.db, task)
        with waiting(rows.db, resource, until) as waiter:
            asked_at = -math.inf
            while True:
                if clock() - asked_at >= ASK_EVERY:
                    asked_at = clock()
                    yield partial(ask_for_end, rows.db, resource)
                if (yield partial(_has_ended, rows, task)):
                    break
                if not waiter.left:
                    raise WaitTimeout(task, seconds, (yield partial(_state, rows, task)))
                yield waiter
        # A notification wakes one waiter of a process, and the end is for all.
        notify(rows.db, resource)
    if task.status != TaskStatus.SUCCEEDED:
        raise TaskFailed(task)
    return task.result


def _has_ended(rows: TaskQuerySet, task: Task) -> bool:
    status = rows.filter(pk=task.pk).values_list("status", flat=True).first()
    if status is None:
        raise Task.DoesNotExist(
            f"{task} is not there: it was deleted, or its enqueue was rolled back or has not been "
            "committed."
        )
    if status not in TaskStatus.ended():
        return False
    task.refresh_from_db(using=rows.db)
    return task.status in TaskStatus.ended()  # unless somebody has just retried it


def _state(rows: TaskQuerySet, task: Task) -> str:
    task.refresh_from_db(using=rows.db)
    return diagnose(task).headline


def _refuse_transaction(using: str, task: Task) -> None:
    connection = connections[using]
    if connection.in_atomic_block or not connection.get_autocommit():
        raise WaitInTransaction(task)
