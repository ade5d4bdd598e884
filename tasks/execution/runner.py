"""Run one claimed task: call its handler, and determine the outcome.

An error of a handler never reaches the worker: it fails the attempt. Outcomes are stored by
``tasks.execution.completer``, many together.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.db import close_old_connections, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from leasing.db.dialects import in_transaction
from leasing.exceptions import LeaseLost
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.exceptions import Snooze, TaskCancelled
from tasks.execution.attempt import COMPLETE, FAIL, Attempt, Outcome, wait_until
from tasks.execution.chaos import Chaos
from tasks.execution.completer import store_outcomes
from tasks.execution.context import Context
from tasks.log import log
from tasks.payload import OTHER_RELEASE
from tasks.registry import UNKNOWN_DELAY, Handler, Kind
from tasks.runtime import forks
from tasks.runtime.connection import lasting_connection
from tasks.runtime.timing import USUAL, Timing

LEFT_OPEN = "The handler left a transaction open; its writes are rolled back."
STOPPED = "its worker was stopped"
#: The share of its progress timeout for which a task may wait for a slot without a report.
SILENCE = 0.1

#: Calls the handler of an attempt, and returns what it returns.
Call = Callable[[Attempt, Context], Any]


class _Thread(threading.local):
    #: True if the thread may have connections: most short handlers never ask for one, and looking
    #: for them takes longer than such a handler.
    connects = True


_thread = _Thread()


@receiver(connection_created, dispatch_uid="tasks.runner")
def _note_connection(**_named: Any) -> None:
    _thread.connects = True


def run(
    attempt: Attempt,
    call: Call | None = None,
    chaos: Chaos | None = None,
    timing: Timing = USUAL,
) -> None:
    """Run an attempt to its end on this thread, and store the outcome. Raises nothing.

    Args:
        attempt: The attempt, which is kept.
        call: Calls the handler; by default on this thread.
        chaos: Faults for demonstrations.
        timing: How often storing is tried again.
    """
    attempt.carrier = threading.current_thread()
    try:
        store_outcomes([work(attempt, call, chaos)], pauses=timing.store_pauses)
    finally:
        attempt.detach()  # whatever was raised into this thread: nobody carries it on
    tidy()


def work(attempt: Attempt, call: Call | None = None, chaos: Chaos | None = None) -> Outcome:
    """Return the outcome of an attempt, which is to be stored: ``run`` without that. Arguments are
    those of ``run``. Raises nothing."""
    tidy()
    outcome = begin(attempt)
    if outcome is None:
        stalled = chaos is not None and chaos.strike(attempt)
        context = Context(attempt)
        try:
            if attempt.needs_progress_report:
                context.progress()
            if call is not None:
                output = call(attempt, context)
            else:
                attempt.set_mark()
                assert attempt.handler is not None
                output = call_handler(attempt.handler, context, attempt.claimed.task_data)
        except BaseException as error:
            outcome = judge(attempt, context, error=error)
        else:
            outcome = judge(attempt, context, output)
        finally:
            attempt.has_ended = True
            context.flush()
        if chaos is not None and stalled and outcome.verb:
            chaos.run_late(attempt)
    outcome.close()
    return outcome


def tidy() -> None:
    """Close the connections of this thread that are too old or unusable, if it has any."""
    if _thread.connects:
        close_old_connections()


def begin(attempt: Attempt) -> Outcome | None:
    """Begin ``attempt``, on this thread or coroutine, and return None; or return its outcome
    without a call of its handler, because of an event while it waited for a slot, or because there
    is none. Raises nothing."""
    handler, claimed = attempt.handler, attempt.claimed
    try:
        if handler is None:
            reason = (
                f"No handler is registered for {claimed.name!r}: this worker lacks its module, "
                "as during a deploy."
            )
        elif reason := handler.parameters.mismatch(claimed.task_data):
            reason += f" {OTHER_RELEASE}"
        if reason:  # this worker may be too old for it, or too new
            log.task_no_handler(claimed, reason=reason)
            return _returned(attempt, reason, UNKNOWN_DELAY)
        if attempt.stopping.is_set():
            return _returned(attempt, STOPPED, begun=False)
        if not attempt.valid:  # also where nobody had the time to say so: it was suspended
            log.task_lost(claimed, reason="before it started")
            return Outcome(attempt)
        if attempt.cancelled_by:
            return _cancelled(attempt)
        if attempt.timeout is not None and attempt.kind is not Kind.PROCESS:
            attempt.start_timeout()  # a process may have to start first
        if claimed.progress_timeout is not None:
            silence = SILENCE * claimed.progress_timeout.total_seconds()
            attempt.needs_progress_report = clock() - claimed.sent_at > silence
        happened("attempt.begun", [attempt])
        return None
    except Exception as error:  # such as data that is no object: it would end this thread
        log.task_not_begun(claimed, error=error, exc_info=True)
        return Outcome(attempt, FAIL, error)


def time_out(attempt: Attempt, timing: Timing = USUAL) -> None:
    """Fail an attempt whose timeout is over, whether its handler can be ended or not."""
    if not attempt.end_by("timeout"):
        return
    attempt.end_work()
    if attempt.kind is not Kind.THREAD:
        wait_until(lambda: attempt.has_ended, clock() + timing.end_patience)
    error = attempt.timeout_error
    log.task_timed_out(attempt.claimed, error=error)
    with lasting_connection():
        outcome = judge(attempt, Context(attempt), error=error)
        attempt.expect_end()
        happened("attempt.over", [attempt], outcome=outcome)
        store_outcomes([outcome], pauses=timing.store_pauses)
    connections.close_all()


def judge(
    attempt: Attempt, context: Context, output: Any = None, error: BaseException | None = None
) -> Outcome:
    """Return the outcome of an attempt whose handler has ended.

    Args:
        attempt: The attempt.
        context: The context that the handler had.
        output: The value that it returned.
        error: The error that it raised; None if it returned.
    """
    if context.completed:
        if error is not None:
            log.task_failed_after_end(attempt.claimed, error=repr(error))
        attempt.clear_mark(is_stored=True)
        return Outcome(attempt)
    if error is None and context.given_back is not None:
        return _returned(attempt, *context.given_back)
    if error is None:
        return Outcome(attempt, COMPLETE, output)
    was_cancelled = isinstance(error, asyncio.CancelledError)
    if was_cancelled and attempt.is_lost:
        log.task_lost(attempt.claimed, reason="its coroutine was cancelled")
        return Outcome(attempt)
    if isinstance(error, LeaseLost) and error.resource == attempt.resource and not attempt.valid:
        log.task_lost(attempt.claimed, reason=error.reason)
        return Outcome(attempt)
    if isinstance(error, TaskCancelled) or (was_cancelled and attempt.cancelled_by):
        return _cancelled(attempt)
    if isinstance(error, Snooze):
        delay, reason = error.delay, str(error)
        return Outcome(attempt, "snooze", store=lambda rows, task: rows.snooze(task, delay, reason))
    return Outcome(attempt, FAIL, error)


def _cancelled(attempt: Attempt) -> Outcome:
    by = attempt.cancelled_by
    return Outcome(attempt, "cancel", store=lambda rows, task: rows.accept_cancel(task, by=by))


def _returned(
    attempt: Attempt, reason: str, delay: timedelta = timedelta(0), *, begun: bool = True
) -> Outcome:
    return Outcome(
        attempt,
        "give back",
        store=lambda rows, task: rows.give_back(task, reason, delay=delay, begun=begun),
    )


# Calling


def call_handler(handler: Handler, context: Context, data: dict[str, Any]) -> Any:
    """Call ``handler`` with ``data`` on this thread, and leave no transaction of it behind."""
    original, task_id = forks.pid, context.claimed.id
    function = called = handler.function
    if handler.is_async:

        async def awaited(*args: Any, **data: Any) -> Any:
            return await forks.awaited(function(*args, **data), task_id)

        called = async_to_sync(awaited)
    try:
        output = called(context, **data)
    finally:
        if forks.pid != original:
            forks.end_copy(original, task_id)
        left_open = drop_transactions()
    if left_open:
        raise RuntimeError(LEFT_OPEN)
    return output


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
