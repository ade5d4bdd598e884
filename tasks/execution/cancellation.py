"""Interrupt a handler from outside while it runs: by a stop, a cancellation, its timeout.

Any thread of the worker sets it; the handler reads it through its context.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from leasing.runtime.clock import clock
from tasks.exceptions import TaskCancelled
from tasks.runtime.latch import Latch


class Interruption:
    """The requests to the handler of one attempt."""

    # Defaults are the class's until they are set.
    #: The name of the requester of the cancellation; empty while there is none.
    cancelled_by: str = ""
    #: The end of the timeout on the holder's clock; None while there is none.
    deadline: float | None = None

    def __init__(
        self, stopping: threading.Event | None = None, timeout: timedelta | None = None
    ) -> None:
        #: The whole worker is to stop.
        self.stopping = stopping or threading.Event()
        self.timeout = timeout
        #: Set with the first thing there is to hear of: it ends the pauses of the handler.
        self.notified = Latch()

    def start_timeout(self) -> None:
        """The attempt begins now."""
        if self.timeout is not None:
            self.deadline = clock() + self.timeout.total_seconds()

    def cancel(self, by: str) -> None:
        """Pass on that ``by`` asked for the cancellation."""
        self.cancelled_by = by
        self.notified.set()

    @property
    def timed_out(self) -> bool:
        return self.deadline is not None and clock() >= self.deadline

    def check_timeout(self) -> None:
        """Raise TimeoutError once the timeout is over."""
        if self.timed_out:
            raise self.timeout_error()

    def check_cancelled(self) -> None:
        """Raise TaskCancelled once someone asked for it."""
        if self.cancelled_by:
            raise TaskCancelled(f"Cancellation was requested by {self.cancelled_by}.")

    def timeout_error(self) -> TimeoutError:
        seconds = self.timeout.total_seconds() if self.timeout else 0.0
        return TimeoutError(f"The attempt ran longer than its timeout of {seconds:.12g} s.")
