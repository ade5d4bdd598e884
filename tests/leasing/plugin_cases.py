"""A user's tests, which ``test_pytest_plugin`` runs under the plugin, in a process of their own."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from leasing.exceptions import LeaseLost
from leasing.models import Lease
from leasing.runtime import clock
from leasing.stores.memory import memory
from leasing.testing import LeasingTestCase, aexpire, assert_held, assert_lost, expire, in_memory
from leasing.testing.keeper import ManualKeeper
from tasks.models import Task
from tasks.sample import SLEEP


def is_by_hand() -> bool:
    """Return True if no thread renews; also checks that none does."""
    with in_memory(), Lease.objects.hold("berth:1"):
        threads = {thread.name for thread in threading.enumerate()}
    by_hand = isinstance(clock.stand_in, ManualKeeper)
    assert by_hand != ("leasing-renewer" in threads)
    return by_hand


def stands_still() -> bool:
    before = clock.clock()
    return clock.clock() == before


def test_the_fixture_db_is_by_hand_and_its_time_goes_on(db: None) -> None:
    assert is_by_hand()
    assert not stands_still()


@pytest.mark.django_db
def test_the_marker_is_by_hand() -> None:
    assert is_by_hand()


def test_the_keepers_fixture_stops_the_time(db: None, lease_keeper: ManualKeeper) -> None:
    assert lease_keeper is clock.stand_in
    assert stands_still()
    with Lease.objects.hold("berth:1", ttl=10) as hold:
        lease_keeper.advance(100)
        assert hold.valid


def test_the_keepers_fixture_works_without_a_database(lease_keeper: ManualKeeper) -> None:
    assert is_by_hand()
    assert stands_still()


@pytest.mark.django_db
def test_a_hold_is_lost_where_the_work_is_rolled_back() -> None:
    reported: list[Any] = []
    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1", on_lost=reported.append) as hold:
        expire(hold)
        assert_lost(hold)
    assert reported == [hold]


@pytest.mark.django_db
def test_tasks_are_ready_when_they_are_enqueued() -> None:
    task = Task.objects.enqueue(SLEEP, {"sleep_duration_seconds": 0})
    assert Task.objects.claim("me") == [task]


@pytest.mark.django_db
@pytest.mark.live_keeper
def test_the_marker_leaves_it_to_the_real_keeper() -> None:
    assert not is_by_hand()


@pytest.mark.django_db(transaction=True)
def test_what_is_committed_is_left_to_the_real_keeper() -> None:
    assert not is_by_hand()


@pytest.mark.django_db(True)
def test_and_when_the_marker_does_not_name_it() -> None:
    assert not is_by_hand()


def test_and_by_the_fixture(transactional_db: None) -> None:
    assert not is_by_hand()


def test_without_a_database_it_is_left_to_the_real_keeper() -> None:
    assert not is_by_hand()


@pytest.mark.parametrize("time", ["first", "second"])
def test_what_is_held_in_memory_is_forgotten_after_each_test(settings: Any, time: str) -> None:
    settings.LEASING = {"ENABLED": False}
    assert not memory.events
    Lease.objects.hold("berth:1").__enter__()


class OfDjango(TestCase):
    lease: ClassVar[Lease]

    @classmethod
    def setUpTestData(cls) -> None:
        cls.lease = Lease.objects.acquire("berth:1", holder="me")

    def test_its_cases_are_by_hand(self) -> None:
        assert is_by_hand()
        assert_held("berth:1", by="me")

    async def test_its_coroutines_are_on_the_thread_of_the_test(self) -> None:
        lease = await Lease.objects.aget()
        assert lease.holder == "me"
        with self.assertRaises(LeaseLost):
            async with Lease.objects.hold("berth:2") as hold:
                await aexpire(hold)
        assert await Lease.objects.acount() == 2


class OfTransactions(TransactionTestCase):
    def test_its_cases_are_left_to_the_real_keeper(self) -> None:
        assert not is_by_hand()


class OfNothing(SimpleTestCase):
    def test_its_cases_are_left_to_the_real_keeper(self) -> None:
        assert not is_by_hand()


class OfLeases(LeasingTestCase):
    def test_its_time_stands_still(self) -> None:
        assert self.lease_keeper is clock.stand_in
        assert stands_still()
