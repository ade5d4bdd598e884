"""Run one claimed task: hold it, call its handler, store what came of it.

What a handler does wrong never reaches the worker: whatever it raises fails its attempt. When
the database is away as the result is to be stored, storing it is tried again for as long as the
worker may believe that the task is still its own, and a little longer; should the answer to an
earlier try have been lost on the way, the row says so by its grant.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.db import Error, close_old_connections, connections

from leasing.dialects import in_transaction
from leasing.exceptions import LeaseLost
from leasing.hold import Hold
from leasing.rowstore import RowStore, grant_of
from tasks import registry
from tasks.chaos import Chaos
from tasks.context import Context
from tasks.exceptions import Snooze, UnknownTask
from tasks.models import Task
from tasks.payload import check_json
from tasks.querysets import TaskStatus

logger = logging.getLogger("tasks.runner")

#: How long a task whose handler is missing here waits for a worker that has it.
UNKNOWN_DELAY = timedelta(seconds=60)
#: Pauses between the tries to store a result, in seconds.
SETTLE_PAUSES = (0.1, 0.3, 1, 2, 4, 8, 15)


def hold_of(task: Task) -> Hold:
    """Keep ``task``, which was just claimed."""
    using = task._state.db or "default"
    hold = Hold(RowStore(Task, using))
    hold.adopt(grant_of(task))
    return hold


def run(task: Task, hold: Hold, stopping: threading.Event, chaos: Chaos | None = None) -> None:
    """Run ``task`` to its end on this thread. Raises nothing."""
    close_old_connections()
    try:
        stalled = chaos is not None and chaos.strike(hold)
        settle = _attempt(task, hold, stopping)
        if chaos is not None and stalled and settle is not None:
            chaos.run_late(hold)
        hold.settle()
        if settle is not None:
            _settle(task, settle)
    except LeaseLost as loss:
        logger.warning("task %s: the result is dropped: %s", task.pk, loss)
    except Exception:
        logger.exception("task %s: the result could not be stored; it will be recovered", task.pk)
    finally:
        hold.leave()
        close_old_connections()


def _attempt(task: Task, hold: Hold, stopping: threading.Event) -> Callable[[], Any] | None:
    """Call the handler; return what stores the outcome, or None when there is nothing to store."""
    tasks = Task.objects.using(task._state.db)
    try:
        function = registry.find(task.name).function
    except UnknownTask as error:
        reason = f"{error} Its module is missing here, or was after a deploy."
        logger.error("task %s: %s", task.pk, reason)
        return lambda: tasks.give_back(task, reason, delay=UNKNOWN_DELAY)
    context = Context(task, hold, stopping)
    failure: BaseException | None = None
    output = None
    try:
        output = _call(function, context, task.task_data)
        if not context.completed:
            check_json(output, "output")
    except LeaseLost as loss:
        if loss.resource == hold.resource and not hold.valid:
            logger.warning("task %s: the handler stopped: %s", task.pk, loss)
            return None
        failure = loss
    except BaseException as error:
        failure = error
    finally:
        context.flush()
    if context.completed:
        if failure is not None:
            logger.warning("task %s: its handler failed after it ended: %r", task.pk, failure)
        return None
    if failure is None:
        return lambda: tasks.complete(task, output)
    if isinstance(failure, Snooze):
        return partial(tasks.snooze, task, failure.delay, str(failure))
    return partial(tasks.fail, task, failure)


def _call(function: Callable[..., Any], context: Context, data: dict[str, Any]) -> Any:
    called = async_to_sync(function) if iscoroutinefunction(function) else function
    try:
        output = called(context, **data)
    finally:
        left_open = _drop_transactions()
    if left_open:
        raise RuntimeError("The handler left a transaction open; what it wrote is rolled back.")
    return output


def _drop_transactions() -> bool:
    """Roll back what the handler left open: it would swallow the result, and those of the tasks
    that come after on this thread. Whether there was any."""
    left = [each for each in connections.all(initialized_only=True) if in_transaction(each.alias)]
    for connection in left:
        connection.close()
        del connections[connection.alias]  # or it would believe that it is still inside
    return bool(left)


def _settle(task: Task, store: Callable[[], Any]) -> None:
    """Store an outcome, over a database that may be away for a while."""
    unsure = False
    for pause in (*SETTLE_PAUSES, None):
        try:
            if not (unsure and _has_arrived(task)):
                store()
            return
        except Error as error:
            unsure = True
            connections[task._state.db or "default"].close()
            if pause is None:
                raise
            logger.warning("task %s: storing the result failed, again: %s", task.pk, error)
            threading.Event().wait(pause)


def _has_arrived(task: Task) -> bool:
    """Whether an earlier try, whose answer was lost, ended this grant after all."""
    row = Task.objects.using(task._state.db).filter(pk=task.pk, grant_id=task.grant_id)
    return row.filter(released_at__isnull=False).exclude(status=TaskStatus.RUNNING).exists()
