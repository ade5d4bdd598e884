"""What the views of the app call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from uuid import UUID

from leasing import Leader, leased, once
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.models import Lease
from leasing.store import NamedStore
from leasing.stores import stores
from tasks import await_for, schedule, wait_for
from tasks.exceptions import TaskFailed, WaitTimeout
from tasks.models import Task
from tests.typed_app.models import Invoice, Ledger
from tests.typed_app.tasks import Sent, archive, charge, close_the_day, remind, send

# Tasks


def send_invoice(invoice: Invoice) -> Task:
    return send.using(priority=5, unique_key=f"invoice:{invoice.pk}").enqueue(invoice.pk, copies=2)


def send_all(invoices: Iterable[Invoice]) -> Sequence[Task]:
    return send.enqueue_many(send.data(invoice_id=invoice.pk) for invoice in invoices)


def send_once_paid(invoice: Invoice) -> None:
    send.using(transaction="default").enqueue_on_commit(invoice.pk, copies=2)


def receipt_for(card: UUID, amount: Decimal, seconds: float) -> str:
    task = charge.enqueue(card=card, amount=amount)
    try:
        return str(wait_for(task, timeout=seconds))
    except WaitTimeout as late:
        return f"later: {late.state}"
    except TaskFailed as failure:
        return f"never: {failure.task.last_error}"


async def remind_all(customers: Iterable[str]) -> list[str]:
    gently = remind.using(delay=0.0)
    tasks = [await gently.aenqueue(customer, politely=True) for customer in customers]
    tasks += await remind.aenqueue_many([remind.data("everybody")])
    return [str(await await_for(task, timeout=10)) for task in tasks]


async def forget(customer: str) -> int:
    tasks = Task.objects.filter(concurrency_key=f"customer:{customer}")
    return await tasks.acancel(by=customer) + await tasks.failed().aretry(by=customer)


def archive_anything(pages: int) -> Task:
    if pages:
        return Task.objects.enqueue("billing.archive", {"pages": pages}, priority=1)
    return archive.enqueue(anything=1, at_all="yes")


def close_every_night() -> None:
    schedule("billing.nightly", close_the_day, cron="0 3 * * *", timezone="Europe/Berlin")
    schedule(every=60)(remind)


def result_of(key: int) -> Sent | None:
    task = Task.objects.get(pk=key)
    if task.finished_at is None:
        return None
    return Sent(sent=task.result["sent"], copies=task.data["copies"])


# Leases


def close(ledger: Ledger, amount: int) -> int:
    with Lease.objects.hold(f"ledger:{ledger.pk}", ttl=30, wait=1.0) as hold:
        ledger.advance_fence(hold)
        ledger.total += amount
        hold.ensure()
        ledger.save_fenced(hold)
        token: int = hold.fencing_token
    return token


async def holder_of(resource: str) -> str | None:
    try:
        async with Lease.objects.hold(resource) as hold:
            hold.ensure()
    except LeaseHeld as held:
        return held.holder
    except LeaseLost as lost:
        return lost.reason
    return None


@leased("invoice:{number}")
def number(number: int) -> str:
    return f"2026-{number:05}"


def pay_once(order: int) -> dict[str, int]:
    paid: dict[str, int] = once(f"pay:{order}", window=3600).run(lambda: {"order": order})
    return paid


def work_on(invoice: Invoice) -> str:
    with invoice.hold(ttl=30) as hold:
        return hold.holder


def claim_some(limit: int) -> list[str]:
    with Invoice.objects.filter(sent=False).claim(limit) as invoices:
        return [invoice.customer for invoice in invoices]


bookkeeper = Leader("bookkeeper")


# Leases elsewhere


@leased("close:{day}", store="central")
def close_elsewhere(day: str) -> str:
    with stores["central"].hold(f"books:{day}", ttl=30, wait=5, on_lost=print) as hold:
        incumbent = stores["central"].current(hold.resource)
        return incumbent.holder if incumbent else ""


def lead_elsewhere(store: NamedStore) -> int:
    with Leader("books", store=store) as term:
        return term.fencing_token
