"""Mistakes that a type checker must find: were one of them not an error, its ``type: ignore`` would
be, since mypy warns of those that it does not need.

None of these functions is called.
"""

from __future__ import annotations

from typing import Any

from leasing import leased
from leasing.models import Lease
from leasing.stores import stores
from tasks import Context, await_for, handler, wait_for
from tasks.models import Task
from tasks.testing import FakeContext
from tests.typed_app.models import Invoice
from tests.typed_app.tasks import charge, close_the_day, remind, send


def arguments() -> None:
    send.enqueue(invoice_id="7")  # type: ignore[arg-type]
    send.enqueue(invoice=7)  # type: ignore[call-arg]
    send.enqueue()  # type: ignore[call-arg]
    send.enqueue(7, 2)  # type: ignore[call-arg]
    send.enqueue(7, copies="2")  # type: ignore[arg-type]
    send.enqueue_on_commit(invoice_id="7")  # type: ignore[arg-type]
    send.enqueue(Context, 7)  # type: ignore[call-arg, arg-type]
    charge.enqueue(card=7, amount="3.10")  # type: ignore[arg-type]
    close_the_day.enqueue(1)  # type: ignore[call-arg]


def many() -> None:
    send.data(invoice="7")  # type: ignore[call-arg]
    send.enqueue_many([remind.data("Ann")])  # type: ignore[list-item]
    send.enqueue_many([{"invoice_id": 7}])  # type: ignore[list-item] # not typed by its parameters


def options() -> None:
    send.using(prio=5)  # type: ignore[call-arg]
    send.using(priority="high")  # type: ignore[arg-type]
    send.using(priority=5).enqueue(invoice_id="7")  # type: ignore[arg-type]
    send.enqueue(7, priority=5)  # type: ignore[call-arg]


def elsewhere() -> None:
    stores["central"].hold("close", ttl="30")  # type: ignore[arg-type]
    stores["central"].hold("close", timeout=3)  # type: ignore[call-arg]
    stores[1]  # type: ignore[index]
    Lease.objects.hold("close", timeout=3)  # type: ignore[call-arg]
    Lease.objects.acquire("close", ttl="30")  # type: ignore[arg-type]
    Lease(resource="close").hold(prio=5)  # type: ignore[call-arg]
    leased("close", max_hold="30")  # type: ignore[arg-type]
    leased("close", store=7)  # type: ignore[arg-type]


async def twins(task: Task) -> None:
    await remind.aenqueue(7)  # type: ignore[arg-type]
    await remind.using(priority=5).aenqueue(number=7)  # type: ignore[call-arg]
    await Task.objects.aenqueue(send, {"invoice_id": 7}, prio=5)  # type: ignore[call-arg]
    wait_for(task)  # type: ignore[call-arg]
    await await_for(task.pk, 10)  # type: ignore[arg-type]
    task.result = 7  # type: ignore[misc]


def direct() -> int:
    send(FakeContext(), "7")  # type: ignore[arg-type]
    send(7)  # type: ignore[call-arg, arg-type]
    remind(FakeContext(), "Ann").upper()  # type: ignore[attr-defined] # it is to be awaited
    return send(FakeContext(), 7)  # type: ignore[return-value]


def contexts(ctx: Context) -> None:
    ctx.progess(1, 2)  # type: ignore[attr-defined]
    ctx.wait("a while")  # type: ignore[arg-type]


def decorators() -> None:
    @handler("billing.nothing")  # type: ignore[arg-type]
    def without_context() -> None: ...

    @handler  # type: ignore[arg-type]
    def with_another_context(invoice_id: int) -> None: ...

    @handler("billing.late", timeout="60")  # type: ignore[call-overload, untyped-decorator]
    def with_a_wrong_option(ctx: Context) -> None: ...


def leases(invoice: Invoice) -> Any:
    Invoice.objects.claim("all of them")  # type: ignore[arg-type]
    for claimed in Invoice.objects.claim(3):
        claimed.custom()  # type: ignore[attr-defined]
    with invoice.hold(ttl=30) as hold:
        return hold.fencing_tokens  # type: ignore[attr-defined]
