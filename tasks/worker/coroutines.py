"""The executor of coroutines: one event loop per worker, on a thread of its own.

As a request under ASGI, each coroutine has a thread for its synchronous calls (Django's async ORM
makes some), from the first such call to its end, and so connections of its own. Results are stored
on another thread than the loop's, so that a slow database delays no coroutine.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from leasing.runtime.clock import clock
from leasing.runtime.threads import LastingThread
from tasks.execution import runner
from tasks.execution.attempt import Attempt, Outcome
from tasks.execution.context import Context
from tasks.registry import Kind
from tasks.runtime import forks
from tasks.worker.executor import Executor

#: After how many times the ttl of its tasks a loop that is blocked counts as ended.
HOPELESS_AFTER = 3


class Coroutine:
    """Carries an attempt on the loop of ``executor``: one task of asyncio, of which only the call
    of the handler can be interrupted."""

    __slots__ = ("_executor", "_is_in_handler", "task")

    def __init__(self, executor: Coroutines) -> None:
        self._executor = executor
        self._is_in_handler = False
        self.task: asyncio.Task[None] | None = None

    def is_alive(self) -> bool:
        """Return True until it, or its loop, has ended in whatever way."""
        return self._executor.is_alive() and not self.is_done()

    def is_done(self) -> bool:
        """Return True once it has ended in whatever way."""
        return self.task is not None and self.task.done()

    async def run(self, attempt: Attempt) -> Outcome:
        """Run ``attempt``, which begins now, and return its outcome. Raises nothing."""
        context = Context(attempt)
        output, error = None, None
        try:
            async with ThreadSensitiveContext() as threads:
                if attempt.needs_progress_report:
                    await context.aprogress()
                attempt.set_mark()
                output, error = await self._call(attempt, context)
                await context.aflush()
                if threads in SyncToAsync.context_to_thread_executor and await _tidy():
                    error = error or RuntimeError(runner.LEFT_OPEN)
        except BaseException as failure:
            error = error or failure
        attempt.has_ended = True
        return runner.judge(attempt, context, output, error)

    async def _call(self, attempt: Attempt, context: Context) -> tuple[Any, BaseException | None]:
        """Call the handler. Returns its output, or its error: SystemExit out of a task of asyncio
        would end the loop."""
        assert attempt.handler is not None
        assert self.task is not None
        self._is_in_handler = True
        attempt.cancel_call = self._interrupt
        try:
            if attempt.is_over or context.cancelled:
                raise asyncio.CancelledError  # whoever ended it found nothing to interrupt
            work = attempt.handler.function(context, **attempt.claimed.task_data)
            return await forks.awaited(work, attempt.claimed.id), None
        except BaseException as error:
            return None, error
        finally:
            self._is_in_handler = False
            attempt.cancel_call = None  # or each would keep the other
            if self.task.cancelling():
                # Too late for the handler, it is to reach nothing that comes after it.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                while self.task.uncancel():
                    pass

    def _interrupt(self) -> None:
        assert self.task is not None
        self.task.get_loop().call_soon_threadsafe(self._cancel, self.task)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if self._is_in_handler:
            task.cancel()


class Coroutines(Executor):
    """Runs each task as a coroutine, which is cancelled when it is to end."""

    kind = Kind.COROUTINE

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = LastingThread("event-loop", self._run_loop)
        self._closed = False
        self._pinged_at: float | None = None
        #: The ttl of the tasks that are kept.
        self._ttl = 0.0
        #: The attempts that run: the loop keeps only weak references. The loop's thread alone
        #: writes it.
        self._tasks: set[asyncio.Task[None]] = set()
        #: The context that each begins with, and not what another has set.
        self._context = copy_context()

    @property
    def is_blocked(self) -> bool:
        """Return True if a coroutine that does not yield blocks the loop."""
        if self._loop is None or not self._running:
            return False
        pinged_at = self._pinged_at
        if pinged_at is None:
            self._pinged_at = clock()
            self._loop.call_soon_threadsafe(self._answer)
            return False
        return clock() - pinged_at > self.timing.blocked_after

    def _answer(self) -> None:
        self._pinged_at = None

    def is_alive(self) -> bool:
        """Return True while the loop goes on, as far as is known: it may be blocked, but not for
        longer than tasks are kept from others without it."""
        pinged_at = self._pinged_at
        is_hopeless = pinged_at is not None and clock() - pinged_at > HOPELESS_AFTER * self._ttl
        return self._thread.is_alive() and not is_hopeless

    def is_stuck(self) -> bool:
        is_hopeless = self.is_blocked and self._thread.is_alive() and not self.is_alive()
        return super().is_stuck() or is_hopeless

    def _begin(self, count: int) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread.ensure_running()
        self._loop.call_soon_threadsafe(self._fill)

    def _run_loop(self) -> None:
        assert self._loop is not None
        while not self._closed:  # a coroutine may have stopped it
            self._loop.run_forever()
        if not self._running:
            self._loop.close()

    def _restart(self) -> None:
        if self._loop is not None:
            self._thread.ensure_running()

    def _goes_on(self, attempt: Attempt, waiting: set[int]) -> bool:
        carrier = attempt.carrier
        if isinstance(carrier, Coroutine):  # whose loop goes on with what it had
            return not carrier.is_done()
        return super()._goes_on(attempt, waiting)

    def _fill(self) -> None:
        """Begin what waits, as far as there are slots."""
        assert self._loop is not None
        while len(self._tasks) < self.slots and not self._closed:
            try:
                attempt = self._waiting.popleft()
            except IndexError:
                return
            self._ttl = attempt.claimed.term.seconds
            attempt.carrier = carrier = Coroutine(self)
            carrier.task = self._loop.create_task(
                self._run(attempt, carrier), context=self._context.copy()
            )
            self._tasks.add(carrier.task)

    async def _run(self, attempt: Attempt, carrier: Coroutine) -> None:
        try:
            self._begun[id(attempt)] = began_at = clock()
            outcome = runner.begin(attempt)
            stalled = False
            if outcome is None:
                stalled = self.chaos is not None and self.chaos.strike(attempt)
                outcome = await carrier.run(attempt)
            if stalled and outcome.verb:
                assert self.chaos is not None
                await asyncio.to_thread(self.chaos.run_late, attempt)
            outcome.close()
            self._end(outcome, began_at)
        finally:
            assert carrier.task is not None
            self._tasks.discard(carrier.task)
            self._fill()

    def close(self) -> None:
        self._closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


@sync_to_async
def _tidy() -> bool:
    """Leave no transaction and no connection behind on the coroutine's own thread."""
    left_open = runner.drop_transactions()
    connections.close_all()
    return left_open
