"""Calls to the database on a thread and a connection of their own.

Their writes stay, even if the caller's transaction is rolled back. The caller can abandon a call:
if the network drops an answer, the thread that waits for it cannot be interrupted. If an abandoned
call succeeds later and is Undoable, it is undone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, Self, TypeVar

from django.db import Error, OperationalError, connections

from leasing.db.connection_watchdog import STOP_TIMEOUT, watch_answers
from leasing.db.dialects import patience, use_private_connection
from leasing.runtime.aio import Steps, Undoable, altered
from leasing.runtime.clock import system_clock
from leasing.runtime.threads import CallbackThreads, apart, callbacks_here, start_thread

Result = TypeVar("Result")

#: Seconds between looks whether the caller was asked to stop.
CHECK_STOP_EVERY = 0.1
#: Seconds that waiting for the thread's end may take: it has nothing to do but to close.
CLOSING = 1.0

Job = tuple["Future[Any]", Callable[[], Any]]


class SideConnection:
    """A thread with a private connection to the database ``using``, while a ``with`` block runs.

    A call is given up after ``seconds`` (None: twice the patience of the connection), and soon
    after ``stopping`` is set.
    """

    def __init__(
        self, using: str, *, stopping: threading.Event | None = None, seconds: float | None = None
    ) -> None:
        self.using = using
        self._stopping = stopping
        self._seconds = 2 * patience() if seconds is None else seconds
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: The latest call, and the thread that makes it.
        self._future: Future[Any] | None = None
        self._asked: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Return True while the thread of the latest call goes on, even if the call was given
        up."""
        return self._asked is not None and self._asked.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            # A coroutine that was cancelled leaves a call under way: its event loop does not wait.
            if self._future is None or self._future.done():
                self._thread.join(CLOSING)
            self._thread = None

    def run(self, call: Callable[[], Result]) -> Result:
        """Return or raise the result of ``call`` there. Raises OperationalError when the call is
        given up."""
        if self._thread is None:
            self._begin()
        future: Future[Result] = Future()
        self._future, self._asked = future, self._thread
        self._jobs.put((future, partial(copy_context().run, call)))
        if not self._is_done(future):
            self._leave(future, call)
            raise OperationalError("the database did not answer in time")
        return future.result()

    def _is_done(self, future: Future[Any]) -> bool:
        end = system_clock() + self._seconds
        while not future.done() and (left := end - system_clock()) > 0:
            if self._stopping is None:
                wait([future], left)
            elif self._stopping.wait(0):
                wait([future], min(left, STOP_TIMEOUT))
                break
            else:
                wait([future], min(left, CHECK_STOP_EVERY))
        return future.done()

    def _leave(self, future: Future[Any], call: Callable[[], Any]) -> None:
        """Abandon the thread, which undoes the call if that ever ends. The next call gets another
        thread."""
        if isinstance(call, Undoable):
            self._jobs.put((Future(), lambda: call.undo(future.result())))
        self._jobs.put(None)
        self._thread = None

    def _begin(self) -> None:
        self._jobs = queue.SimpleQueue()
        # A daemon: the exit of the process must not wait for what will never be answered.
        limit = self._seconds + STOP_TIMEOUT
        work = partial(_work, self.using, self._jobs, limit, callbacks_here())
        self._thread = start_thread("leasing-side-connection", work)


def _work(
    using: str, jobs: queue.SimpleQueue[Job | None], limit: float, callbacks: CallbackThreads | None
) -> None:
    use_private_connection(using, patience())
    # Nobody waits for it any more by then: it is to end, and not to hang for good.
    watch_answers(connections[using], lambda: limit, "twice the patience of the connection")
    try:
        while (job := jobs.get()) is not None:
            future, call = job
            try:
                with apart(callbacks):
                    future.set_result(call())
            except BaseException as error:
                if isinstance(error, Error):
                    connections[using].close()  # the next call has another
                future.set_exception(error)
    finally:
        connections.close_all()


def moved(side_connection: SideConnection, steps: Steps[Result]) -> Steps[Result]:
    """The same ``steps``, whose calls are made by ``side_connection``; pauses stay with the
    driver."""

    def move(step: Any) -> Any:
        if not callable(step):
            return step
        run = partial(side_connection.run, step)
        return Undoable(run, step.undo) if isinstance(step, Undoable) else run

    with side_connection:
        return (yield from altered(steps, move))
