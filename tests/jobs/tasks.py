"""Handlers for tests with real processes; found at start, as those of any app."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tasks import handler
from tasks.context import Context


@handler("jobs.echo")
def echo(ctx: Context, **data: Any) -> dict[str, Any]:
    """Return what it was given."""
    return data


@handler("jobs.wait")
def wait(ctx: Context, folder: str) -> dict[str, Any]:
    """Work until the file ``go-<attempt>`` appears in ``folder``, or until the worker stops if
    there is a file ``polite``. Never asks whether the task is still its own. With a file
    ``stall`` the first attempt is not renewed."""
    attempt = ctx.attempt
    stalls = attempt == 1 and Path(folder, "stall").exists()
    Path(folder, f"began-{attempt}").touch()
    while not Path(folder, f"go-{attempt}").exists():
        if ctx.stopping and Path(folder, "polite").exists():
            break
        if stalls:
            ctx._hold.due_at = float("inf")
        time.sleep(0.01)
    return {"attempt": attempt, "pid": os.getpid()}
