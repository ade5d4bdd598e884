"""One attempt of a handler, in the history; for workers with and without Django."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from tests.chaos.history import now, recorder


class Broken(Exception):
    """The handler was to fail."""


class Attempt:
    """Records a handler from its first line to its last, and for how long it was proven to believe
    that the task was its own.

    Args:
        task: The task's key.
        token: The fencing token of the attempt.
        ensure: Raises unless the task is certainly held.
        value: What else is recorded.
    """

    def __init__(self, task: int, token: int, ensure: Callable[[], None], **value: Any) -> None:
        self._value = {"task": task, "token": token, **value}
        self.ensure = ensure
        self.output = {"token": token}
        self._held: list[int] = []
        #: True once it was certain that the task is another's: nothing more is proven.
        self.is_lost = False

    def __enter__(self) -> Attempt:
        self._stack = ExitStack()
        task = f"task:{self._value['task']}"
        self._call = self._stack.enter_context(recorder().call("handler", task, **self._value))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held = {"held": self._held} if self._held else {}
        if error is None:
            self._call.ok(**held)
        else:
            self._call.failed(error=type(error).__name__, **held)
        self._stack.close()

    def prove(self) -> None:
        """Raise unless the task is certainly held, as it was when this was called."""
        at = now()
        self.ensure()
        if not self.is_lost:
            self._held = [self._held[0] if self._held else at, at]

    def work(self, seconds: float, fails: bool) -> None:
        """Hold the task for so long, and fail if it is to."""
        until = time.monotonic() + seconds
        self.prove()
        while time.monotonic() < until:
            time.sleep(0.02)
            self.prove()
        if fails:
            raise Broken
