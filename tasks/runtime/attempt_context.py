"""The part of a handler's context that depends on its attempt alone: it is the same in a worker
with a database and in a worker of a service."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from leasing.runtime.clock import clock
from tasks.bounds import check_delay
from tasks.exceptions import TaskCancelled


class AttemptContext:
    """The context of an attempt. The attempt has the methods ``ensure`` and ``wait``, and the
    attributes ``claimed``, ``stopping``, ``cancelled_by``, ``deadline`` and ``timeout_error``."""

    _attempt: Any
    claimed: Any

    #: Why the handler gave its task back, and for how long; None if it did not.
    given_back: tuple[str, timedelta] | None = None

    def __init__(self, attempt: Any) -> None:
        self._attempt = attempt
        #: The task, as far as the claim read it.
        self.claimed = attempt.claimed

    @property
    def stopping(self) -> bool:
        """Return True if the worker was asked to stop: finish soon, or ``give_back``."""
        return bool(self._attempt.stopping.is_set())

    @property
    def cancelled(self) -> bool:
        """Return True if someone asked for the task to be cancelled."""
        return bool(self._attempt.cancelled_by)

    def ensure(self) -> None:
        """Raise LeaseLost unless this attempt certainly still holds the task, TimeoutError after
        its timeout, and TaskCancelled once someone has asked to cancel it.

        Call it between the steps of long work, and let the error propagate: the worker handles it.
        """
        attempt = self._attempt
        if attempt.deadline is not None and clock() >= attempt.deadline:
            raise attempt.timeout_error
        attempt.ensure()
        if attempt.cancelled_by:
            raise TaskCancelled(f"Cancellation was requested by {attempt.cancelled_by}.")

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the worker is asked to stop. Returns ``stopping``.

        Ends early, and raises as ``ensure`` does, after a loss, a timeout or a cancellation. Not
        for coroutines, which are cancelled at any await.
        """
        deadline = self._attempt.deadline
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - clock()))
        self._attempt.wait(seconds)
        self.ensure()
        return self.stopping

    def _report(self, done: Any, total: Any, more: dict[str, Any]) -> dict[str, Any]:
        """Return a report of progress as it is stored."""
        counts = {"done": done, "total": total}
        return {key: count for key, count in counts.items() if count is not None} | more

    def give_back(self, reason: str = "", *, delay: float | timedelta = 0) -> None:
        """Make the task ready again when the handler returns, without spending the attempt. It
        does not start again before ``delay`` (seconds). The handler's return value is dropped."""
        self.given_back = (reason or "given back by its handler", check_delay(delay))
