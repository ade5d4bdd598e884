"""The handler of the demo's remote worker, which has no database and needs no Django."""

from __future__ import annotations

from typing import Any

from tasks.client import Context, handler
from tasks.exceptions import GiveUp


@handler("sample.sleep")
def sleep(ctx: Context, sleep_duration_seconds: float) -> dict[str, Any]:
    """Sleep, and show how far it is."""
    if sleep_duration_seconds < 0:
        raise GiveUp("sleep_duration_seconds must not be negative.")
    slept = 0.0
    while slept < sleep_duration_seconds:
        pause = min(1.0, sleep_duration_seconds - slept)
        if ctx.wait(pause):
            ctx.give_back("the worker stops", delay=3)  # or its last claim brings it back
            break
        slept += pause
        ctx.progress(slept, sleep_duration_seconds)
    return {"slept_seconds": slept}
