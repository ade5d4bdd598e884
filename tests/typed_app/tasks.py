"""Handlers: plain, bare, asynchronous, with steps, with any data."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

from tasks import Context, handler
from tasks.exceptions import GiveUp, Snooze
from tasks.retry import Exponential, GiveUpOn
from tests.typed_app.models import Invoice


class Sent(TypedDict):
    sent: int
    copies: int


@handler("billing.send", max_attempts=3, retry=GiveUpOn(ValueError, then=Exponential(base=1)))
def send(ctx: Context, invoice_id: int, *, copies: int = 1) -> Sent:
    """Send an invoice."""
    ctx.ensure()
    if invoice_id < 0:
        raise GiveUp("there is no such invoice")
    Invoice.objects.filter(pk=invoice_id).update(sent=True)
    for copy in range(copies):
        ctx.progress(copy + 1, copies)
    return {"sent": invoice_id, "copies": copies}


@handler
def charge(ctx: Context, card: UUID | str, amount: Decimal | str) -> str:
    """Charge a card: a task gets strings, whatever it was enqueued with."""
    receipt: str = ctx.step("charge", _charge, str(card), Decimal(amount))
    ctx.checkpoint({"receipt": receipt})
    return receipt


def _charge(card: str, amount: Decimal) -> str:
    return f"{card[-4:]}: {amount:.2f}"


@handler(timeout=60, concurrency_key="customer:{customer}")
async def remind(ctx: Context, customer: str, *, politely: bool = True) -> str:
    if ctx.attempt > 3 and (await ctx.load()).priority < 0:
        raise Snooze(3600, "nobody reads it")
    await ctx.aprogress(1, 1)
    return f"{'Dear' if politely else 'Hey'} {customer}"


@handler("billing.close")
def close_the_day(ctx: Context) -> None:
    with ctx.completing() as end:
        Invoice.objects.filter(sent=True).delete()
        end.output = None


@handler("billing.archive")
def archive(ctx: Context, **documents: Any) -> int:
    return len(documents)
