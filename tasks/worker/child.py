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
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from django.db import close_old_connections

from leasing.db.routing import database_of
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term
from leasing.management.console import shown
from leasing.stores.rows import row_store, term_of
from tasks import registry
from tasks.execution.cancellation import Interruption
from tasks.execution.context import Context
from tasks.execution.runner import call_handler
from tasks.models import Task
from tasks.payload import OUTPUT, check_json
from tasks.querysets.claimed import ClaimedTask
from tasks.runtime.connection import handlers_limited


@dataclass
class Job:
    """The message of the worker with a task to run, and its term."""

    task: Task
    trusted_until: float
    timeout: timedelta | None
    #: The span of the attempt, where tasks are traced.
    trace: str | None = None


@dataclass
class News:
    """The message of the worker while a handler runs."""

    grant_id: uuid.UUID
    trusted_until: float
    cancelled_by: str = ""
    stopping: bool = False


@dataclass
class Answer:
    """The message of the child about the end of the handler."""

    output: Any = None
    given_back: tuple[str, timedelta] | None = None
    #: True if the handler has completed the task itself.
    completed: bool = False
    failed: bool = False
    #: The error, pickled, where that can be done.
    error: bytes | None = None
    error_type: str = ""
    error_text: str = ""
    traceback: str = ""


@dataclass
class Attempt:
    """The child's side of one attempt."""

    claimed: ClaimedTask
    hold: Term
    interruption: Interruption = field(default_factory=Interruption)
    trace: str | None = None

    @classmethod
    def of(cls, job: Job) -> Attempt:
        hold = term_of(job.task, row_store(Task, database_of(job.task)))
        hold.keep(Keeper(threads=False))
        hold.expect_end()  # the worker tells of a loss
        hold.trusted_until = job.trusted_until
        interruption = Interruption(timeout=job.timeout)
        interruption.start_timeout()
        return cls(ClaimedTask.of(job.task), hold, interruption, job.trace)

    def hear(self, news: News) -> None:
        if news.grant_id != self.hold.grant_id:
            return
        self.hold.trusted_until = news.trusted_until
        if news.cancelled_by:
            self.interruption.cancel(news.cancelled_by)
        if news.stopping:
            self.interruption.stopping.set()
            self.interruption.notified.set()

    def run(self) -> Answer:
        if self.trace is None:
            return self._run()
        from tasks.tracing import inside

        with inside(self.trace):
            return self._run()

    def _run(self) -> Answer:
        close_old_connections()
        context = Context(self.claimed, self.hold, self.interruption.stopping, self.interruption)
        try:
            output = call_handler(registry.find(self.claimed.name), context, self.claimed.task_data)
            dropped = context.completed or context.given_back is not None
            answer = Answer(None if dropped else check_json(output, OUTPUT), context.given_back)
        except BaseException as error:
            answer = failure(error)
        context.flush()
        answer.completed = context.completed
        close_old_connections()
        return answer


def failure(error: BaseException) -> Answer:
    """``error`` for the worker: as it is, if it can be taken apart and put together again."""
    try:
        pickled: bytes | None = pickle.dumps(error)
        pickle.loads(pickled or b"")
    except Exception:
        pickled = None
    try:
        text = str(error)
    except Exception:  # an error of the error's own
        text = ""
    trace = "".join(traceback.format_exception(error))
    return Answer(
        failed=True,
        error=pickled,
        error_type=type(error).__name__,
        error_text=text,
        traceback=trace,
    )


class RemoteTraceback(Exception):
    """The cause of an error that came from a child: where it was raised there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def error_of(answer: Answer) -> BaseException:
    """The error that ``answer`` tells of; one of the same name where it could not be sent."""
    if answer.error is not None:
        error: BaseException = pickle.loads(answer.error)
    else:
        kind = type(answer.error_type, (Exception,), {"__doc__": "An error in a child process."})
        error = kind(answer.error_text)
    error.__cause__ = RemoteTraceback(answer.traceback)
    return error


def serve(descriptor: int, verbosity: int | None) -> None:
    """Run what comes over the pipe ``descriptor``, until it ends. Unless ``verbosity`` is None, the
    log is shown as that of the worker's command is."""
    os.set_inheritable(descriptor, False)
    # The worker decides when the child ends. No SIG_IGN: what a handler starts would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    pipe: Connection[Any, Any] = Connection(descriptor)
    jobs: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, jobs), name="worker-news", daemon=True).start()
    pipe.send(None)
    with handlers_limited(), nullcontext() if verbosity is None else shown(verbosity):
        while True:
            pipe.send(jobs.get().run())


def _listen(pipe: Connection[Any, Any], jobs: queue.SimpleQueue[Attempt]) -> None:
    attempt: Attempt | None = None
    try:
        while True:
            heard = pipe.recv()
            if isinstance(heard, Job):
                attempt = Attempt.of(heard)
                jobs.put(attempt)
            elif attempt is not None:
                attempt.hear(heard)
    finally:
        os.killpg(0, signal.SIGKILL)
