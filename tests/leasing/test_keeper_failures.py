"""The keeper when renewals fail, trust runs out, or notes cannot be written."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import Any

import pytest

from leasing import renewable
from leasing.hold import Hold
from leasing.hold.held_grant import HeldGrant
from leasing.hold.trust import margin
from leasing.keeper import Keeper
from leasing.runtime import notes
from leasing.runtime.breaker import Breaker
from tests.leasing.support import FakeClock, FakeStore, enter, granted
from tests.logs import logged

pytestmark = pytest.mark.usefixtures("without_jitter")

# What fails


def opens_again_at(keeper: Keeper) -> float:
    (breaker,) = keeper._breakers.values()
    return breaker.opens_again_at


def test_a_failed_renewal_extends_nothing_and_is_tried_again_soon(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)
    trusted_until = hold.trusted_until
    store.answer = store.fail

    clock.advance(10)
    manual_keeper.renew_due()

    assert hold.trusted_until == trusted_until
    tried_at = opens_again_at(manual_keeper)
    assert clock.now + 0.1 <= tried_at <= clock.now + 0.2
    assert tried_at <= hold._held.due_at <= tried_at + 0.02 * hold.interval
    assert hold.valid


def test_tries_after_failures_come_ever_later_but_twice_in_an_interval(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)
    store.answer = store.fail
    pauses = []
    for _ in range(10):
        clock.now = hold._held.due_at
        manual_keeper.renew_due()
        pauses.append(opens_again_at(manual_keeper) - clock.now)
        assert clock.now + pauses[-1] <= hold._held.due_at <= clock.now + hold.interval / 2

    assert pauses[0] <= 0.2 < pauses[3] <= 1.6
    assert max(pauses) <= 5


def test_a_store_that_fails_does_not_keep_others_from_being_renewed(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    fine = FakeStore()
    enter(store, manual_keeper, 1)
    (hold,) = enter(fine, manual_keeper, 1, ttl=30)
    store.answer = store.fail

    clock.advance(10)
    manual_keeper.renew_due()

    assert hold.trusted_until == clock.now + 30 - margin(30)


@pytest.mark.parametrize("error", [ValueError("no proof"), SystemExit()], ids=repr)
def test_a_proof_that_raises_ends_its_own_hold_and_no_other(
    error: BaseException,
    store: FakeStore,
    manual_keeper: Keeper,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def prove() -> bool:
        raise error

    grant = granted("doubted", 30, clock.now)
    doubted = HeldGrant(store, grant, proof=prove, keeper=manual_keeper)
    doubted.keep()
    (other,) = enter(store, manual_keeper, 1, ttl=30)

    clock.advance(10)
    manual_keeper.renew_due()

    assert doubted.is_lost
    assert other.trusted_until == clock.now + 30 - margin(30)
    assert manual_keeper.holds == [other._held]
    assert "keeper.proof_failed" in logged(caplog, key="doubted")


def test_a_store_that_cannot_be_opened_counts_as_a_failed_renewal(
    store: FakeStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(clock=clock)
    monkeypatch.setattr(keeper, "start", lambda: None)

    def open_in_vain() -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(store, "open", open_in_vain)
    (hold,) = enter(store, keeper, 1)
    clock.advance(10)
    keeper.renew_due()

    assert keeper.draining
    assert hold.valid


def test_the_keeper_drains_from_the_first_failure_until_a_success(
    store: FakeStore,
    manual_keeper: Keeper,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)
    assert not manual_keeper.draining

    store.answer = store.fail
    clock.advance(10)
    manual_keeper.renew_due()
    assert manual_keeper.draining
    reported = r"Renewal failed; will retry in about 0\.[12] s: the database is away"
    assert re.search(reported, caplog.text)

    store.answer = store.renew_all
    clock.now = hold._held.due_at
    with caplog.at_level(logging.INFO, "leasing.keeper"):
        manual_keeper.renew_due()
    assert not manual_keeper.draining
    assert "keeper.renewals_resumed" in logged(caplog)


def test_the_keeper_ends_draining_when_nothing_is_left_to_renew(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1)
    store.answer = store.fail
    clock.advance(10)
    manual_keeper.renew_due()

    hold._held.abandon()

    assert not manual_keeper.draining


# Trust that runs out


def test_a_hold_is_declared_lost_when_its_trust_has_run_out_and_not_before(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    reported: list[Hold] = []
    (hold,) = enter(store, manual_keeper, 1, ttl=30, on_lost=reported.append)

    clock.now = hold.trusted_until - 0.001
    manual_keeper.declare_lost()
    assert reported == []

    clock.now = hold.trusted_until
    manual_keeper.declare_lost()
    manual_keeper.declare_lost()
    assert reported == [hold]
    assert store.losses == ["it was not renewed in time"]
    assert not manual_keeper._holds


def test_a_loss_is_declared_before_the_database_lets_others_in(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    sent_at = clock.now
    (hold,) = enter(store, manual_keeper, 1, ttl=1)

    assert hold.trusted_until < sent_at + 1
    hold._held.abandon()


def test_a_renewal_after_the_trust_ran_out_comes_too_late(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    """The process was not scheduled: the first step afterwards must not revive the hold."""
    (hold,) = enter(store, manual_keeper, 1, ttl=30)

    clock.advance(60)
    manual_keeper.renew_due()
    assert not hold.valid
    manual_keeper.declare_lost()

    assert hold.lost.is_set()


def test_a_callback_that_adds_and_discards_holds_harms_nobody(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    def start_again(lost: Hold) -> None:
        enter(store, manual_keeper, 3)

    enter(store, manual_keeper, 1, on_lost=start_again)
    (second,) = enter(store, manual_keeper, 2)

    clock.advance(60)
    manual_keeper.declare_lost()

    assert second.lost.is_set()
    assert [hold.key for hold in manual_keeper._holds.values()] == [3]


def test_a_batch_is_never_larger_than_the_limit(
    store: FakeStore,
    manual_keeper: Keeper,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewable, "MAX_RENEWED", 2)
    enter(store, manual_keeper, 1, 2, 1, 3, 2)

    clock.advance(10)
    manual_keeper.renew_due()

    assert all(len(call) <= 2 for call in store.calls)
    assert sum(len(call) for call in store.calls) == 5


# Notes


def test_notes_are_written_in_order(manual_keeper: Keeper) -> None:
    written: list[int] = []
    for number in range(3):
        manual_keeper.soon(partial(written.append, number))

    assert manual_keeper._write_notes()
    assert written == [0, 1, 2]
    assert not manual_keeper._notes


def test_a_note_that_fails_waits_with_all_behind_it_and_is_tried_again(
    manual_keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notes, "close_connections", lambda: None)
    away = [True]
    written: list[str] = []

    def first() -> None:
        if away[0]:
            raise ConnectionError("the database is away")
        written.append("first")

    manual_keeper.soon(first)
    manual_keeper.soon(lambda: written.append("second"))

    assert not manual_keeper._write_notes()
    assert written == []
    assert "keeper.note_waits" in logged(caplog, error="the database is away")

    away[0] = False
    assert manual_keeper._write_notes()
    assert written == ["first", "second"]


def test_of_too_many_notes_the_oldest_give_way(manual_keeper: Keeper) -> None:
    written: list[int] = []
    for number in range(notes.MAX_NOTES + 10):
        manual_keeper.soon(partial(written.append, number))
    manual_keeper._write_notes()

    assert len(written) == notes.MAX_NOTES
    assert written[0] == 10


def test_a_failure_of_what_nobody_holds_any_more_keeps_nobody_from_work(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    store, other = FakeStore(), FakeStore()
    (hold,) = enter(store, manual_keeper, 1)
    enter(other, manual_keeper, 2)
    store.answer = FakeStore.fail
    clock.advance(11)
    manual_keeper.renew_due()
    assert manual_keeper.draining

    hold._held.abandon()

    assert not manual_keeper.draining


def test_a_renewal_that_fails_after_its_hold_was_left_keeps_nobody_from_work(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    store = FakeStore()
    (hold,) = enter(store, manual_keeper, 1)

    def leave_and_fail(grants: Any) -> Any:
        hold._held.abandon()
        return FakeStore.fail(grants)

    store.answer = leave_and_fail
    clock.advance(11)
    manual_keeper.renew_due()

    assert not manual_keeper.draining


def test_a_renewal_that_is_slow_and_whose_hold_was_left_keeps_nobody_from_work(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    """Nobody would renew anything, and so find out that renewals succeed."""
    store = FakeStore()
    (hold,) = enter(store, manual_keeper, 1)

    def leave_and_take_long(grants: Any) -> Any:
        hold._held.abandon()
        clock.advance(hold.interval / 2 + 0.1)
        return store.renew_all(grants)

    store.answer = leave_and_take_long
    clock.advance(11)
    manual_keeper.renew_due()

    assert store.calls and not manual_keeper.draining


def test_nothing_passes_an_open_breaker_until_its_pause_is_over() -> None:
    breaker = Breaker()
    assert breaker.lets_pass(100.0)

    pause = breaker.failed(100.0, longest=5.0)
    assert not breaker.lets_pass(100.0)
    assert not breaker.lets_pass(100.0 + 0.99 * pause)
    assert breaker.lets_pass(100.0 + pause)

    assert breaker.succeeded()
    assert breaker.lets_pass(100.0)
