"""The cancellation of an ``async with`` block whose lease is lost."""

from __future__ import annotations

import asyncio
import contextlib


class Interrupt:
    """Cancels the task that made it, from any thread, once."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancellations = task.cancelling()
        self._done = False

    def __call__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._done and not self._task.done():
            self._done = True
            self._task.cancel()

    def explains(self, error: BaseException | None) -> bool:
        """Return True if ``error`` is this cancellation and nobody else's too. Called by the task
        as its body ends; nothing is cancelled afterwards."""
        cancelled, self._done = self._done, True
        if not cancelled:
            return False
        others = self._task.uncancel() > self._cancellations
        return isinstance(error, asyncio.CancelledError) and not others
