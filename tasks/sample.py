"""The sample workload: a task that sleeps, as the public sample service has it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasing.runtime.clock import clock
from tasks import registry
from tasks.exceptions import GiveUp
from tasks.registry import handler

if TYPE_CHECKING:
    from tasks.execution.context import Context

SLEEP = "sample.sleep"
SHORTEST, LONGEST = 1, 60


@handler(SLEEP)
def sleep(ctx: Context, sleep_duration_seconds: float) -> dict[str, Any]:
    """Sleep, and look every second whether the task is still ours."""
    if (
        isinstance(sleep_duration_seconds, bool)
        or not isinstance(sleep_duration_seconds, int | float)
        or not 0 <= sleep_duration_seconds <= LONGEST
    ):
        raise GiveUp(f"sleep_duration_seconds must be a number from 0 to {LONGEST}.")
    end = clock() + sleep_duration_seconds
    while (left := end - clock()) > 0:
        ctx.ensure()
        time.sleep(min(1.0, left))
    return {"slept_seconds": sleep_duration_seconds}


def own_handlers() -> list[str]:
    """The names of the project's own handlers: of all but this one, and without aliases."""
    return sorted({registry.find(name).name for name in registry.names()} - {SLEEP})
