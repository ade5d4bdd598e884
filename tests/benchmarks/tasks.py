"""Tasks that the workers run. With BENCH_ASYNC there is an async handler among them."""

from __future__ import annotations

import asyncio
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from tasks import handler
from tasks.django_api.compat import task
from tasks.execution.context import Context


@handler("bench.nothing")
def nothing(ctx: Context, **data: Any) -> dict[str, Any]:
    """One system call, and a small result."""
    os.access("/", os.F_OK)
    return {"ok": True}


@handler("bench.clock")
def clock(ctx: Context, **data: Any) -> dict[str, Any]:
    """Return the moment at which it began, by the clock that all processes of this machine
    share."""
    return {"at": time.monotonic()}


@handler("bench.nap")
def nap(ctx: Context, seconds: float) -> dict[str, Any]:
    """``clock``, of a handler that takes a while."""
    at = time.monotonic()
    time.sleep(seconds)
    return {"at": at}


@handler("bench.mark")
def mark(ctx: Context, folder: str, n: int, seconds: float) -> None:
    """Leave a file that tells that number ``n`` has begun, and take a while."""
    Path(folder, str(n)).touch()
    time.sleep(seconds)


@handler("bench.note")
def note(ctx: Context, file: str, n: int, seconds: float) -> None:
    """Note in ``file``, before anything else, that number ``n`` has begun, and take a while."""
    os.write(_opened(file), b"%d\n" % n)
    time.sleep(seconds)


@lru_cache
def _opened(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@handler("bench.stay")
def stay(ctx: Context, **data: Any) -> dict[str, Any]:
    """Work on until the worker is killed; another attempt is done at once."""
    while ctx.attempt == 1 and not ctx.wait(60):
        pass
    return {"attempt": ctx.attempt}


if os.environ.get("BENCH_ASYNC"):

    @handler("bench.linger")
    async def linger(ctx: Context, **data: Any) -> dict[str, Any]:
        """``stay``, as a coroutine."""
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        return {"attempt": ctx.attempt}

    @handler("bench.coroutine")
    async def coroutine(ctx: Context, **data: Any) -> dict[str, Any]:
        """``nothing``, as a coroutine. Most workloads have no task of it."""
        os.access("/", os.F_OK)
        return {"ok": True}


@task
def nothing_of_django(**data: Any) -> dict[str, Any]:
    """``nothing``, for Django's own tasks."""
    os.access("/", os.F_OK)
    return {"ok": True}
