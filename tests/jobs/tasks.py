"""Handlers for tests with real processes; found at start, as those of any app."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from tasks import handler
from tasks.exceptions import Snooze
from tasks.execution.context import Context


@handler("jobs.echo")
def echo(ctx: Context, **data: Any) -> dict[str, Any]:
    """Return what it was given."""
    return data


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
            ctx._hold.due_at = float("inf")
        time.sleep(0.01)
    return {"attempt": attempt, "pid": os.getpid()}


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
            folder, known = Path(data["folder"]), ctx._hold.trusted_until
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


class Unsendable(Exception):
    """Has what cannot be pickled."""


def _ensure(ctx: Context, folder: Path, known: float) -> None:
    """Leave a file once it is held for longer than was ``known``: a renewal was heard of."""
    if ctx._hold.trusted_until > known:
        (folder / "renewed").touch()
    ctx.ensure()


def _wait(ctx: Context, folder: Path, look: Callable[[], None]) -> None:
    Path(folder, "began").write_text(str(os.getpid()))
    while True:
        look()
        time.sleep(0.01)
