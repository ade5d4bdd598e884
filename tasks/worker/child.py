"""Run handlers in a child process of a worker, one after the other.

The worker renews the lease of the task. Over a pipe it tells the child until when to trust it, that
the task was cancelled, or that the worker stops. The child's context writes progress and
checkpoints under the task's grant, over a connection of its own. The child sends the outcome to the
worker, which stores it. When the worker is gone the pipe closes, and the child ends with all
processes that it started.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import traceback
import uuid
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from django.db import close_old_connections

from leasing.holding.keeper import Keeper
from leasing.holding.term import keep_all
from leasing.management.console import shown
from tasks import registry
from tasks.execution.attempt import Attempt
from tasks.execution.context import Context
from tasks.execution.runner import call_handler
from tasks.models import Task
from tasks.payload import OUTPUT, check_json
from tasks.querysets.claimed import ClaimedTask
from tasks.runtime.connection import handlers_limited


class Job(NamedTuple):
    """The message of the worker with a task to run."""

    task: Task
    trusted_until: float
    #: The span of the attempt, where tasks are traced.
    trace: str | None = None


class News(NamedTuple):
    """The message of the worker while a handler runs."""

    grant_id: uuid.UUID
    trusted_until: float
    cancelled_by: str = ""
    stopping: bool = False


class Raised(NamedTuple):
    """An error of a handler: pickled, where it can be taken apart and put together again."""

    pickled: bytes | None
    name: str
    text: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Return what the worker is to know of ``error``."""
        try:
            pickled: bytes | None = pickle.dumps(error)
            pickle.loads(pickled or b"")
        except Exception:
            pickled = None
        try:
            text = str(error)
        except Exception:  # an error of the error's own
            text = ""
        printed = "".join(traceback.format_exception(error))
        return cls(pickled, type(error).__name__, text, printed)

    @property
    def error(self) -> BaseException:
        """Return the error; one of the same name where it could not be sent."""
        if self.pickled is not None:
            error: BaseException = pickle.loads(self.pickled)
        else:
            kind = type(self.name, (Exception,), {"__doc__": "An error in a child process."})
            error = kind(self.text)
        error.__cause__ = RemoteTraceback(self.traceback)
        return error


class RemoteTraceback(Exception):
    """The cause of an error that came from a child: where it was raised there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Answer(NamedTuple):
    """The message of the child about the end of the handler."""

    output: Any
    given_back: tuple[str, timedelta] | None
    #: True if the handler has completed the task itself.
    completed: bool
    raised: Raised | None


def serve(descriptor: int, verbosity: int | None) -> None:
    """Run what comes over the pipe ``descriptor``, until it ends. Unless ``verbosity`` is None, the
    log is shown as that of the worker's command is."""
    os.set_inheritable(descriptor, False)
    # The worker decides when the child ends. No SIG_IGN: what a handler starts would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    pipe: Connection[Any, Any] = Connection(descriptor)
    begun: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, begun), name="worker-news", daemon=True).start()
    pipe.send(None)
    with handlers_limited(), nullcontext() if verbosity is None else shown(verbosity):
        while True:
            attempt = begun.get()
            pipe.send(None)  # killed before, the child is replaced; from here on the attempt fails
            pipe.send(run(attempt))


def _listen(pipe: Connection[Any, Any], begun: queue.SimpleQueue[Attempt]) -> None:
    attempt: Attempt | None = None
    try:
        while True:
            heard = pipe.recv()
            if isinstance(heard, Job):
                attempt = begin(heard)
                begun.put(attempt)
            elif attempt is not None and heard.grant_id == attempt.grant_id:
                attempt.trusted_until = heard.trusted_until
                if heard.cancelled_by:
                    attempt.cancel(heard.cancelled_by)
                if heard.stopping:
                    attempt.stopping.set()
                    attempt.notify()
    finally:
        os.killpg(0, signal.SIGKILL)


def begin(job: Job) -> Attempt:
    """Return the child's side of an attempt."""
    attempt = Attempt(ClaimedTask.of(job.task), threading.Event())
    keep_all([attempt], Keeper(threads=False))
    attempt.expect_end()  # the worker tells of a loss
    attempt.trusted_until, attempt.trace_context = job.trusted_until, job.trace
    attempt.start_timeout()
    return attempt


def run(attempt: Attempt) -> Answer:
    """Call its handler. Raises nothing."""
    traced: AbstractContextManager[Any] = nullcontext()
    if attempt.trace_context is not None:
        from tasks.tracing import inside

        traced = inside(attempt.trace_context)
    context, claimed = Context(attempt), attempt.claimed
    output, raised = None, None
    with traced:
        close_old_connections()
        try:
            returned = call_handler(registry.find(claimed.name), context, claimed.task_data)
            if not context.completed and context.given_back is None:
                output = check_json(returned, OUTPUT)
        except BaseException as error:
            raised = Raised.of(error)
        context.flush()
        close_old_connections()
    return Answer(output, context.given_back, context.completed, raised)
