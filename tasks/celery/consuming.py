"""Handle a message in a Celery worker: claim the row it names, and run it to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from logging import ERROR
from typing import Any

from django.db import Error, connections

from leasing.holding.term import keep_all
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from leasing.validation.names import default_holder
from tasks.exceptions import UnknownQueue
from tasks.execution import runner
from tasks.execution.attempt import Attempt
from tasks.execution.chaos import Chaos
from tasks.execution.context import Context
from tasks.log import log
from tasks.models import Task
from tasks.notifier import notify_now
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Kind
from tasks.runtime.connection import handlers_limited
from tasks.worker.timeouts import Timekeeper

#: Seconds between tries to claim while the database is away.
CLAIM_PAUSES = (0.2, 0.5, 1, 2, 4)

#: Set when this process was asked to stop.
stopping = threading.Event()


def consume(key: int, queue: str, holder: str | None = None, *, chaos: bool = False) -> bool:
    """Run a task, if it can be claimed now. Returns True if it was. Raises nothing of the task's.

    Args:
        key: The key of the task.
        queue: The queue that the message named: the task must be in it.
        holder: The name of the worker.
        chaos: True for faults, for demonstrations.
    """
    with handlers_limited():
        return _consume(key, queue, holder or default_holder(), chaos)


def _consume(key: int, queue: str, holder: str, chaos: bool) -> bool:
    runner.tidy()
    claimed = _claim(key, queue, holder)
    if claimed is None:
        return False
    attempt = Attempt(claimed, stopping, _timekeeper().watch)
    keep_all([attempt])
    began_at = clock()
    runner.run(attempt, _call, _chaos() if chaos else None)
    happened("attempt.ran", queue=queue, seconds=clock() - began_at)
    if claimed.concurrency_key:
        notify_now(claimed.using, queue)  # another of its key may be published now
    return True


def _claim(key: int, queue: str, holder: str) -> ClaimedTask | None:
    for pause in (*CLAIM_PAUSES, None):
        try:
            claimed = Task.objects.take_one(key, holder, queue=queue)
            if claimed is None and Task.objects.unpublish([key]):
                # It cannot be run now: the relay decides again when it is published.
                log.task_unclaimed(task_id=key, queue=queue, reason="not ready")
            return claimed
        except UnknownQueue as error:
            log.message_dropped(task_id=key, queue=queue, error=error)
            return None
        except Error as error:
            connections.close_all()
            if pause is None:
                log.task_unclaimed(level=ERROR, task_id=key, queue=queue, reason=error)
                return None
            log.claim_failed(task_id=key, queue=queue, error=error)
            stopping.wait(pause)
    raise AssertionError("the last pause is None")


def _call(attempt: Attempt, context: Context) -> Any:
    handler = attempt.handler
    assert handler is not None
    if attempt.kind is Kind.PROCESS:
        attempt.start_timeout()  # it begins at once: no process is started here
    if handler.is_async:
        handler = replace(handler, function=_interruptible(attempt, handler.function))
    return runner.call_handler(handler, context, attempt.claimed.task_data)


def _interruptible(attempt: Attempt, function: Callable[..., Any]) -> Callable[..., Any]:
    """The coroutine function ``function``, cancelled when its attempt is over."""

    async def run(context: Context, **data: Any) -> Any:
        loop, work = asyncio.get_running_loop(), asyncio.current_task()
        assert work is not None

        def interrupt() -> None:
            loop.call_soon_threadsafe(work.cancel)

        attempt.cancel_call = interrupt
        try:
            if attempt.is_over or context.cancelled:
                work.cancel()
            return await function(context, **data)
        finally:
            attempt.cancel_call = None  # the loop ends with it

    return run


@cache
def _timekeeper() -> Timekeeper:
    return Timekeeper(runner.time_out)


@cache
def _chaos() -> Chaos:
    return Chaos()
