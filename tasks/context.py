"""What a handler is given beside its data."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from leasing.clock import clock
from leasing.hold import Hold
from tasks.interruption import Interruption

if TYPE_CHECKING:
    from tasks.models import Task


class Context:
    """One attempt of one task, as its handler sees it."""

    def __init__(
        self,
        task: Task,
        hold: Hold,
        stopping: threading.Event,
        interruption: Interruption | None = None,
    ) -> None:
        self.task = task
        self._hold = hold
        self._interruption = interruption or Interruption(stopping)
        #: Why the handler gave its task back, and for how long; None while it did not.
        self.given_back: tuple[str, timedelta] | None = None

    @property
    def attempt(self) -> int:
        """Which attempt this is; the first is 1."""
        return self.task.attempts

    @property
    def fencing_token(self) -> int:
        """Greater than the token of any attempt before: let what you write to refuse less."""
        return self._hold.fencing_token

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop: finish soon, or ``give_back``."""
        return self._interruption.stopping.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for the task to be cancelled."""
        return bool(self._interruption.cancelled_by)

    def ensure(self) -> None:
        """Raise LeaseLost unless the task is surely still ours, TimeoutError once its timeout
        is over, TaskCancelled once someone asked for that. Call it between the steps of long
        work, and let the error pass: the worker knows what to make of it."""
        self._interruption.check_timeout()
        self._hold.ensure()
        self._interruption.check_cancelled()

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``, or until the worker is asked to stop. Returns ``stopping``.

        Ends early, and raises what ``ensure`` does, when there is reason to. Not for coroutines,
        which are cancelled at any await.
        """
        deadline = self._interruption.deadline
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - clock()))
        self._interruption.stirred.wait(seconds)
        self.ensure()
        return self.stopping

    def give_back(self, reason: str = "", *, delay: float | timedelta = 0) -> None:
        """Set the task ready again once the handler returns, not before ``delay`` (seconds) has
        passed, with no attempt spent; what the handler returns is dropped."""
        pause = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        if pause < timedelta(0):
            raise ValueError("The delay must not be negative.")
        self.given_back = (reason or "given back by its handler", pause)
