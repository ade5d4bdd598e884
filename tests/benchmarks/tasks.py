"""Tasks that the workers run."""

from __future__ import annotations

import time
from typing import Any

from tasks import handler
from tasks.django_api.compat import task
from tasks.execution.context import Context


@handler("bench.nothing")
def nothing(ctx: Context, **data: Any) -> dict[str, Any]:
    """No work, and a small result."""
    return {"ok": True}


@handler("bench.clock")
def clock(ctx: Context, **data: Any) -> dict[str, Any]:
    """Return the moment at which it began, by the clock that all processes of this machine
    share."""
    return {"at": time.monotonic()}


@handler("bench.stay")
def stay(ctx: Context, **data: Any) -> dict[str, Any]:
    """Work on until the worker is killed; another attempt is done at once."""
    while ctx.attempt == 1 and not ctx.wait(60):
        pass
    return {"attempt": ctx.attempt}


@task
def nothing_of_django(**data: Any) -> dict[str, Any]:
    """``nothing``, for Django's own tasks."""
    return {"ok": True}
