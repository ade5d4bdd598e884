"""Handlers that record their own beginning and end, from within the processes of workers.

They are for any worker: the context has the same names with Django and without.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from leasing.exceptions import LeaseLost
from tests.chaos.history import now, recorder


class Broken(Exception):
    """The handler was to fail."""


class Belief:
    """From when until when an attempt is proven to have believed that its task was its own."""

    def __init__(self, ensure: Callable[[], None]) -> None:
        self._ensure = ensure
        self.held: list[int] = []

    def prove(self) -> None:
        """Raise unless the task is certainly held, as it was when this was called."""
        at = now()
        self._ensure()
        self.held = [self.held[0] if self.held else at, at]

    def while_proven(self, seconds: float) -> Iterator[None]:
        """Go on for so long; raise once the task is not certainly held."""
        until = time.monotonic() + seconds
        self.prove()
        while time.monotonic() < until:
            yield
            self.prove()


@contextmanager
def attempt_of(ctx: Any, tag: str, **value: Any) -> Iterator[Belief]:
    """Record an attempt from the first line of its handler to the last."""
    task, belief = ctx.task.id, Belief(ctx.ensure)
    value |= {"task": task, "token": ctx.fencing_token, "tag": tag}
    raised: BaseException | None = None
    with recorder().call("handler", f"task:{task}", **value) as call:
        try:
            yield belief
        except BaseException as error:
            raised = error
            call.failed(error=type(error).__name__, held=belief.held)
        else:
            call.ok(held=belief.held)
    if raised is not None:
        raise raised


def work(ctx: Any, tag: str, seconds: float = 0.0, fails: int = 0, **more: Any) -> Any:
    """Hold the task for so long, and fail so many attempts."""
    with attempt_of(ctx, tag, **more) as belief:
        for _ in belief.while_proven(seconds):
            time.sleep(0.02)
        return _end(ctx, fails)


async def coroutine(ctx: Any, tag: str, seconds: float = 0.0, fails: int = 0) -> Any:
    """``work``, as a coroutine."""
    with attempt_of(ctx, tag) as belief:
        for _ in belief.while_proven(seconds):
            await asyncio.sleep(0.02)
        return _end(ctx, fails)


def stubborn(ctx: Any, tag: str, seconds: float = 0.0) -> Any:
    """Work, and hand in a result whatever became of the task."""
    until = time.monotonic() + seconds
    with attempt_of(ctx, tag) as belief:
        try:
            for _ in belief.while_proven(seconds):
                time.sleep(0.02)
        except LeaseLost:
            time.sleep(max(0.0, until - time.monotonic()))
        return _end(ctx)


def tick(ctx: Any) -> Any:
    """A task of the schedule."""
    with attempt_of(ctx, ""):
        return _end(ctx)


def _end(ctx: Any, fails: int = 0) -> Any:
    if ctx.attempt <= fails:
        raise Broken
    # By this the ledger knows whose completion it was.
    return {"token": ctx.fencing_token}


HANDLERS: Final[dict[str, Callable[..., Any]]] = {
    "chaos.work": work,
    "chaos.coroutine": coroutine,
    "chaos.stubborn": stubborn,
    "chaos.tick": tick,
}
