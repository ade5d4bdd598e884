"""The app of a user who checks types: that it is typed mypy says, and here it runs."""

from __future__ import annotations

import ast
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync

from leasing.exceptions import LeaseHeld
from leasing.models import Lease
from tasks.models import Task
from tasks.testing import FakeContext, drain, inline
from tests.typed_app import services
from tests.typed_app.models import Invoice, Ledger
from tests.typed_app.tasks import archive, charge, remind, send

pytestmark = pytest.mark.django_db(transaction=True)

#: What users may import: see the packages' docstrings and docs/.
PUBLIC = {
    "leasing",
    "leasing.exceptions",
    "leasing.models",
    "leasing.store",
    "leasing.stores",
    "tasks",
    "tasks.exceptions",
    "tasks.models",
    "tasks.retry",
    "tasks.testing",
}


def test_it_uses_public_names_alone() -> None:
    used = {
        str(node.module)
        for file in Path(__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
    }

    assert {each for each in used if each.startswith(("leasing", "tasks"))} <= PUBLIC


def test_its_tasks_run() -> None:
    invoice = Invoice.objects.create(customer="Ann")
    first = services.send_invoice(invoice)
    many = services.send_all([invoice, invoice])

    assert services.result_of(first.pk) is None
    drain(raises=True)

    assert services.result_of(first.pk) == {"sent": invoice.pk, "copies": 2}
    assert {Task.objects.get(pk=each.pk).status for each in many} == {"succeeded"}
    assert Invoice.objects.get().sent


def test_it_waits_for_results() -> None:
    with inline():
        assert services.receipt_for(UUID(int=7), Decimal("3.1"), 0) == "0007: 3.10"
        assert async_to_sync(services.remind_all)(["Ann"]) == ["Dear Ann", "Dear everybody"]
    assert services.receipt_for(UUID(int=7), Decimal(3), 0).startswith("later: No worker")


def test_its_handlers_are_called_directly_in_its_tests() -> None:
    assert send(FakeContext(), 7, copies=2) == {"sent": 7, "copies": 2}
    assert charge(FakeContext(), UUID(int=7), Decimal(1)) == "0007: 1.00"
    assert archive(FakeContext(), letter="a", bill="b") == 2


def test_its_other_verbs_work() -> None:
    services.archive_anything(1)
    services.archive_anything(0)
    remind.enqueue("Ann")

    assert async_to_sync(services.forget)("Ann") == 1
    drain(raises=True)
    assert Task.objects.succeeded().count() == 2


def test_its_leases_are_held() -> None:
    ledger = Ledger.objects.create()
    Invoice.objects.create(customer="Ann")

    assert services.close(ledger, 5) > 0
    assert services.number(7) == "2026-00007"
    assert services.pay_once(7) == services.pay_once(7) == {"order": 7}
    assert services.claim_some(2) == ["Ann"]
    assert services.work_on(Invoice.objects.get())
    with Lease.objects.hold("desk", holder="ann"):
        assert async_to_sync(services.holder_of)("desk") == "ann"
        with pytest.raises(LeaseHeld):
            Lease.objects.acquire("desk")
    assert async_to_sync(services.holder_of)("desk") is None
