"""Run one claimed task: call its handler, store what came of it.

What a handler does wrong never reaches the worker: whatever it raises fails its attempt. When
the database is away as the result is to be stored, storing it is tried again for as long as the
worker may believe that the task is still its own, and a little longer; should the answer to an
earlier try have been lost on the way, the row says so by its grant.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.db import Error, close_old_connections, connections

from leasing.dialects import in_transaction
from leasing.exceptions import LeaseLost
from tasks.chaos import Chaos
from tasks.context import Context
from tasks.exceptions import NotSerializable, Snooze, TaskCancelled
from tasks.execution import Execution
from tasks.models import Task
from tasks.payload import check_json
from tasks.querysets import TaskStatus
from tasks.registry import Handler, Kind

logger = logging.getLogger("tasks.runner")

#: How long a task whose handler is missing here waits for a worker that has it.
UNKNOWN_DELAY = timedelta(seconds=60)
#: Pauses between the tries to store a result, in seconds.
SETTLE_PAUSES = (0.1, 0.3, 1, 2, 4, 8, 15)
#: Seconds that a handler which was interrupted has to end before its task is settled without it.
END_PATIENCE = 1.0

LEFT_OPEN = "The handler left a transaction open; what it wrote is rolled back."

#: Calls the handler of an execution, and returns what it returns.
Call = Callable[[Execution, Context], Any]


@dataclass(frozen=True)
class Outcome:
    """What is to be stored of an attempt, and what that is called."""

    verb: str
    store: Callable[[], object]


def run(execution: Execution, call: Call | None = None, chaos: Chaos | None = None) -> None:
    """Run ``execution`` to its end on this thread. Raises nothing."""
    close_old_connections()
    try:
        stalled = chaos is not None and chaos.strike(execution.hold)
        outcome = _attempt(execution, call or _call_here)
        if chaos is not None and stalled and outcome is not None:
            chaos.run_late(execution.hold)
        store(execution, outcome, "handler")
    finally:
        execution.hold.leave()
        close_old_connections()


def time_out(execution: Execution) -> None:
    """Fail an attempt whose timeout is over, whether its handler can be ended or not."""
    if not execution.take("timeout"):
        return
    execution.end_work()
    if execution.kind is not Kind.THREAD:
        execution.ended.wait(END_PATIENCE)
    error = execution.interruption.timeout_error()
    logger.warning("task %s: %s", execution.task.pk, error)
    close_old_connections()
    store(execution, judge(execution, execution.context(), error=error), "timeout")
    connections.close_all()


def _attempt(execution: Execution, call: Call) -> Outcome | None:
    context = execution.context()
    if execution.handler is None:
        return _unknown(execution.task)
    try:
        output = call(execution, context)
    except BaseException as error:
        context.flush()
        return judge(execution, context, error=error)
    finally:
        execution.ended.set()
    context.flush()
    return judge(execution, context, output)


def judge(
    execution: Execution,
    context: Context,
    output: Any = None,
    error: BaseException | None = None,
) -> Outcome | None:
    """What is to be stored of an attempt whose handler returned ``output`` or raised ``error``;
    None when there is nothing to store."""
    task, hold = execution.task, execution.hold
    tasks = Task.objects.using(execution.using)
    if context.completed:
        if error is not None:
            logger.warning("task %s: its handler failed after it ended: %r", task.pk, error)
        return None
    if error is None and context.given_back is not None:
        reason, delay = context.given_back
        return Outcome("give back", lambda: tasks.give_back(task, reason, delay=delay))
    if error is None:
        try:
            check_json(output, "output")
        except NotSerializable as refused:
            error = refused
        else:
            return Outcome("complete", lambda: tasks.complete(task, output))
    assert error is not None
    failure: BaseException = error
    ours = isinstance(failure, asyncio.CancelledError)
    if (ours and hold.lost.is_set()) or (
        isinstance(failure, LeaseLost) and failure.resource == hold.resource and not hold.valid
    ):
        logger.warning("task %s: the handler stopped: %s", task.pk, failure)
        return None
    by = execution.interruption.cancelled_by
    if isinstance(failure, TaskCancelled) or (ours and by):
        return Outcome("cancel", lambda: tasks.accept_cancel(task, by=by))
    if isinstance(failure, Snooze):
        return Outcome("snooze", partial(tasks.snooze, task, failure.delay, str(failure)))
    return Outcome("fail", lambda: tasks.fail(task, failure))


def _unknown(task: Task) -> Outcome:
    reason = (
        f"No handler is registered for {task.name!r}. Its module is missing here, or was after a "
        "deploy."
    )
    logger.error("task %s: %s", task.pk, reason)
    tasks = Task.objects.using(task._state.db)
    return Outcome("give back", lambda: tasks.give_back(task, reason, delay=UNKNOWN_DELAY))


# Calling


def _call_here(execution: Execution, context: Context) -> Any:
    assert execution.handler is not None
    return call_handler(execution.handler, context)


def call_handler(handler: Handler, context: Context) -> Any:
    """Call ``handler`` on this thread, and leave no transaction of it behind."""
    function = handler.function
    called = async_to_sync(function) if iscoroutinefunction(function) else function
    try:
        output = called(context, **context.task.task_data)
    finally:
        left_open = drop_transactions()
    if left_open:
        raise RuntimeError(LEFT_OPEN)
    return output


def drop_transactions() -> bool:
    """Roll back what the handler left open: it would swallow the result, and those of the tasks
    that come after on this thread. Whether there was any."""
    left = [each for each in connections.all(initialized_only=True) if in_transaction(each.alias)]
    for connection in left:
        connection.close()
        del connections[connection.alias]  # or it would believe that it is still inside
    return bool(left)


# Storing


def store(execution: Execution, outcome: Outcome | None, by: str) -> None:
    """Store ``outcome``, in the name of whoever took the execution. Raises nothing."""
    task, hold = execution.task, execution.hold
    hold.settle()
    try:
        if outcome is None:
            return
        if execution.take(by) or execution.taken_by == by:
            _settle(task, outcome.store)
        else:
            _drop(execution, outcome)
    except LeaseLost as loss:
        logger.warning("task %s: the result is dropped: %s", task.pk, loss)
    except Exception:
        logger.exception("task %s: the result could not be stored; it will be recovered", task.pk)
    finally:
        hold.leave()


def give_back(execution: Execution, reason: str) -> None:
    """Set the task ready again at once, whatever its handler still does. Raises nothing."""
    task = execution.task
    execution.hold.leave()
    try:
        Task.objects.using(execution.using).give_back(task, reason)
    except LeaseLost as loss:
        logger.info("task %s needed no giving back: %s", task.pk, loss)
    except Error as error:
        logger.warning("task %s could not be given back: %s", task.pk, error)


def _drop(execution: Execution, outcome: Outcome) -> None:
    reason = f"it had been ended by its {execution.taken_by}"
    logger.warning("task %s: a late %s is dropped: %s", execution.task.pk, outcome.verb, reason)
    if outcome.verb == "complete":
        execution.hold.refused(outcome.verb, reason)


def _settle(task: Task, store: Callable[[], object]) -> None:
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
