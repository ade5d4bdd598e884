"""Handlers of the bakery: a quick one, a slow one with progress, one that fails at times, and one
with a schedule."""

from __future__ import annotations

import random
from typing import Any

from project.bakery.models import Oven
from tasks import handler, schedule
from tasks.execution.context import Context


@handler("bakery.receipt")
def receipt(ctx: Context, order: int) -> dict[str, Any]:
    """Send the receipt of an order."""
    return {"order": order, "sent": True}


@handler("bakery.bake", progress_timeout=60)
def bake(ctx: Context, loaves: int) -> dict[str, Any]:
    """Bake loaf by loaf; go on after the last checkpoint if another worker was killed at it."""
    for done in range(ctx.state or 0, loaves):
        if ctx.wait(1):
            ctx.give_back("the worker stops", delay=3)
            break
        ctx.checkpoint(done + 1)
        ctx.progress(done + 1, loaves)
    return {"loaves": loaves}


@handler("bakery.charge", max_attempts=4)
def charge(ctx: Context, order: int) -> dict[str, Any]:
    """Charge a card, over a network that fails one time in three."""
    if random.random() < 1 / 3:
        raise ConnectionError("The payment service did not answer.")
    return {"order": order, "charged": True}


@schedule(every=60, overlap=False)
@handler("bakery.count")
def count(ctx: Context) -> dict[str, Any]:
    """Count what was baked."""
    return dict(Oven.objects.values_list("name", "loaves"))
