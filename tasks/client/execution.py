"""One attempt of a remote worker, from its claim to its outcome, and what calls its handler."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from leasing.client.messages import encoded
from leasing.exceptions import LeaseLost
from leasing.holding.keeper import ABANDONED
from leasing.holding.term import Term
from leasing.runtime.clock import clock
from tasks.client.calls import Claimed, TaskCalls
from tasks.client.completer import COMPLETE, FAIL, GIVE_BACK, Completer, Outcome
from tasks.client.context import Context
from tasks.client.handlers import Handler
from tasks.client.log import log
from tasks.client.store import TaskStore
from tasks.exceptions import GiveUp, InvalidOutput, Snooze, TaskCancelled
from tasks.runtime import forks

STOPPED: Final = "its worker was stopped"
#: The greatest length of an error that is sent.
MAX_ERROR: Final = 10_000
#: The greatest length of a reason that is sent.
MAX_REASON: Final = 500


class Execution:
    """One claimed task, and the hold that the keeper renews: the attempt of its context.

    Args:
        claimed: The task.
        handler: Its handler.
        store: Renews it.
        calls: The requests of its context.
        completer: Stores its outcome.
        stopping: Set once the worker was asked to stop.
        released: Called with this object in a list once the service has ended the attempt.
    """

    #: The name of the requester of the cancellation; empty while there is none.
    cancelled_by: str = ""
    #: The end of the timeout on the holder's clock; None while there is none.
    deadline: float | None = None

    def __init__(
        self,
        claimed: Claimed,
        handler: Handler,
        store: TaskStore,
        calls: TaskCalls,
        completer: Completer,
        stopping: threading.Event,
        released: Callable[[Sequence[Execution]], object],
    ) -> None:
        self.claimed = claimed
        self.handler = handler
        self.hold = hold = claimed.term
        hold.store, hold.is_prompt = store, True
        hold.on_lost, hold.on_yield = self._lost, self._asked
        self.stopping = stopping
        self.context = Context(self, calls)
        #: Set once there is something to hear of: it ends the pauses of the handler.
        self.notified = threading.Event()
        #: Cancels its coroutine, from any thread.
        self.interrupt: Callable[[], object] | None = None
        self._completer = completer
        self._lock = threading.Lock()
        #: True once its handler is called, or may be.
        self.has_begun = False
        self._has_ended = False
        self._released = released
        self._timer: threading.Timer | None = None

    # The attempt

    def begin(self) -> bool:
        """Return True if the handler is to be called now."""
        with self._lock:
            if self._has_ended:
                return False
            self.has_begun = True
        if not self.hold.valid:  # also where nobody had the time to say so
            self.end_without(lambda: log.task_lost(self.claimed, reason="before it started"))
            return False
        if self.stopping.is_set():
            self.give_back(STOPPED, begun=False)
            return False
        log.task_begun(self.claimed)
        if (limit := self._limit) is not None:
            self.deadline = clock() + limit
            self._timer = threading.Timer(limit, self._time_out)
            self._timer.daemon = True
            self._timer.start()
        return True

    def judge(self, output: Any = None, error: BaseException | None = None) -> None:
        """End the attempt by what its handler returned, or raised."""
        if self._timer is not None:
            self._timer.cancel()
        given_back = self.context.given_back
        if error is None and given_back is not None:
            reason, delay = given_back
            self.give_back(reason, delay=delay.total_seconds())
        elif error is None:
            self._complete(output)
        elif isinstance(error, Snooze):
            self.give_back(_text_of(error), delay=error.delay.total_seconds())
        elif isinstance(error, TaskCancelled) or (
            isinstance(error, asyncio.CancelledError) and self.cancelled_by
        ):
            self.give_back(f"cancelled by {self.cancelled_by or 'its handler'}")
        elif isinstance(error, asyncio.CancelledError) and self.stopping.is_set():
            self.give_back(STOPPED)
        elif isinstance(error, LeaseLost) and not self.hold.valid:
            self.end_without(lambda: None)
        else:
            self._fail(error)

    def _complete(self, output: Any) -> None:
        try:
            encoded({"task_output": output})
        except (TypeError, ValueError, RecursionError) as error:
            self._fail(InvalidOutput(f"The handler returned a value that is not JSON: {error}"))
        else:
            self._end(COMPLETE, output)

    def _fail(self, error: BaseException) -> None:
        text = _storable(f"{type(error).__name__}: {_text_of(error)}", MAX_ERROR)
        if self._end(FAIL, (text, not isinstance(error, GiveUp))):
            log.task_failed(self.claimed, error=text, exc_info=error)

    def give_back(self, reason: str, *, delay: float = 0.0, begun: bool = True) -> None:
        """End the attempt without spending it.

        Args:
            reason: The reason, for the history.
            delay: Seconds until the task may start again.
            begun: False if its handler was never called.
        """
        said = {"reason": _storable(reason, MAX_REASON), "delay": delay, "begun": begun}
        self._end(GIVE_BACK, said)

    def _end(self, verb: str, said: Any) -> bool:
        """Store the outcome. The keeper renews the task until the service has answered. Returns
        False if the attempt had ended before."""
        with self._lock:
            if self._has_ended:
                return False
            self._has_ended = True
        self.hold.expect_end()
        self._completer.put(Outcome(self.claimed, verb, said, self))
        return True

    def end_without(self, note: Callable[[], object]) -> None:
        """End the attempt, of which the service knows already. ``note`` is called if it had not
        ended before."""
        with self._lock:
            has_ended, self._has_ended = self._has_ended, True
        if not has_ended:
            note()
            self._released([self])

    # What its context asks

    @property
    def _limit(self) -> float | None:
        return self.claimed.timeout or self.handler.timeout

    @property
    def timeout_error(self) -> TimeoutError:
        """Return the error of an attempt whose timeout is over."""
        return TimeoutError(f"The attempt ran longer than its timeout of {self._limit:.12g} s.")

    def ensure(self) -> None:
        """Raise LeaseLost unless the task is certainly still held."""
        self.hold.ensure()

    def wait(self, seconds: float) -> None:
        """Wait until there is something to hear of, for ``seconds`` at most."""
        if not self.stopping.is_set():
            self.notified.wait(seconds)

    # What others learn

    def _time_out(self) -> None:
        self.notified.set()
        self._fail(self.timeout_error)
        self._interrupt()

    def _lost(self, hold: Term) -> None:
        self.notified.set()
        if hold.reason == ABANDONED:
            self._end(GIVE_BACK, {"reason": "its event loop or thread does not answer"})
        else:
            self.end_without(lambda: log.task_lost(self.claimed, reason=hold.reason))
        self._interrupt()

    def _asked(self, hold: Term) -> None:
        self.cancelled_by = hold.yield_to
        self.notified.set()
        self._interrupt()

    def _interrupt(self) -> None:
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()


def _storable(text: str, length: int) -> str:
    """Return ``text`` without what no database stores, and no JSON carries."""
    return str(text)[:length].replace("\x00", "").encode(errors="replace").decode()


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a task whose handler raised it would be renewed for ever
        return "(an error without a text)"


class Threads:
    """Calls plain handlers, each on one of ``count`` threads.

    Args:
        count: The number of threads, at most. They are started when there is work.
        ended: Called when a handler has returned.
    """

    def __init__(self, count: int, ended: Callable[[], object]) -> None:
        self._count = count
        self._ended = ended
        self._waiting: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, execution: Execution, waiting: int) -> None:
        """Run ``execution`` soon; with it, ``waiting`` are in hand."""
        self._waiting.put(execution)
        if len(self._threads) < min(waiting, self._count):
            name = f"task-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """End the threads that have nothing to do."""
        for _ in self._threads:
            self._waiting.put(None)

    def _run(self) -> None:
        while (execution := self._waiting.get()) is not None:
            try:
                self._run_one(execution)
            except BaseException as error:  # an error in this package must not end the thread
                log.worker_failed(exc_info=True)
                execution.judge(error=error)  # or its task would be renewed for ever
            finally:
                self._ended()

    def _run_one(self, execution: Execution) -> None:
        if not execution.begin():
            return
        task, original = execution.claimed.task, forks.pid
        try:
            try:
                output = execution.handler.function(execution.context, **task.data)
            finally:
                if forks.pid != original:
                    forks.end_copy(original, task.id)
        except BaseException as error:
            execution.judge(error=error)
        else:
            execution.judge(output)


class Loop:
    """Runs handlers that are coroutine functions, ``count`` at a time, in one event loop on a
    thread of its own.

    A loop that does not answer for the ttl of a task, because a coroutine blocks it, is taken for
    dead: its tasks are given back.

    Args:
        count: The number of coroutines that run at a time.
        ended: Called when one has ended.
    """

    #: Seconds between the answers of the loop, and without one until it counts as blocked.
    TICK, BLOCKED_AFTER = 0.25, 1.0

    def __init__(self, count: int, ended: Callable[[], object]) -> None:
        self._count = count
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: asyncio.Semaphore | None = None
        self._ticked_at = clock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_blocked(self) -> bool:
        """Return True if a coroutine that does not yield blocks the loop."""
        return self._loop is not None and clock() - self._ticked_at > self.BLOCKED_AFTER

    def close(self) -> None:
        """End the loop once its coroutines, which are cancelled, have ended, or have not within
        BLOCKED_AFTER seconds; unless it is blocked."""
        if self._loop is None or self._thread is None or self.is_blocked:
            return
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
        self._thread.join(2 * self.BLOCKED_AFTER)

    async def _finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.BLOCKED_AFTER)
        asyncio.get_running_loop().stop()

    def submit(self, execution: Execution) -> None:
        """Run ``execution`` soon."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._slots = asyncio.Semaphore(self._count)
            self._ticked_at = clock()
            self._thread = threading.Thread(target=self._run, name="task-loop", daemon=True)
            self._thread.start()
        hold = execution.hold
        hold.proof = lambda: clock() - self._ticked_at < hold.ttl
        self._loop.call_soon_threadsafe(self._begin, execution)

    def _run(self) -> None:
        assert self._loop is not None
        self._tick()
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _tick(self) -> None:
        assert self._loop is not None
        self._ticked_at = clock()
        self._loop.call_later(self.TICK, self._tick)

    def _begin(self, execution: Execution) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run_one(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_one(self, execution: Execution) -> None:
        assert self._loop is not None and self._slots is not None
        try:
            async with self._slots:
                if execution.begin():
                    await self._call(execution)
        except Exception as error:
            log.worker_failed(exc_info=True)
            execution.judge(error=error)
        finally:
            self._ended()

    async def _call(self, execution: Execution) -> None:
        loop = asyncio.get_running_loop()
        function, data = execution.handler.function, execution.claimed.task.data
        work = loop.create_task(_answer_of(function, execution.context, data))

        def interrupt() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(work.cancel)

        execution.interrupt = interrupt
        if execution.hold.is_lost or execution.cancelled_by:
            work.cancel()
        try:
            output, error = await work
        except asyncio.CancelledError as cancelled:  # before it had begun
            output, error = None, cancelled
        execution.judge(output, error)


async def _answer_of(
    function: Callable[..., Any], context: Context, data: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    # SystemExit out of a task of asyncio would end the loop.
    try:
        return await forks.awaited(function(context, **data), context.task.id), None
    except BaseException as error:
        return None, error
