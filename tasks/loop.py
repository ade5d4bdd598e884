"""Coroutines: all of a worker's on one event loop, which has a thread of its own.

Each has, as a request has under ASGI, a thread for what it does synchronously (Django's async
ORM does), from its first such call to its end, and so connections of its own. What they return
is stored by a few threads beside the loop, so that a slow database delays no coroutine.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from leasing.clock import clock
from tasks import runner
from tasks.chaos import Chaos
from tasks.context import Context
from tasks.execution import Execution
from tasks.lanes import Lane
from tasks.registry import Kind

logger = logging.getLogger("tasks.worker")

#: How many threads store what coroutines return.
STORERS = 4
#: Seconds without an answer after which the loop counts as blocked, and gets nothing more to do.
BLOCKED_AFTER = 1.0

#: What became of a coroutine: its context, what it returned, and what it raised.
End = tuple[Execution, Context, Any, BaseException | None, bool]


class Coroutines(Lane):
    """Runs each task as a coroutine, which is cancelled when it is to end."""

    kind = Kind.COROUTINE

    def __init__(
        self, places: int, done: Callable[[Execution], object], chaos: Chaos | None = None
    ) -> None:
        super().__init__(places, done, chaos)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: queue.SimpleQueue[End] = queue.SimpleQueue()
        self._pinged_at: float | None = None

    @property
    def free(self) -> int:
        return 0 if self._is_blocked() else super().free

    def _is_blocked(self) -> bool:
        """Whether a coroutine that does not let go keeps the loop from all others."""
        if self._loop is None or not self._running:
            return False
        if self._pinged_at is None:
            self._pinged_at = clock()
            self._loop.call_soon_threadsafe(self._answer)
            return False
        return clock() - self._pinged_at > BLOCKED_AFTER

    def _answer(self) -> None:
        self._pinged_at = None

    def _begin(self, execution: Execution) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._start("event-loop", self._run_loop)
            for number in range(STORERS):
                self._start(f"task-results-{number + 1}", self._store)
        loop = self._loop
        loop.call_soon_threadsafe(lambda: _kept(loop.create_task(self._run(execution))))

    def _run_loop(self) -> None:
        assert self._loop is not None
        self._loop.run_forever()
        if not self._running:
            self._loop.close()

    def _start(self, name: str, work: Callable[[], object]) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    async def _run(self, execution: Execution) -> None:
        context = execution.context()
        stalled = self.chaos is not None and self.chaos.strike(execution.hold)
        output, error = None, None
        try:
            async with ThreadSensitiveContext() as threads:
                output, error = await self._call(execution, context)
                await context.aflush()
                if threads in SyncToAsync.context_to_thread_executor and await _tidy():
                    error = error or RuntimeError(runner.LEFT_OPEN)
        except BaseException as failure:
            error = error or failure
        execution.ended.set()
        self._ends.put((execution, context, output, error, stalled))

    async def _call(
        self, execution: Execution, context: Context
    ) -> tuple[Any, BaseException | None]:
        assert execution.handler is not None
        function = execution.handler.function
        loop = asyncio.get_running_loop()
        work = loop.create_task(_answer_of(function, context, execution.task.task_data))

        def interrupt() -> None:
            loop.call_soon_threadsafe(work.cancel)

        execution.interrupt = interrupt
        if execution.is_over or context.cancelled:
            work.cancel()
        try:
            return await work
        except asyncio.CancelledError as error:  # before it had begun
            return None, error

    def _store(self) -> None:
        while True:
            execution, context, output, error, stalled = self._ends.get()
            close_old_connections()
            try:
                if stalled and self.chaos is not None:
                    self.chaos.run_late(execution.hold)
                outcome = runner.judge(execution, context, output, error)
                runner.store(execution, outcome, "handler")
            except Exception:  # pragma: no cover - a fault of ours must not end the thread
                logger.exception("task %s could not be settled", execution.task.pk)
            finally:
                execution.hold.leave()
                close_old_connections()
                self._end(execution)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


async def _answer_of(
    function: Callable[..., Any], context: Context, data: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    # SystemExit out of a task of asyncio would end the loop.
    try:
        return await function(context, **data), None
    except BaseException as error:
        return None, error


@sync_to_async
def _tidy() -> bool:
    """Leave no transaction and no connection behind on the coroutine's own thread."""
    left_open = runner.drop_transactions()
    connections.close_all()
    return left_open


#: The loop itself keeps only weak references to its tasks.
_tasks: set[asyncio.Task[None]] = set()


def _kept(task: asyncio.Task[None]) -> None:
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
