"""What a handler is given beside its data."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from leasing.hold import Hold

if TYPE_CHECKING:
    from tasks.models import Task


class Context:
    """One attempt of one task, as its handler sees it."""

    def __init__(self, task: Task, hold: Hold, stopping: threading.Event) -> None:
        self.task = task
        self._hold = hold
        self._stopping = stopping

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
        """Whether the worker was asked to stop: finish soon."""
        return self._stopping.is_set()

    def ensure(self) -> None:
        """Raise LeaseLost unless the task is surely still ours. Call it between the steps of
        long work, and let the error pass: the worker drops what a lost attempt returns."""
        self._hold.ensure()
