"""The context that a handler of a remote worker gets in addition to its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasing.client.exceptions import ServiceError
from leasing.exceptions import LeaseLost
from leasing.runtime.aio import drive, in_thread
from leasing.runtime.clock import clock
from tasks.client.calls import Claimed, RemoteTask, TaskCalls
from tasks.client.log import log
from tasks.runtime.attempt_context import AttemptContext

if TYPE_CHECKING:
    from tasks.client.execution import Execution

#: Seconds between two reports of progress, at least.
REPORT_EVERY = 1.0


class Context(AttemptContext):
    """One attempt of one task, as its handler sees it: as ``tasks.Context``, without what needs the
    database.

    Methods that write raise LeaseLost when the task no longer belongs to this attempt: let it
    propagate, as from ``ensure``. Their twins for coroutines begin with an a.
    """

    _attempt: Execution
    claimed: Claimed
    _reported_at: float = float("-inf")

    def __init__(self, attempt: Execution, calls: TaskCalls) -> None:
        super().__init__(attempt)
        self._calls = calls
        self._state = self.claimed.checkpoint

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
    def state(self) -> Any:
        """The latest checkpoint, of this or an earlier attempt; None if there is none."""
        return self._state

    async def load(self) -> RemoteTask:
        """Return ``task``. The claim returned it whole; a coroutine that runs in workers of the
        service as well awaits this there."""
        return self.task

    def progress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """Report how far the work is: ``done`` of ``total``, and any further JSON. Reports are sent
        at most once a second, others are dropped, except the one whose ``done`` is ``total``. One
        that the service does not receive is dropped with a line in the log. Raises LeaseLost."""
        is_last = done is not None and done == total
        if not is_last and clock() - self._reported_at < REPORT_EVERY:
            self._attempt.ensure()
            return
        self._reported_at = clock()
        value = self._report(done, total, more)
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
        self._attempt.ensure()
        try:
            call()
        except LeaseLost as loss:
            self.claimed.term.mark_lost(loss.reason)
            raise
