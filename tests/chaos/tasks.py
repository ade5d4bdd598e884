"""Handlers that record their own beginning and end, from within the processes of workers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from leasing.exceptions import LeaseLost
from tasks import Context, handler, schedule
from tests.chaos.attempts import Attempt, Broken


def _attempt(ctx: Context, tag: str, **more: Any) -> Attempt:
    return Attempt(ctx.task.pk, ctx.fencing_token, ctx.ensure, tag=tag, **more)


@handler("chaos.work")
def work(ctx: Context, tag: str, seconds: float = 0.0, fails: int = 0, **more: Any) -> Any:
    """Hold the task for so long, and fail so many attempts."""
    with _attempt(ctx, tag, **more) as attempt:
        attempt.work(seconds, ctx.attempt <= fails)
        return attempt.output


@handler("chaos.in_process", process=True)
def in_process(ctx: Context, tag: str, seconds: float = 0.0, fails: int = 0, **more: Any) -> Any:
    """``work``, in a child process."""
    with _attempt(ctx, tag, **more) as attempt:
        attempt.work(seconds, ctx.attempt <= fails)
        return attempt.output


@handler("chaos.coroutine")
async def coroutine(ctx: Context, tag: str, seconds: float = 0.0, fails: int = 0) -> Any:
    """``work``, as a coroutine."""
    with _attempt(ctx, tag) as attempt:
        until = time.monotonic() + seconds
        attempt.prove()
        while time.monotonic() < until:
            await asyncio.sleep(0.02)
            attempt.prove()
        if ctx.attempt <= fails:
            raise Broken
        return attempt.output


@handler("chaos.stubborn")
def stubborn(ctx: Context, tag: str, seconds: float) -> Any:
    """Work, and hand in a result whatever became of the task."""
    with _attempt(ctx, tag) as attempt:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                attempt.prove()
            except LeaseLost:
                attempt.ensure = lambda: None
                attempt.is_lost = True
            time.sleep(0.02)
        return attempt.output


@schedule("chaos.tick", every=1, missed="all")
@handler("chaos.tick")
def tick(ctx: Context) -> Any:
    """A task of the schedule."""
    with _attempt(ctx, "") as attempt:
        return attempt.output
