"""Claims of rows that are chosen, or put in order, by what other tables say of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from leasing.exceptions import LeaseHeld
from leasing.models import LeaseEvent
from tests.keys import models
from tests.leasing.support import OtherSession, just_after_the_lock, usurp

# Django's plugin of mypy does not know models that are not installed.
Customer: Any = models.Customer
Item: Any = models.Item
Shipment: Any = models.Shipment

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("joined", "form")]


@pytest.fixture(scope="module")
def joined(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), models.tables(made=models.JOINED):
        yield


def shipment(name: str, *weights: int, payer: str = "", **fields: Any) -> Any:
    made = Shipment.objects.create(customer=customer(name), payer=payer and customer(payer) or None)
    for weight in weights:
        made.items.add(Item.objects.create(weight=weight))
    return made


def customer(name: str) -> Any:
    return Customer.objects.create(name=name, is_vip=name.isupper())


def test_rows_are_claimed_by_what_a_row_says_that_they_refer_to() -> None:
    ann, _, cid = shipment("ANN"), shipment("bob"), shipment("CID")

    assert list(Shipment.objects.filter(customer__is_vip=True).claim(9)) == [ann, cid]


def test_rows_are_claimed_by_what_they_need_not_refer_to() -> None:
    paid, own = shipment("ann", payer="bob"), shipment("cid")
    unpaid = Shipment.objects.exclude(payer__name="bob")

    assert list(unpaid.claim(9)) == [own]
    assert list(Shipment.objects.order_by("payer__name", "pk").claim(9)) == [paid]


def test_rows_are_claimed_in_the_order_of_what_they_refer_to() -> None:
    second, first = shipment("bob"), shipment("ann")

    assert list(Shipment.objects.order_by("customer__name").claim(9)) == [first, second]


def test_rows_are_claimed_from_a_queryset_that_reads_related_ones_too() -> None:
    ann = shipment("ann", 1)
    rows = Shipment.objects.select_related("customer", "payer").prefetch_related("items")

    (claimed,) = rows.claim()
    assert (claimed, claimed.customer.name) == (ann, "ann")


def test_rows_that_a_join_may_bring_several_times_are_not_acquired_but_by_a_subquery() -> None:
    heavy, _, other = shipment("ann", 7, 8, 9), shipment("bob", 1, 2), shipment("cid", 7, 7)
    rows = Shipment.objects.filter(items__weight__gt=6)

    for several in (rows, rows.distinct(), Shipment.objects.order_by("items__weight")):
        with pytest.raises(ValueError, match="choose them by a subquery"):
            several.claim()
        with pytest.raises(ValueError, match="choose them by a subquery"):
            several.acquire(heavy)
    assert not LeaseEvent.objects.exists()
    assert list(Shipment.objects.filter(pk__in=rows.values("pk")).claim(2)) == [heavy, other]
    assert LeaseEvent.objects.filter(kind="acquired").count() == 2


def test_a_row_is_acquired_if_other_tables_say_so() -> None:
    ann, bob = shipment("ANN"), shipment("bob")
    rows = Shipment.objects.filter(customer__is_vip=True)

    assert rows.acquire(ann) == ann
    with pytest.raises(LeaseHeld):
        rows.acquire(bob)


def test_rows_are_revoked_by_what_other_tables_say_of_them() -> None:
    for name in ("ANN", "bob", "CID"):
        Shipment.objects.acquire(shipment(name, 1, 2, payer="eve"))
    rows = Shipment.objects.filter(payer__name="eve", customer__is_vip=True)

    assert rows.filter(items__weight__gt=0).distinct().revoke() == 2
    assert Shipment.objects.active().get().customer.name == "bob"
    assert Shipment.objects.exclude(payer__name="fay").raise_tokens() == 3


def test_a_row_that_changed_while_it_was_waited_for_is_not_revoked() -> None:
    mine = Shipment.objects.acquire(shipment("ann"), holder="bob")
    rows = Shipment.objects.filter(customer__name="ann", holder="bob")

    with just_after_the_lock(lambda: usurp(mine, "eve")):
        assert rows.revoke() == 0
    assert Shipment.objects.active().get().holder == "eve"


# What others have locked


@pytest.fixture
def committed(transactional_db: None, on_postgresql: None) -> Iterator[None]:
    yield
    for model in (Shipment.items.through, Shipment, Item, Customer):
        model.objects.all().delete()


@pytest.fixture
def other(committed: None) -> Iterator[OtherSession]:
    session = OtherSession()
    yield session
    session.close()


def test_nobody_who_has_locked_what_a_row_refers_to_keeps_it_from_being_claimed(
    other: OtherSession,
) -> None:
    ann, bob = shipment("ann", 1), shipment("bob", 2)
    other.begin()
    other.run(lambda: Customer.objects.filter(name="ann").update(is_vip=True))

    assert list(
        Shipment.objects.select_related("customer").order_by("customer__name").claim(9)
    ) == [
        ann,
        bob,
    ]


def test_a_claim_locks_nothing_but_its_own_rows(other: OtherSession) -> None:
    ann = shipment("ann")
    Shipment.objects.acquire(ann)
    rows = Shipment.objects.filter(customer__name="ann")

    def others() -> int:
        with transaction.atomic():
            locked = Customer.objects.select_for_update(nowait=True)
            return len(locked)

    with transaction.atomic():
        assert rows.revoke() == 1
        assert other.run(others) == 1
