"""Leases taken inside a transaction, over a connection of their own."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, TestCase

from leasing import leased
from leasing.exceptions import LeaseHeld, LeaseInTransaction, LeaseLost, LeaseTimeout
from leasing.holding.keeper import keeper
from leasing.models import Lease
from leasing.testing import in_memory, manual_keeper
from tests.leasing.support import OtherSession, events, expire, held_names
from tests.logs import logged
from tests.shop.models import Order

pytestmark = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.usefixtures("on_postgresql")


@on_postgresql
def test_it_is_held_until_the_transaction_commits(other_session: OtherSession) -> None:
    with transaction.atomic():
        with Lease.objects.hold("crane:1", separate=True) as hold:
            assert other_session.run(held_names) == ["crane:1"]
            hold.renew()
            assert other_session.run(Lease.objects.get).renewals == 1
            with hold.still_mine():
                Order.objects.create(article="ink")
        assert other_session.run(held_names) == ["crane:1"]
        assert keeper.holds == []

    assert held_names() == []
    assert events("crane:1") == ["acquired", "released"]


@on_postgresql
@pytest.mark.parametrize("inner", [False, True], ids=["all", "what is around it"])
def test_a_rollback_leaves_it_to_its_ttl_and_its_token_spent(inner: bool) -> None:
    with pytest.raises(KeyError), transaction.atomic(), transaction.atomic(savepoint=inner):
        with Lease.objects.hold("crane:1", separate=True) as hold:
            token = hold.fencing_token
        raise KeyError

    assert held_names() == ["crane:1"]
    assert keeper.holds == []
    expire(Lease.objects.get())
    assert Lease.objects.acquire("crane:1").fencing_token > token


@on_postgresql
def test_who_is_refused_can_go_on_with_the_transaction() -> None:
    Lease.objects.acquire("crane:1", holder="ann")

    with transaction.atomic():
        with pytest.raises(LeaseTimeout, match="ann"):
            Lease.objects.hold("crane:1", separate=True, wait=0.1).__enter__()
        Order.objects.create(article="ink")

    assert Order.objects.exists()


@on_postgresql
def test_a_lease_that_ended_before_the_commit_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture, other_session: OtherSession
) -> None:
    with transaction.atomic():
        with Lease.objects.hold("crane:1", separate=True):
            pass
        other_session.run(lambda: expire(Lease.objects.get()))

    assert "lease.outlived" in logged(caplog, levelno=logging.ERROR, resource="crane:1")
    assert "crane:1 was lost: it expired at" in caplog.text


@on_postgresql
def test_a_row_of_ones_own_too() -> None:
    order = Order.objects.create(article="ink")
    with transaction.atomic(), order.hold(separate=True) as hold:
        hold.ensure()

    assert events(f"shop.order:{order.pk}") == ["acquired", "released"]


@on_postgresql
def test_a_view_in_a_transaction() -> None:
    @leased("crane:{pk}", separate=True)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        with pytest.raises(LeaseHeld):
            Lease.objects.hold("crane:1", separate=True).__enter__()
        return HttpResponse()

    with transaction.atomic():
        assert view(RequestFactory().get("/"), 1).status_code == 200
        assert view(RequestFactory().get("/"), 1).status_code == 409  # not committed yet
    assert held_names() == []


def test_on_sqlite_there_is_one_writer_only() -> None:
    from django.db import connection

    if connection.vendor != "sqlite":
        pytest.skip("others have several")
    with (
        transaction.atomic(),
        pytest.raises(LeaseInTransaction, match="SQLite has one writer"),
        Lease.objects.hold("crane:1", separate=True),
    ):
        pytest.fail("the body must not run")


def test_outside_of_transactions_it_is_a_hold_like_others() -> None:
    with Lease.objects.hold("crane:1", separate=True, ttl=30) as hold:
        hold.renew()
        assert held_names() == ["crane:1"]
    assert held_names() == []

    async def story() -> Any:
        async with Lease.objects.hold("crane:2", separate=True) as hold:
            return hold.resource

    assert async_to_sync(story)() == "crane:2"
    assert events("crane:2") == ["acquired", "released"]


def test_leases_in_memory_are_in_no_transaction_either() -> None:
    with in_memory() as memory, transaction.atomic():
        with Lease.objects.hold("crane:1", separate=True) as hold:
            hold.ensure()
        assert [event.kind for event in memory.events] == ["acquired", "released"]


# In a test whose work is rolled back: Django's TestCase, and pytest-django's fixture


class SeparateTest(TestCase):
    """A developer's test of code that takes a lease inside of its transaction."""

    def test_the_code_runs_again_and_again_and_its_lease_is_renewed(self) -> None:
        order = Order.objects.create(article="ink")

        @transaction.atomic
        def book() -> int:
            with order.hold(separate=True), Lease.objects.hold("crane:1", separate=True) as hold:
                hold.renew()
                hold.ensure()
                assert held_names() == ["crane:1"]
            return hold.fencing_token

        first, second = book(), book()

        self.assertLess(first, second)
        self.assertEqual(held_names(), [])
        self.assertEqual(events("crane:1"), ["acquired", "released"] * 2)
        self.assertEqual(events(f"shop.order:{order.pk}"), ["acquired", "released"] * 2)

    def test_whoever_holds_it_is_met_and_asked_to_yield(self) -> None:
        Lease.objects.acquire("crane:1", holder="ann")

        with transaction.atomic():
            with self.assertRaisesMessage(LeaseHeld, "ann"):
                terms: dict[str, Any] = {"priority": 9, "preempt_after": 60, "holder": "bob"}
                Lease.objects.hold("crane:1", separate=True, **terms).__enter__()
            Order.objects.create(article="ink")

        self.assertEqual(Lease.objects.get().yield_to, "bob")
        self.assertTrue(Order.objects.exists())

    def test_a_hold_that_is_not_separate_is_refused_as_ever(self) -> None:
        with (
            transaction.atomic(),
            Lease.objects.hold("crane:1", separate=True),
            self.assertRaises(LeaseInTransaction),
        ):
            Lease.objects.hold("crane:2").__enter__()

    def test_a_loss_is_told(self) -> None:
        with (
            manual_keeper() as keeper,
            self.assertRaises(LeaseLost),
            transaction.atomic(),
            Lease.objects.hold("crane:1", ttl=30, separate=True) as hold,
        ):
            keeper.advance(60)
            assert hold.valid  # it was renewed
            Lease.objects.all().revoke()
            keeper.advance(30)
            assert hold.lost
