"""The context that a handler of a remote worker gets in addition to its data."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from leasing.client.exceptions import ServiceError
from leasing.exceptions import LeaseLost
from leasing.holding.term import Term
from leasing.runtime.aio import drive, in_thread
from leasing.runtime.clock import clock
from tasks.client.calls import Claimed, RemoteTask, TaskCalls
from tasks.client.log import log
from tasks.delays import check_delay
from tasks.exceptions import TaskCancelled

#: Seconds between two reports of progress, at least.
REPORT_EVERY = 1.0


class Context:
    """One attempt of one task, as its handler sees it: as ``tasks.Context``, without what needs the
    database.

    Methods that write raise LeaseLost when the task no longer belongs to this attempt: let it
    propagate, as from ``ensure``. Their twins for coroutines begin with an a.
    """

    #: The name of the requester of the cancellation; empty while there is none.
    cancelled_by: str = ""
    #: The end of the timeout on the holder's clock; None while there is none.
    deadline: float | None = None
    #: Why the handler gave its task back, and for how many seconds; None while it did not.
    given_back: tuple[str, float] | None = None
    _reported_at: float = float("-inf")

    def __init__(
        self,
        claimed: Claimed,
        hold: Term,
        calls: TaskCalls,
        stopping: threading.Event,
    ) -> None:
        self.claimed = claimed
        self._hold = hold
        self._calls = calls
        self._stopping = stopping
        self._state = claimed.checkpoint
        #: Set once there is something to hear of: it ends the pauses of the handler.
        self.notified = threading.Event()

    @property
    def task(self) -> RemoteTask:
        """The task, as it was claimed."""
        return self.claimed.task

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.claimed.task.attempts

    @property
    def fencing_token(self) -> int:
        """Greater than the token of any earlier attempt: let your targets reject lower ones."""
        return self.claimed.term.fencing_token

    @property
    def stopping(self) -> bool:
        """Return True if the worker was asked to stop: finish soon, or ``give_back``."""
        return self._stopping.is_set()

    @property
    def cancelled(self) -> bool:
        """Return True if someone asked for the task to be cancelled."""
        return bool(self.cancelled_by)

    @property
    def state(self) -> Any:
        """The latest checkpoint, of this or an earlier attempt; None if there is none."""
        return self._state

    async def load(self) -> RemoteTask:
        """Return ``task``. The claim returned it whole; a coroutine that runs in workers of the
        service as well awaits this there."""
        return self.task

    def ensure(self) -> None:
        """Raise LeaseLost unless this attempt certainly still holds the task, TimeoutError after
        its timeout, and TaskCancelled once someone has asked to cancel it."""
        if self.deadline is not None and clock() >= self.deadline:
            raise TimeoutError("The attempt ran longer than its timeout.")
        self._hold.ensure()
        if self.cancelled_by:
            raise TaskCancelled(f"Cancellation was requested by {self.cancelled_by}.")

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the worker is asked to stop. Returns ``stopping``.

        Ends early, and raises as ``ensure`` does, after a loss, a timeout or a cancellation. Not
        for coroutines, which are cancelled at any await.
        """
        if self.deadline is not None:
            seconds = min(seconds, max(0.0, self.deadline - clock()))
        if not self.stopping:
            self.notified.wait(seconds)
        self.ensure()
        return self.stopping

    def give_back(self, reason: str = "", *, delay: float | timedelta = 0) -> None:
        """Make the task ready again when the handler returns, without spending the attempt. It
        does not start again before ``delay`` (seconds). The handler's return value is dropped."""
        self.given_back = (
            reason or "given back by its handler",
            check_delay(delay).total_seconds(),
        )

    def progress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """Report how far the work is: ``done`` of ``total``, and any further JSON. Reports are sent
        at most once a second, others are dropped, except the one whose ``done`` is ``total``. One
        that the service does not receive is dropped with a line in the log. Raises LeaseLost."""
        is_last = done is not None and done == total
        if not is_last and clock() - self._reported_at < REPORT_EVERY:
            self._hold.ensure()
            return
        self._reported_at = clock()
        given = {"done": done, "total": total}
        value = {key: said for key, said in given.items() if said is not None} | more
        try:
            self._write(lambda: drive(self._calls.progress(self.claimed, value or None)))
        except ServiceError as error:
            log.task_unreported(self.claimed, error=error)

    async def aprogress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """``progress``, for coroutines."""
        await in_thread(lambda: self.progress(done, total, **more))

    def checkpoint(self, state: Any) -> None:
        """Store ``state``, any JSON; later attempts find it in ``ctx.state``. Raises LeaseLost,
        NotSerializable, and ServiceError if the service could not store it."""
        self._write(lambda: drive(self._calls.checkpoint(self.claimed, state)))
        self._state = state

    async def acheckpoint(self, state: Any) -> None:
        """``checkpoint``, for coroutines."""
        await in_thread(self.checkpoint, state)

    def _write(self, call: Any) -> None:
        self._hold.ensure()
        try:
            call()
        except LeaseLost as loss:
            self._hold.mark_lost(loss.reason)
            raise
