"""Helpers for users' tests: ``leasing.testing``."""

from __future__ import annotations

import threading
import unittest
import uuid
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings

from leasing import testing
from leasing.conf import leasing_settings
from leasing.exceptions import LeaseHeld, LeaseInTransaction, LeaseLost
from leasing.functions import database_now
from leasing.holding.keeper import keeper as process_keeper
from leasing.holding.term import Term, margin
from leasing.models import Lease, LeaseEvent
from leasing.runtime import aio, clock
from leasing.stores.rows import RowStore
from leasing.testing import (
    assert_free,
    assert_held,
    assert_lost,
    events_of,
    expire,
    hold_elsewhere,
    in_memory,
    revoke,
)
from leasing.testing.keeper import ManualKeeper, manual_keeper
from tasks.models import Task
from tests.factories import make_lease, make_task
from tests.leasing.support import FakeStore, granted
from tests.plugin import ROOT
from tests.processes import wait_for
from tests.shop.models import Order

pytestmark = pytest.mark.django_db

PATIENCE = 20.0


@pytest.fixture
def order() -> Order:
    return Order.objects.create(article="anchor")


def kinds(resource: str) -> list[str]:
    return [event.kind for event in events_of(resource)]


# expire


def test_a_lease_expires_by_its_name_by_its_row_and_by_its_hold(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("berth:1")
    expire("berth:1")
    assert_free("berth:1")

    lease = Lease.objects.acquire("berth:1")
    expire(lease)
    assert_free(lease)

    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1") as hold:
        expire(hold)
        assert_free(hold)


def test_a_row_of_any_model_expires(clocks: ManualKeeper, order: Order) -> None:
    for row in (order, make_task(state="running")):
        if isinstance(row, Order):
            Order.objects.acquire(row)
        expire(row)
        assert_free(row)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("renewals", [0, 2])
@pytest.mark.parametrize("ago", [0, 10])
def test_the_times_of_what_expired_are_those_of_a_life(
    clocks: ManualKeeper, before: int, renewals: int, ago: float
) -> None:
    """The constraints of the database hold, and the order of its times, whatever the row was."""
    lease = make_lease(renewals=renewals, ttl=30)
    assert lease.acquired_at
    lasted = lease.expires_at - lease.acquired_at
    for _ in range(before):
        expire(lease)
    expire(lease, ago=ago)

    row = Lease.objects.with_state().get(pk=lease.pk)
    assert row.state == "expired"
    assert row.expires_at <= row.now - timedelta(seconds=ago)
    assert row.acquired_at
    assert row.acquired_at <= (row.renewed_at or row.acquired_at) <= row.expires_at
    assert row.expires_at - row.acquired_at == lasted
    assert row.fencing_token == lease.fencing_token
    connection.check_constraints()


def test_a_maximum_moves_along(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("berth:1", ttl=10, max_hold=60)
    expire(lease)

    row = Lease.objects.get(pk=lease.pk)
    assert row.ends_at is not None
    assert row.ends_at - row.expires_at == timedelta(seconds=50)


@pytest.mark.parametrize("state", ["free", "released", "revoked"])
def test_what_nobody_has_cannot_expire(state: str) -> None:
    lease = make_lease(state=state)
    with pytest.raises(AssertionError, match="cannot expire"):
        expire(lease)


def test_what_is_not_there_cannot_expire() -> None:
    with pytest.raises(AssertionError, match="nowhere cannot expire: it was never held"):
        expire("nowhere")


def test_what_cannot_be_leased_is_refused() -> None:
    with pytest.raises(TypeError):
        expire(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="FakeStore"):
        expire(granted(store=FakeStore()))


def test_the_holder_of_a_hold_that_expires_hears_of_it_at_once(clocks: ManualKeeper) -> None:
    reported: list[Term] = []
    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1", on_lost=reported.append) as hold:
        expire(hold)
        assert reported == [hold]
        assert hold.lost.is_set()
    assert kinds("berth:1") == ["acquired", "lost"]


def test_the_holder_does_not_know_of_what_expires_by_its_name(clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost, match="expired"), Lease.objects.hold("berth:1") as hold:
        expire("berth:1")
        assert hold.valid
        clocks.renew()
        assert_lost(hold, "expired")


def test_a_grace_counts_from_the_new_end(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("berth:1", grace=20)
    expire("berth:1")
    with pytest.raises(AssertionError):
        assert_free("berth:1")

    expire("berth:1", ago=20)
    assert_free("berth:1")


# revoke, rivals


def test_a_revocation_says_why_and_by_whom() -> None:
    lease = Lease.objects.acquire("berth:1")
    revoke("berth:1")

    event = events_of("berth:1")[-1]
    assert (event.kind, event.reason, event.actor) == ("revoked", "revoked by a test", "a test")
    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)


@pytest.mark.parametrize("state", ["free", "released", "revoked"])
def test_what_nobody_has_cannot_be_revoked(state: str) -> None:
    lease = make_lease(state=state)
    with pytest.raises(AssertionError, match="cannot be revoked"):
        revoke(lease)


def test_a_rival_holds_while_the_block_runs(order: Order) -> None:
    for what in ("berth:1", order):
        with hold_elsewhere(what, "web-2") as row:
            assert row.holder == "web-2"
            assert_held(what, by="web-2")
            with pytest.raises(LeaseHeld), hold_elsewhere(what):
                pytest.fail("two hold it")
        assert_free(what)


def test_a_rival_lasts_as_long_as_it_is_told_to(clocks: ManualKeeper) -> None:
    with hold_elsewhere("berth:1", ttl=5):
        clocks.advance(5)
        assert_free("berth:1")
    with hold_elsewhere("berth:2"):
        clocks.advance(3600)
        assert_held("berth:2")


def test_a_rival_may_be_ousted(clocks: ManualKeeper) -> None:
    with hold_elsewhere("berth:1"):
        revoke("berth:1")
    with hold_elsewhere("berth:2"):
        expire("berth:2")
        Lease.objects.acquire("berth:2", holder="next")
    assert_held("berth:2", by="next")


# Assertions


def test_what_is_held_is_said_to_be(clocks: ManualKeeper) -> None:
    with Lease.objects.hold("berth:1", holder="me") as hold:
        for what in ("berth:1", hold, Lease.objects.get()):
            assert_held(what)
            assert_held(what, by="me")
            assert_held(what, by=hold)


def test_what_is_not_held_is_said_to_be_free_and_why() -> None:
    def said(state: str) -> str:
        lease = make_lease(state=state, holder="me")
        assert_free(lease)
        with pytest.raises(AssertionError) as error:
            assert_held(lease)
        return str(error.value)

    assert "is not held: it was never held." in said("free")
    assert "is not held: me released it or was revoked at " in said("released")
    assert "is not held: the lease of me expired at " in said("expired")


def test_who_holds_it_instead_is_named(clocks: ManualKeeper) -> None:
    with Lease.objects.hold("berth:1", holder="me") as hold:
        with pytest.raises(AssertionError, match="held by 'me', not by 'you'"):
            assert_held("berth:1", by="you")
        with pytest.raises(AssertionError, match="berth:1 is not free: me holds it until"):
            assert_free("berth:1")
        hold.release()
        Lease.objects.acquire("berth:1", holder="me")
        with pytest.raises(AssertionError, match="not held under that grant"):
            assert_held("berth:1", by=hold)


def test_a_hold_that_is_not_lost_is_said_to_be_held_or_not(clocks: ManualKeeper) -> None:
    hold = Lease.objects.hold("berth:1")
    with hold, pytest.raises(AssertionError, match="berth:1 is still held"):
        assert_lost(hold.term)
    with pytest.raises(AssertionError, match="not held, and was not lost"):
        assert_lost(hold.term)


def test_a_loss_for_another_reason_is_named(clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1") as hold:
        expire(hold)
        assert_lost(hold)
        with pytest.raises(AssertionError, match="not renewed in time.*not contain 'revoked'"):
            assert_lost(hold, "revoked")


def test_the_events_are_those_of_one_thing_oldest_first(order: Order) -> None:
    with hold_elsewhere("berth:1"), hold_elsewhere(order), hold_elsewhere("berth:2"):
        pass
    assert kinds("berth:1") == ["acquired", "released"]
    assert [event.kind for event in events_of(order)] == ["acquired", "released"]


# Time by hand


def test_time_stands_still_for_holders_and_database(clocks: ManualKeeper) -> None:
    seconds, now = clock.clock(), database_now("default")
    assert (clock.clock(), database_now("default")) == (seconds, now)

    clocks.advance(12.5)
    assert clock.clock() == pytest.approx(seconds + 12.5)
    assert database_now("default") == now + timedelta(seconds=12.5)
    assert clocks.passed == 12.5


def test_every_statement_goes_by_the_time_that_stands_still(clocks: ManualKeeper) -> None:
    begin = clocks.now
    lease = Lease.objects.acquire("berth:1", ttl=30)
    clocks.advance(7)
    Lease.objects.renew(lease)
    clocks.advance(7)
    Lease.objects.release(lease)

    def after(seconds: float) -> Any:
        return begin + timedelta(seconds=seconds)

    assert (lease.acquired_at, lease.renewed_at) == (begin, after(7))
    assert (lease.released_at, lease.expires_at) == (after(14), after(14))
    assert [event.at for event in events_of("berth:1")] == [begin, after(14)]


def test_time_that_goes_on_can_be_put_ahead_and_stopped() -> None:
    real = database_now("default")
    with manual_keeper(stopped=False) as keeper:
        keeper.advance(3600)
        with Lease.objects.hold("berth:1", ttl=30) as hold:
            wait_for(lambda: database_now("default") > hold.expires_at - timedelta(seconds=30))
            wait_for(lambda: clock.clock() > hold.trusted_until - 30 + margin(30))
            keeper.advance(60)
            assert hold.valid
            keeper.stop()
            assert database_now("default") == database_now("default") == keeper.now
            keeper.stop()
            keeper.advance(60)
            assert hold.valid
        assert database_now("default") - real > timedelta(seconds=3720)


@pytest.mark.parametrize("stopped", [True, False])
def test_tasks_are_ready_when_they_are_enqueued_and_later_ones_later(stopped: bool) -> None:
    with manual_keeper(stopped=stopped) as keeper:
        now = make_task()
        later = make_task(scheduled_at=keeper.now + timedelta(seconds=60))
        assert set(Task.objects.ready()) == {now}

        keeper.advance(61)
        assert set(Task.objects.ready()) == {now, later}


def test_a_process_that_was_suspended_finds_its_loss_when_it_goes_on(
    clocks: ManualKeeper,
) -> None:
    reported: list[float] = []

    def on_lost(hold: Term) -> None:
        reported.append(clocks.passed)

    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1", ttl=5, on_lost=on_lost) as hold:
        clocks.suspend(60)
        assert reported == []
        assert not hold.valid
        clocks.step()
    assert reported == [60]


def test_afterwards_time_goes_on_as_before() -> None:
    before = database_now("default")
    with manual_keeper() as keeper:
        keeper.advance(3600)
    assert before <= database_now("default") < before + timedelta(seconds=600)
    assert clock.stand_in is None
    assert not aio.on_callers_thread


def test_an_error_gives_the_time_back_too() -> None:
    with pytest.raises(ZeroDivisionError), manual_keeper():
        raise ZeroDivisionError
    assert clock.stand_in is None


def test_by_hand_within_by_hand_is_the_same_hand(clocks: ManualKeeper) -> None:
    with manual_keeper() as inner:
        assert inner is clocks
    assert clock.stand_in is clocks


def test_by_hand_no_thread_is_started(clocks: ManualKeeper) -> None:
    before = set(threading.enumerate())
    with Lease.objects.hold("berth:1"), hold_elsewhere("berth:2"):
        assert set(threading.enumerate()) <= before  # those of other tests may end meanwhile


def test_a_frozen_keeper_renews_nothing_until_it_is_thawed(clocks: ManualKeeper) -> None:
    with Lease.objects.hold("berth:1", ttl=30) as hold:
        clocks.frozen = True
        clocks.advance(20)
        clocks.step()
        assert Lease.objects.get().renewals == 0

        clocks.frozen = False
        clocks.step()
        assert Lease.objects.get().renewals == 1
        assert hold.valid


def test_each_hold_is_told_at_its_own_moment(clocks: ManualKeeper) -> None:
    reported: dict[str, float] = {}

    def on_lost(hold: Term) -> None:
        reported[hold.resource] = clocks.passed

    with (
        pytest.raises(LeaseLost),
        Lease.objects.hold("berth:1", ttl=10, on_lost=on_lost),
        Lease.objects.hold("berth:2", ttl=40, on_lost=on_lost),
    ):
        clocks.frozen = True
        clocks.advance(100)
    assert reported == pytest.approx({"berth:1": 9.8, "berth:2": 39.2}, abs=0.02)


def test_a_renewal_that_fails_is_tried_again_as_time_passes(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def fail(*args: Any) -> Any:
        tries.append(clocks.passed)
        raise ConnectionError("the network is cut")

    with pytest.raises(LeaseLost), Lease.objects.hold("berth:1", ttl=30) as hold:
        with monkeypatch.context() as patch:
            patch.setattr(RowStore, "renew", fail)
            clocks.advance(20)
            assert process_keeper.draining
            assert hold.valid
            clocks.advance(20)
        assert_lost(hold, "not renewed in time")
    assert 3 < len(tries) < 100
    assert max(tries) < 30


def test_what_was_held_before_is_renewed_again_afterwards() -> None:
    with in_memory():
        hold = Lease.objects.hold("berth:1").__enter__()
        try:
            with manual_keeper():
                assert process_keeper.holds == [hold]
            assert process_keeper.holds == [hold]
            names = {thread.name for thread in threading.enumerate()}
            assert "leasing-renewer" in names
        finally:
            hold.detach()
            process_keeper.stop()


def test_what_is_left_held_is_forgotten() -> None:
    with manual_keeper():
        Lease.objects.hold("berth:1").__enter__()
        assert len(process_keeper.holds) == 1
    assert process_keeper.holds == []


def test_what_a_rollback_must_not_erase_is_noted_after_it(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("berth:1")
    expire("berth:1")
    with pytest.raises(LeaseLost), transaction.atomic():
        Lease.objects.release(lease)
    assert kinds("berth:1") == ["acquired", "refused"]


def test_inside_a_transaction_of_the_test_a_lease_is_still_refused(clocks: ManualKeeper) -> None:
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Lease.objects.hold("berth:1").__enter__()


def test_coroutines_see_the_rows_of_the_test(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("berth:1", holder="dead", ttl=20)

    async def body() -> None:
        with pytest.raises(LeaseHeld):
            await Lease.objects.aacquire("berth:1")
        await clocks.aadvance(20)
        async with Lease.objects.hold("berth:1") as hold:
            await testing.aassert_held("berth:1", by=hold)
            await testing.arevoke("berth:1")
            await clocks.astep()
            assert hold.valid
            await clocks.arenew()
            assert_lost(hold, "revoked")

    with pytest.raises(LeaseLost):
        async_to_sync(body)()
    assert kinds("berth:1") == ["acquired", "taken_over", "revoked", "lost"]


def test_waiting_for_what_this_process_holds_is_in_earnest(clocks: ManualKeeper) -> None:
    with in_memory(), Lease.objects.hold("berth:1") as hold:
        releaser = threading.Timer(0.05, hold.release)
        releaser.start()
        with Lease.objects.hold("berth:1", wait=PATIENCE):
            assert not hold.valid
        releaser.join()
    assert clocks.passed < PATIENCE


# Unittest


class Case(testing.LeasingTestCase):
    """Run by the tests below, and by pytest itself."""

    def setUp(self) -> None:
        self.began = self.lease_keeper.passed

    def test_time_stands_still_in_a_test_case(self) -> None:
        lease = Lease.objects.acquire(f"berth:{uuid.uuid4()}", ttl=20)
        self.lease_keeper.advance(19)
        assert_held(lease)
        self.lease_keeper.advance(1)
        assert_free(lease)
        self.assertEqual(self.began, 0)

    async def test_coroutines_of_a_test_case_lose_their_holds(self) -> None:
        with self.assertRaises(LeaseLost):
            async with Lease.objects.hold("berth:1") as hold:
                await testing.aexpire(hold)
                raise AssertionError("it was not cancelled")

    def test_its_work_is_rolled_back(self) -> None:
        self.assertEqual(LeaseEvent.objects.count(), 0)


def test_the_mixin_gives_time_back_whatever_the_case_does() -> None:
    class Rude(testing.LeasingTestMixin, unittest.TestCase):
        def setUp(self) -> None:
            assert clock.stand_in is self.lease_keeper

        def tearDown(self) -> None:
            assert clock.stand_in is self.lease_keeper

        def runTest(self) -> None:
            raise ZeroDivisionError

    result = Rude("runTest").run()
    assert result is not None
    assert len(result.errors) == 1
    assert clock.stand_in is None


# Public names


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert [name for name in testing.__all__ if name not in page and name != "ManualKeeper"] == []


def test_settings_of_the_test_are_kept_in_memory() -> None:
    with override_settings(LEASING={"TTL": 7}), in_memory():
        assert leasing_settings.TTL == 7
        assert not leasing_settings.ENABLED
    assert leasing_settings.ENABLED
