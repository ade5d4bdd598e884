"""Leases in memory, beyond the contract: what they touch, and what honours ENABLED."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

from leasing import Leader, leased
from leasing.checks.deploy import check_enabled
from leasing.checks.settings import check_settings
from leasing.exceptions import LeaseHeld, LeaseInTransaction, LeaseLost
from leasing.functions import EPOCH
from leasing.models import Lease, LeaseEvent
from leasing.stores import memory
from leasing.stores.memory import MemoryStore
from leasing.testing import assert_free, assert_held, events_of, expire, in_memory
from leasing.testing.keeper import ManualKeeper
from leasing.validation.terms import Terms
from tests.leasing.conftest import Sent
from tests.leasing.support import PATIENCE, FakeClock
from tests.shop.models import Order

# No test here is marked django_db but those that say so: a query would fail it.


@pytest.fixture(autouse=True)
def kept_in_memory() -> Iterator[None]:
    with in_memory():
        yield


# What honours the setting


def test_holds_of_names_and_of_rows_are_kept_apart(clocks: ManualKeeper) -> None:
    order = Order(pk=1)
    with Lease.objects.hold("shop.order:1") as named, order.hold() as of_row:
        assert named.resource == of_row.resource == "shop.order:1"
        assert_held("shop.order:1", by=named)
        assert_held(order, by=of_row)
        with pytest.raises(LeaseHeld), Order(pk=1).hold():
            pytest.fail("two hold it")
        with Order(pk=2).hold():
            pass


def test_a_lease_that_is_a_row_is_held_under_its_name(clocks: ManualKeeper) -> None:
    with Lease(resource="berth:1").hold() as hold, pytest.raises(LeaseHeld):
        assert hold.resource == "berth:1"
        Lease.objects.hold("berth:1").__enter__()


def test_a_decorated_view_runs_under_it_and_answers_409(clocks: ManualKeeper) -> None:
    @leased("berth:{pk}")
    def view(request: HttpRequest, pk: int, hold: Any = None) -> HttpResponse:
        assert_held("berth:1", by=hold)
        return HttpResponse()

    request = RequestFactory().get("/")
    assert view(request, 1).status_code == 200
    with Lease.objects.hold("berth:1"):
        assert view(request, 1).status_code == 409


@pytest.mark.django_db
def test_a_leader_leads_under_it_without_one_query(
    clocks: ManualKeeper, django_assert_num_queries: Any
) -> None:
    leader = Leader("scheduler", holder="me")
    with django_assert_num_queries(0):
        assert leader.current() is None
        with leader as term:
            assert_held("scheduler", by=term)
            incumbent = leader.current()
            assert incumbent is not None
            assert (incumbent.holder, incumbent.fencing_token) == ("me", term.fencing_token)
        assert leader.current() is None


@pytest.mark.django_db
def test_what_gives_rows_stays_with_the_database() -> None:
    with Lease.objects.hold("berth:1"):
        lease = Lease.objects.acquire("berth:1")
        assert lease.pk is not None
        assert Lease.objects.active().count() == 1


def test_the_setting_is_read_when_the_hold_is_made(clocks: ManualKeeper) -> None:
    hold = Lease.objects.hold("berth:1")
    with override_settings(LEASING={"ENABLED": True}), hold:
        assert hold.term.valid


@pytest.mark.django_db
def test_it_is_refused_in_a_transaction_as_it_would_be_in_the_database() -> None:
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Lease.objects.hold("berth:1").__enter__()
    with Lease.objects.hold("berth:1"):
        pass


def findings(**given: Any) -> list[CheckMessage]:
    with override_settings(LEASING=given):
        return [*check_settings(), *check_enabled()]


def test_a_site_that_runs_without_a_database_is_warned() -> None:
    assert [message.id for message in findings(ENABLED=False)] == ["leasing.W007"]
    assert findings(ENABLED=True) == findings() == []


# What it tells


def test_the_signals_are_those_of_the_database(sent: Sent, clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1", holder="me"):
        expire("berth:1")
        with Lease.objects.hold("berth:1", holder="next"):
            clocks.renew()

    assert [(name, lease.holder) for name, lease, _ in sent] == [
        ("acquired", "me"),
        ("taken_over", "next"),
        ("lost", "me"),
        ("released", "next"),
    ]
    assert {type(lease) for _, lease, _ in sent} == {Lease}
    assert sent[2][2]["reason"].startswith("next has held it since")


@pytest.mark.django_db
def test_a_late_release_is_refused_and_told(sent: Sent) -> None:
    grant = memory.memory.acquire_row(Lease(resource="berth:1"), Terms.check(holder="me"))
    expire("berth:1")
    with pytest.raises(LeaseLost, match="expired"):
        memory.memory.release(grant)

    assert sent[-1][0] == "refused"
    assert sent[-1][2]["verb"] == "release"
    assert events_of("berth:1")[-1].reason.startswith("release: it expired")
    assert not LeaseEvent.objects.exists(), "the database has none of it"


def test_the_ledger_forgets_the_oldest_events() -> None:
    store = MemoryStore()
    for n in range(memory.MAX_EVENTS // 2 + 1):
        take(store, f"berth:{n}", release=True)
    assert len(store.events) == memory.MAX_EVENTS
    assert [event.resource for event in [*store.events][:3]] == ["berth:1", "berth:1", "berth:2"]


# The store itself


def take(store: MemoryStore, resource: str, ttl: float = 30, release: bool = False) -> int:
    grant = store.acquire_row(Lease(resource=resource), Terms.check(ttl=ttl))
    if release:
        store.release(grant)
    return grant.fencing_token


def test_its_clock_can_be_injected(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    take(store, "berth:1", ttl=5)
    clock.advance(4.9)
    with pytest.raises(LeaseHeld):
        take(store, "berth:1")
    clock.advance(0.1)
    take(store, "berth:1")


def test_tokens_rise_although_everything_was_forgotten(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    first = take(store, "berth:1")
    store.clear()
    assert take(store, "berth:1") > first


def test_tokens_are_no_smaller_than_those_of_the_database(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    take(store, "berth:1")
    micros = (store.now() - EPOCH) // timedelta(microseconds=1)
    assert abs(take(store, "berth:2") - micros) < 1_000_000


def test_what_is_over_makes_room(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    for n in range(memory.ROOM):
        take(store, f"released:{n}", release=True)
        take(store, f"expired:{n}", ttl=1)
        clock.advance(1)
    take(store, "berth:1")

    assert len(store._rows) <= memory.ROOM + 1
    with pytest.raises(LeaseHeld):
        take(store, "berth:1")


def test_what_is_held_or_graced_is_kept_although_there_is_no_room(
    clock: FakeClock,
) -> None:
    store = MemoryStore(clock)
    for n in range(10):
        take(store, f"held:{n}", ttl=60)
    store.acquire_row(Lease(resource="graced"), Terms.check(ttl=1, grace=60))
    clock.advance(2)
    for n in range(memory.ROOM + 30):
        take(store, f"other:{n}", release=True)

    for resource in ("graced", *(f"held:{n}" for n in range(10))):
        with pytest.raises(LeaseHeld):
            take(store, resource)


def test_a_forgotten_grant_is_lost(clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost, match="its row is gone"), Lease.objects.hold("berth:1"):
        memory.memory.clear()
        clocks.renew()


def test_of_many_threads_one_gets_it() -> None:
    store = MemoryStore()
    ready = threading.Barrier(8)

    def ask(n: int) -> bool:
        ready.wait(PATIENCE)
        try:
            take(store, "berth:1")
        except LeaseHeld:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))).count(True) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_begins_with_nothing_and_its_parent_keeps_all(clocks: ManualKeeper) -> None:
    with Lease.objects.hold("berth:1"):
        child = os.fork()
        if not child:
            os._exit(0 if memory.memory.look(("leasing.Lease", "berth:1")) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_held("berth:1")
    assert_free("berth:1")


def test_trust_counts_from_before_the_lease_was_granted() -> None:
    readings = itertools.count(1.0)
    store = MemoryStore(lambda: next(readings))

    grant = store.acquire_row(Lease(resource="crane:1"), Terms.check(ttl=30))

    assert grant.sent_at == 1.0
