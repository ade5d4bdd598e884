"""Run one claimed task: call its handler, and determine the outcome.

An error of a handler never reaches the worker: it fails the attempt. Outcomes are stored by
``tasks.execution.outcome_store``, many together.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from leasing.db.dialects import in_transaction
from leasing.exceptions import LeaseLost
from leasing.runtime.events import happened
from tasks.exceptions import Snooze, TaskCancelled
from tasks.execution.attempt import Execution
from tasks.execution.chaos import Chaos
from tasks.execution.context import Context
from tasks.execution.outcome_store import store_outcomes
from tasks.execution.outcomes import COMPLETE, FAIL, Outcome
from tasks.log import log
from tasks.models import Task
from tasks.parameters import OTHER_RELEASE
from tasks.registry import UNKNOWN_DELAY, Handler, Kind
from tasks.runtime import forks
from tasks.runtime.connection import lasting_connection
from tasks.runtime.timing import USUAL, Timing

LEFT_OPEN = "The handler left a transaction open; its writes are rolled back."
STOPPED = "its worker was stopped"

#: Calls the handler of an execution, and returns what it returns.
Call = Callable[[Execution, Context], Any]


class _Thread(threading.local):
    #: True if the thread may have connections: most short handlers never ask for one, and looking
    #: for them takes longer than such a handler.
    connects = True


_thread = _Thread()


@receiver(connection_created, dispatch_uid="tasks.runner")
def _note_connection(**_named: Any) -> None:
    _thread.connects = True


def run(
    execution: Execution,
    call: Call | None = None,
    chaos: Chaos | None = None,
    timing: Timing = USUAL,
) -> None:
    """Run an attempt to its end on this thread, and store the outcome. Raises nothing.

    Args:
        execution: The attempt.
        call: Calls the handler; by default on this thread.
        chaos: Faults for demonstrations.
        timing: How often storing is tried again.
    """
    execution.carrier = threading.current_thread()
    try:
        store_outcomes([work(execution, call, chaos)], pauses=timing.store_pauses)
    finally:
        execution.hold.drop()  # whatever was raised into this thread: nobody carries it on
    tidy()


def work(execution: Execution, call: Call | None = None, chaos: Chaos | None = None) -> Outcome:
    """Return the outcome of an attempt, which is to be stored: ``run`` without that. Arguments are
    those of ``run``. Raises nothing."""
    tidy()
    outcome = before(execution)
    if outcome is None:
        execution.follow()
        stalled = chaos is not None and chaos.strike(execution.hold)
        outcome = _attempt(execution, call)
        if chaos is not None and stalled and outcome.verb:
            chaos.run_late(execution.hold)
    outcome.close("handler")
    happened("attempt.left", [execution], outcome=outcome)
    return outcome


def tidy() -> None:
    """Close the connections of this thread that are too old or unusable, if it has any."""
    if _thread.connects:
        close_old_connections()


def before(execution: Execution) -> Outcome | None:
    """Return the outcome of ``execution`` without a call of its handler, because of an event while
    it waited for a slot, or because there is none; None: the attempt begins now. Raises nothing."""
    try:
        return _hindrance(execution)
    except Exception as error:  # there can be no thread more that would watch its timeout
        log.task_not_begun(execution.claimed, error=error, exc_info=True)
        execution.ended.set()
        return Outcome(execution, FAIL, error)


def _hindrance(execution: Execution) -> Outcome | None:
    if execution.handler is None:
        return _not_here(
            execution,
            f"No handler is registered for {execution.claimed.name!r}: this worker lacks its "
            "module, as during a deploy.",
        )
    if reason := execution.handler.parameters.mismatch(execution.claimed.task_data):
        return _not_here(execution, f"{reason} {OTHER_RELEASE}")
    if execution.interruption.stopping.is_set():
        return _returned(execution, STOPPED, begun=False)
    hold, by = execution.hold, execution.interruption.cancelled_by
    if not hold.valid:  # also where nobody had the time to say so: the machine was suspended
        log.task_lost(execution.claimed, reason="before it started")
        return Outcome(execution)
    if by:
        return _cancelled(execution, by)
    if execution.interruption.timeout is not None and execution.kind is not Kind.PROCESS:
        execution.start_timeout()  # a process may have to start first
    return None


def time_out(execution: Execution, timing: Timing = USUAL) -> None:
    """Fail an attempt whose timeout is over, whether its handler can be ended or not."""
    if not execution.end_by("timeout"):
        return
    execution.end_work()
    if execution.kind is not Kind.THREAD:
        execution.ended.wait(timing.end_patience)
    error = execution.interruption.timeout_error()
    log.task_timed_out(execution.claimed, error=error)
    with lasting_connection():
        outcome = judge(execution, execution.context(), error=error)
        outcome.close("timeout")
        happened("attempt.over", [execution], outcome=outcome)
        store_outcomes([outcome], pauses=timing.store_pauses)
    connections.close_all()


def _attempt(execution: Execution, call: Call | None) -> Outcome:
    context = execution.context()
    try:
        if execution.owes_a_word:
            context.progress()
        if call is None:
            execution.set_mark()
            assert execution.handler is not None
            output = call_handler(execution.handler, context, execution.claimed.task_data)
        else:
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
) -> Outcome:
    """Return the outcome of an attempt whose handler has ended.

    Args:
        execution: The attempt.
        context: The context that the handler had.
        output: The value that it returned.
        error: The error that it raised; None if it returned.
    """
    if context.completed:
        if error is not None:
            log.task_failed_after_end(execution.claimed, error=repr(error))
        execution.clear_mark(is_stored=True)
        return Outcome(execution)
    if error is None and context.given_back is not None:
        reason, delay = context.given_back
        return _returned(execution, reason, delay)
    if error is None:
        return Outcome(execution, COMPLETE, output)
    return _judge_error(execution, error)


def _judge_error(execution: Execution, error: BaseException) -> Outcome:
    hold = execution.hold
    ours = isinstance(error, asyncio.CancelledError)
    if (ours and hold.is_lost) or (
        isinstance(error, LeaseLost) and error.resource == hold.resource and not hold.valid
    ):
        log.task_lost(
            execution.claimed, reason=getattr(error, "reason", "its coroutine was cancelled")
        )
        return Outcome(execution)
    by = execution.interruption.cancelled_by
    if isinstance(error, TaskCancelled) or (ours and by):
        return _cancelled(execution, by)
    if isinstance(error, Snooze):
        tasks = Task.objects.using(execution.using)
        store = partial(tasks.snooze, execution.task, error.delay, str(error))
        return Outcome(execution, "snooze", store=store)
    return Outcome(execution, FAIL, error)


def _cancelled(execution: Execution, by: str) -> Outcome:
    tasks = Task.objects.using(execution.using)
    store = partial(tasks.accept_cancel, execution.task, by=by)
    return Outcome(execution, "cancel", store=store)


def _returned(
    execution: Execution, reason: str, delay: timedelta = timedelta(0), *, begun: bool = True
) -> Outcome:
    tasks = Task.objects.using(execution.using)
    store = partial(tasks.give_back, execution.task, reason, delay=delay, begun=begun)
    return Outcome(execution, "give back", store=store)


def _not_here(execution: Execution, reason: str) -> Outcome:
    """Give back a task for which this worker may be too old, or too new."""
    execution.ended.set()
    log.task_no_handler(execution.claimed, reason=reason)
    return _returned(execution, reason, UNKNOWN_DELAY)


# Calling


def call_handler(handler: Handler, context: Context, data: dict[str, Any]) -> Any:
    """Call ``handler`` with ``data`` on this thread, and leave no transaction of it behind."""
    original, task_id = forks.pid, context.claimed.id
    called = handler.function
    if handler.is_async:
        called = async_to_sync(partial(_await_call, called, task_id))
    try:
        output = called(context, **data)
    finally:
        if forks.pid != original:
            forks.end_copy(original, task_id)
        left_open = drop_transactions()
    if left_open:
        raise RuntimeError(LEFT_OPEN)
    return output


async def _await_call(
    function: Callable[..., Any], task_id: object, *args: Any, **data: Any
) -> Any:
    return await forks.awaited(function(*args, **data), task_id)


def drop_transactions() -> bool:
    """Roll back what the handler left open: it would swallow the result, and those of the tasks
    that come after on this thread. Whether there was any."""
    if not _thread.connects:
        return False
    # A connection that was closed has none open, and would be opened by being asked.
    known = connections.all(initialized_only=True)
    mine = [each for each in known if each.connection is not None or each.in_atomic_block]
    _thread.connects = bool(mine)
    left = [each for each in mine if in_transaction(each.alias)]
    for connection in left:
        connection.close()
        del connections[connection.alias]  # or it would believe that it is still inside
    return bool(left)
