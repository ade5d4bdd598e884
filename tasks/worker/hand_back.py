"""Giving back the tasks that a worker will not finish, for others to run."""

from __future__ import annotations

import threading

from django.db import Error

from leasing.runtime.clock import clock
from leasing.runtime.event_logger import get_logger
from tasks.execution.attempt import Execution
from tasks.execution.runner import END_PATIENCE, STOPPED
from tasks.log import said_of
from tasks.models import Task
from tasks.registry import Kind

logger = get_logger("tasks.runner")

#: Seconds between looks whether what has ended is stored.
TICK = 0.02


def give_back_all(left: list[Execution]) -> None:
    """End what can be ended, and give everything back: the worker is to end."""
    # What timed out, and what its handler has ended, is stored or about to be.
    ending = [each for each in left if each.taken_by]
    left = [each for each in left if not each.taken_by]
    interrupted = [each for each in left if each.kind is not Kind.THREAD]
    for execution in interrupted:
        if execution.take("stop"):
            execution.end_work()
    patience = clock() + END_PATIENCE
    for execution in interrupted:
        execution.ended.wait(max(0.0, patience - clock()))
    if left:
        give_back(left, STOPPED)
    pause = threading.Event()
    while clock() < patience and any(each.hold.is_kept for each in ending):
        pause.wait(TICK)


def give_back(executions: list[Execution], reason: str) -> None:
    """Set tasks ready again at once, whatever their handlers still do. Raises nothing."""
    for execution in executions:
        execution.hold.leave()
        if execution.trace is not None:
            execution.trace.returned(reason)
    for using in {execution.using for execution in executions}:
        tasks = [each.task for each in executions if each.using == using]
        try:
            _, refused = Task.objects.using(using).give_back_many(tasks, reason)
        except Error as error:
            for task in tasks:
                logger.warning(
                    "task %s could not be given back: %s",
                    task.pk,
                    error,
                    event="task.return_failed",
                    **said_of(task, error=error),
                )
        else:
            for task, loss in refused:
                logger.info(
                    "task %s needed no giving back: %s",
                    task.pk,
                    loss,
                    event="task.return_needless",
                    **said_of(task, reason=loss),
                )
