"""The statements of a claim: no more for rows that are narrowed, hidden or joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from tests.keys import models
from tests.pages import queries

# Django's plugin of mypy does not know models that are not installed.
Customer: Any = models.Customer
Letter: Any = models.Letter
Shipment: Any = models.Shipment

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def _tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), models.tables(made=[*models.JOINED, models.Letter]):
        yield


@pytest.fixture(autouse=True)
def _of_ann() -> Iterator[None]:
    token = models.tenant.set("ann")
    yield
    models.tenant.reset(token)


def shipments(count: int) -> None:
    for n in range(count):
        Shipment.objects.create(customer=Customer.objects.create(name=f"c{n}", is_vip=True))


def letters(count: int) -> None:
    for _ in range(count):
        Letter.objects.create(owner="ann")
    models.tenant.set("bob")
    Letter.objects.create(owner="bob")
    models.tenant.set("ann")


#: What makes so many rows, and the rows that are claimed of them.
ROWS: dict[str, tuple[Callable[[int], None], Callable[[], Any]]] = {
    "all": (shipments, lambda: Shipment.objects.all()),
    "a filter": (shipments, lambda: Shipment.objects.filter(pk__gt=0)),
    "a filter of another table": (
        shipments,
        lambda: Shipment.objects.filter(customer__is_vip=True),
    ),
    "related rows": (shipments, lambda: Shipment.objects.select_related("customer")),
    "a manager that hides rows": (letters, lambda: Letter.objects.all()),
}


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("rows", ROWS)
def test_a_claim_sends_no_statement_a_row_but_for_its_event(rows: str, limit: int) -> None:
    make, narrowed = ROWS[rows]
    make(11)
    with queries() as sent:
        assert len(narrowed().claim(holder="ann", limit=limit)) == limit

    events = [sql for sql in sent() if sql.startswith('INSERT INTO "leasing_leaseevent"')]
    if connection.vendor == "postgresql":  # which writes the events in the same statement
        assert (len(sent()), events) == (1, []), sent()
    else:
        assert (len(sent()) - len(events), len(events)) == (3, limit), sent()


def test_a_claim_by_a_manager_that_hides_rows_leaves_those_of_others() -> None:
    letters(2)
    assert {each.owner for each in Letter.objects.claim(holder="ann", limit=10)} == {"ann"}

    models.tenant.set("bob")
    assert [each.owner for each in Letter.objects.claim(holder="bob", limit=10)] == ["bob"]
