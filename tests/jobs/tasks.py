"""Handlers for tests with real processes; found at start, as those of any app."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from leasing.models import Lease
from tasks import handler
from tasks.exceptions import Snooze
from tasks.execution.context import Context
from tasks.models import Task


@handler("jobs.echo")
def echo(ctx: Context, **data: Any) -> dict[str, Any]:
    """Return what it was given."""
    return data


@handler("jobs.read")
def read(ctx: Context, pause: float, times: int = 0) -> None:
    """Read from the database so many times, and pause before each and at the end."""
    for _ in range(times):
        time.sleep(pause)
        Task.objects.filter(pk=0).exists()
    time.sleep(pause)


@handler("jobs.leave_thread")
def leave_thread(ctx: Context) -> None:
    """Leave a thread that runs for good, and that no daemon is."""
    threading.Thread(target=threading.Event().wait, name="left behind", daemon=False).start()


#: What has leaked.
_held: list[bytes] = []


@handler("jobs.leak")
def leak(ctx: Context, mib: int) -> None:
    """Keep so much memory for good."""
    _held.append(b"x" * (mib << 20))


@handler("jobs.wait")
def wait(ctx: Context, folder: str) -> dict[str, Any]:
    """Work until the file ``go-<attempt>`` appears in ``folder``, or until the worker stops if
    there is a file ``polite``. Never asks whether the task is still its own. Once there is a
    file ``stall`` the first attempt is not renewed any more."""
    attempt = ctx.attempt
    Path(folder, f"began-{attempt}").touch()
    while not Path(folder, f"go-{attempt}").exists():
        if ctx.stopping and Path(folder, "polite").exists():
            break
        if attempt == 1 and Path(folder, "stall").exists():
            ctx._attempt.due_at = float("inf")
        time.sleep(0.01)
    return {"attempt": attempt, "pid": os.getpid()}


_maps: dict[str, mmap.mmap] = {}


@handler("jobs.mark")
def mark(ctx: Context, file: str, n: int) -> None:
    """Set the byte ``n`` of ``file``, without a system call: it is set once the handler begins."""
    if file not in _maps:
        with open(file, "r+b") as opened:
            _maps[file] = mmap.mmap(opened.fileno(), 0)
    _maps[file][n] = 1


@handler("jobs.kill")
def kill(ctx: Context) -> None:
    """Kill the process, as the kernel's out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


@handler("jobs.stock")
def stock(ctx: Context) -> None:
    """Wait for a lease."""
    with Lease.objects.hold("report:stock", wait=None):
        pass


@handler("jobs.charge")
def charge(ctx: Context) -> None:
    """Fail as a provider that is down does."""
    raise ConnectionError("provider: 503 Service Unavailable")


if os.environ.get("JOBS_VERSION") != "1":

    @handler("jobs.new")
    def new(ctx: Context, **data: Any) -> dict[str, Any]:
        """Work that the first version of this app knows nothing of."""
        return data


@handler("jobs.compute", process=True)
def compute(ctx: Context, do: str = "return", **data: Any) -> Any:
    """Do as ``do`` says, in a process of its own."""
    match do:
        case "return":
            ctx.ensure()
            logging.getLogger("tasks.jobs").info("computed")
            return {"pid": os.getpid(), "token": ctx.fencing_token, **data}
        case "raise":
            raise ValueError("no luck")
        case "raise what cannot be sent":
            raise Unsendable(lambda: None)
        case "return no JSON":
            return {1, 2}
        case "exit":
            os._exit(3)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "give back":
            ctx.give_back("not today", delay=3600)
            return object()  # which nobody looks at
        case "snooze":
            raise Snooze(3600, "not yet")
        case "leave a transaction open":
            transaction.atomic().__enter__()
        case "complete":
            with ctx.completing({"done": True}):
                pass
        case "ensure":
            folder, known = Path(data["folder"]), ctx._attempt.trusted_until
            _wait(ctx, folder, lambda: _ensure(ctx, folder, known))
        case "ignore":
            _wait(ctx, Path(data["folder"]), lambda: None)
        case "until stopping":
            Path(data["folder"], "began").write_text(str(os.getpid()))
            while not ctx.wait(60):
                pass
            ctx.give_back("the worker stops")
    return None


@handler("jobs.block")
async def block(ctx: Context, folder: str) -> None:
    """Sleep on a thread, where no cancellation reaches."""
    Path(folder, "began").write_text(str(os.getpid()))
    await sync_to_async(time.sleep)(60)


@handler("jobs.fork")
def fork(ctx: Context, end: str) -> int | None:
    """Fork; the copy ends its handler as ``end`` says. Return the exit code of the copy."""
    return _end(end) if (code := _fork()) is None else code


@handler("jobs.fork_in_process", process=True)
def fork_in_process(ctx: Context, end: str) -> int | None:
    """``fork``, in a process of its own."""
    return _end(end) if (code := _fork()) is None else code


@handler("jobs.fork_in_coroutine_in_process", process=True)
@handler("jobs.fork_in_coroutine")
async def fork_in_coroutine(ctx: Context, end: str) -> int | None:
    """``fork``, in a coroutine."""
    if (code := _fork()) is None and end == "await":
        await asyncio.sleep(0)
    return _end(end) if code is None else code


def _fork() -> int | None:
    """Return the exit code of a copy of this process, -9 if it does not end; in the copy None."""
    with warnings.catch_warnings(action="ignore"):  # Python warns of threads
        pid = os.fork()
    if pid == 0:
        return None
    until = time.monotonic() + 10
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end(end: str) -> int:
    match end:
        case "raise":
            raise ValueError("no luck")
        case "exit":
            raise SystemExit(3)
    return 7


class Unsendable(Exception):
    """Has what cannot be pickled."""


def _ensure(ctx: Context, folder: Path, known: float) -> None:
    """Leave a file once it is held for longer than was ``known``: a renewal was heard of."""
    if ctx._attempt.trusted_until > known:
        (folder / "renewed").touch()
    ctx.ensure()


def _wait(ctx: Context, folder: Path, look: Callable[[], None]) -> None:
    Path(folder, "began").write_text(str(os.getpid()))
    while True:
        look()
        time.sleep(0.01)
