"""A hold: taking, believing, giving back. Clock and store are moved by hand."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from django.test import override_settings

from leasing.exceptions import LeaseError, LeaseHeld, LeaseLost
from leasing.hold import Hold, margin
from leasing.keeper import Keeper
from tests.leasing.support import FakeClock, FakeStore, far_away, granted, hold_of


@pytest.fixture
def hold(store: FakeStore, manual_keeper: Keeper) -> Hold:
    return hold_of(store, manual_keeper, ttl=30)


# Entering


def test_inside_the_block_the_hold_is_valid_and_shows_its_grant(hold: Hold) -> None:
    with hold as entered:
        assert entered is hold
        assert hold.valid
        hold.ensure()
        assert (hold.holder, hold.resource, hold.fencing_token) == ("me", "crane:1", 7)
        assert hold.expires_at == far_away()
        assert not hold.lost.is_set()


def test_what_was_never_entered_shows_nothing(hold: Hold) -> None:
    assert not hold.valid
    with pytest.raises(RuntimeError, match="enter the hold first"):
        _ = hold.fencing_token


def test_a_hold_in_use_cannot_be_entered_again(hold: Hold) -> None:
    with hold, pytest.raises(RuntimeError, match="in use already"):
        hold.__enter__()


def test_a_hold_that_was_adopted_cannot_be_entered(store: FakeStore, manual_keeper: Keeper) -> None:
    adopted = Hold(store, keeper=manual_keeper)
    adopted.adopt(granted(), manual_keeper.clock())

    assert adopted.valid
    with pytest.raises(RuntimeError):
        adopted.__enter__()


def test_a_hold_can_be_entered_again_after_it_was_left(hold: Hold, store: FakeStore) -> None:
    with hold:
        first = hold.grant_id
    with hold:
        assert hold.valid
        assert hold.grant_id != first

    assert len(store.released) == 2


def test_a_refused_acquisition_is_raised_and_nothing_is_held(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    def acquire() -> Any:
        raise LeaseHeld("crane:1", "bob", far_away())

    refused = Hold(store, acquire, keeper=manual_keeper)
    with pytest.raises(LeaseHeld), refused:
        pytest.fail("the body must not run")

    assert not manual_keeper._holds
    assert not refused.valid


# Believing (C1)


def test_a_hold_is_trusted_until_the_ttl_after_the_request_less_the_margin(
    hold: Hold, clock: FakeClock
) -> None:
    sent_at = clock.now
    with hold:
        assert hold.trusted_until == sent_at + 30 - 0.6
        clock.now = hold.trusted_until - 0.001
        assert hold.valid
        clock.now = hold.trusted_until
        assert not hold.valid
        hold.leave()


def test_the_time_that_the_answer_took_is_not_trusted(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    def acquire_slowly() -> Any:
        clock.advance(4)
        return granted(ttl=30)

    sent_at = clock.now
    slow = Hold(store, acquire_slowly, keeper=manual_keeper)
    with slow:
        assert slow.trusted_until == sent_at + 30 - margin(30)


def test_an_answer_that_comes_after_the_trust_is_worth_nothing(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    def acquire_too_slowly() -> Any:
        clock.advance(31)
        return granted(ttl=30)

    late = Hold(store, acquire_too_slowly, keeper=manual_keeper)
    with pytest.raises(LeaseLost, match="not renewed in time"), late:
        assert not late.valid


@pytest.mark.parametrize(("ttl", "expected"), [(1, 0.2), (10, 0.2), (30, 0.6), (3600, 72)])
def test_the_margin_is_a_round_trip_or_two_percent(ttl: float, expected: float) -> None:
    assert margin(ttl) == pytest.approx(expected)


def test_the_margin_can_be_configured() -> None:
    with override_settings(LEASING={"MARGIN": 3}):
        assert margin(30) == 3


def test_ensure_raises_and_loses_the_hold_when_its_trust_has_run_out(
    hold: Hold, clock: FakeClock
) -> None:
    with pytest.raises(LeaseLost, match="crane:1 was lost: it was not renewed in time"), hold:
        clock.advance(30)
        with pytest.raises(LeaseLost):
            hold.ensure()
        assert hold.lost.is_set()


# Leaving


def test_leaving_the_block_gives_the_lease_back_once(hold: Hold, store: FakeStore) -> None:
    with hold:
        pass

    assert len(store.released) == 1
    assert not hold.valid
    assert not hold.lost.is_set()


def test_the_error_of_the_body_is_raised_and_the_lease_given_back(
    hold: Hold, store: FakeStore
) -> None:
    with pytest.raises(ZeroDivisionError), hold:
        raise ZeroDivisionError

    assert len(store.released) == 1


def test_leaving_a_lost_hold_raises(hold: Hold, store: FakeStore) -> None:
    with pytest.raises(LeaseLost, match="crane:1 was lost: thief has it"), hold:
        hold.lose("thief has it")

    assert store.released == []


def test_leaving_a_hold_that_nobody_yet_found_lost_raises(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost, match="not renewed in time"), hold:
        clock.advance(30)


def test_the_error_of_the_body_wins_over_the_loss(hold: Hold) -> None:
    with pytest.raises(ZeroDivisionError), hold:
        hold.lose("thief has it")
        raise ZeroDivisionError


def test_a_loss_that_only_the_release_finds_is_raised(hold: Hold, store: FakeStore) -> None:
    store.release_error = LeaseLost("crane:1", "it was revoked")

    with pytest.raises(LeaseLost, match="it was revoked"), hold:
        pass


def test_a_release_that_fails_is_logged_and_not_raised(
    hold: Hold, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done while the lease was held."""
    store.release_error = ConnectionError("the database is away")

    with caplog.at_level(logging.WARNING, "leasing"), hold:
        pass

    assert "crane:1 could not be released: the database is away" in caplog.text
    assert not hold.valid


def test_a_lost_hold_that_is_caught_inside_can_be_left_in_peace(hold: Hold) -> None:
    with hold:
        hold.lose("thief has it")
        with pytest.raises(LeaseLost):
            hold.release()


# Giving back by hand


def test_a_release_by_hand_ends_the_term(
    hold: Hold, store: FakeStore, manual_keeper: Keeper
) -> None:
    with hold:
        hold.release()
        assert not hold.valid
        hold.release()

    assert len(store.released) == 1
    assert not manual_keeper._holds


def test_after_a_release_the_hold_is_over_but_nothing_was_lost(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    told: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=told.append)
    with hold:
        hold.release()
        with pytest.raises(LeaseLost, match="it was released"):
            hold.ensure()
        with pytest.raises(LeaseLost):
            hold.renew()

    assert (told, store.losses) == ([], [])
    assert not hold.lost.is_set()


def test_a_hold_that_was_left_is_not_given_back(hold: Hold, store: FakeStore) -> None:
    with hold:
        hold.leave()

    assert store.released == []


def test_a_hold_that_settles_is_renewed_but_not_told_of_its_end(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    told: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=told.append)
    hold.__enter__()
    hold.settle()
    clock.advance(11)
    manual_keeper.renew_due()
    assert hold.trusted_until == clock.now + 30 - margin(30)

    store.answer = store.lose_all
    clock.advance(11)
    manual_keeper.renew_due()

    assert not hold.valid
    assert (told, store.losses) == ([], [])


# Renewing by hand


def test_a_renewal_by_hand_extends_the_trust(
    hold: Hold, store: FakeStore, clock: FakeClock
) -> None:
    with hold:
        clock.advance(5)
        hold.renew()

        assert hold.trusted_until == clock.now + 30 - margin(30)
        assert clock.now + 10 * 0.85 <= hold.due_at <= clock.now + 10 * 1.15
        assert store.calls == [{1: hold.grant_id}]


def test_a_renewal_by_hand_tells_what_was_lost(hold: Hold, store: FakeStore) -> None:
    store.answer = store.lose_all

    with pytest.raises(LeaseLost), hold:
        with pytest.raises(LeaseLost, match="thief has it"):
            hold.renew()
        assert hold.lost.is_set()


def test_a_renewal_by_hand_that_fails_extends_nothing(hold: Hold, store: FakeStore) -> None:
    store.answer = store.fail
    with hold:
        trusted_until = hold.trusted_until
        with pytest.raises(ConnectionError):
            hold.renew()

        assert hold.trusted_until == trusted_until
        assert hold.valid


def test_a_busy_row_extends_nothing_and_is_no_loss(
    hold: Hold, store: FakeStore, clock: FakeClock
) -> None:
    store.answer = store.all_busy
    with hold:
        trusted_until = hold.trusted_until
        clock.advance(1)
        hold.renew()

        assert hold.trusted_until == trusted_until


def test_a_lost_hold_is_not_renewed_by_hand(hold: Hold, store: FakeStore) -> None:
    with pytest.raises(LeaseLost), hold:
        hold.lose("thief has it")
        with pytest.raises(LeaseLost, match="thief has it"):
            hold.renew()

    assert store.calls == []


# Late answers (C2)


def test_a_late_answer_never_extends(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost), hold:
        sent_at = clock.now
        clock.now = hold.trusted_until
        hold.renewed(sent_at, far_away())

        assert not hold.valid
        assert hold.trusted_until == clock.now


def test_the_trust_counts_from_the_request_and_not_from_the_answer(
    hold: Hold, clock: FakeClock
) -> None:
    with hold:
        sent_at = clock.now + 10
        clock.advance(25)
        hold.renewed(sent_at, far_away())

        assert hold.trusted_until == sent_at + 30 - margin(30)


def test_answers_in_the_wrong_order_never_shorten_the_trust(hold: Hold, clock: FakeClock) -> None:
    with hold:
        clock.advance(20)
        hold.renewed(clock.now - 1, far_away())
        trusted_until = hold.trusted_until
        hold.renewed(clock.now - 15, far_away())

        assert hold.trusted_until == trusted_until


def test_a_lost_hold_is_not_revived_by_an_answer(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost), hold:
        hold.lose("thief has it")
        hold.renewed(clock.now, far_away())

        assert not hold.valid


# Being told (C3)


def test_on_lost_is_called_once_with_the_hold(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    told: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=told.append)
    with pytest.raises(LeaseLost, match="first"), hold:
        hold.lose("first")
        hold.lose("second")
        clock.advance(60)
        manual_keeper.declare_lost()

    assert told == [hold]
    assert store.losses == ["first"]


def test_on_lost_is_called_once_when_many_find_out_together(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    told: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=told.append)
    hold.__enter__()
    start = threading.Barrier(8)

    def find_out() -> None:
        start.wait()
        hold.lose("thief has it")

    threads = [threading.Thread(target=find_out) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert told == [hold]


def test_the_ledger_hears_of_the_loss_although_the_callback_fails(
    store: FakeStore, manual_keeper: Keeper
) -> None:
    def on_lost(hold: Hold) -> None:
        raise ZeroDivisionError

    hold = hold_of(store, manual_keeper, on_lost=on_lost)
    hold.__enter__()
    with pytest.raises(ZeroDivisionError):
        hold.lose("thief has it")

    assert store.losses == ["thief has it"]


def test_a_hold_without_callback_is_lost_in_silence(hold: Hold) -> None:
    with pytest.raises(LeaseLost), hold:
        hold.lose("thief has it")


# How often


@pytest.mark.parametrize(("every", "expected"), [(None, 10), (3, 3), (100, 15)])
def test_holds_are_renewed_every_third_of_the_ttl_or_as_configured_but_twice_at_least(
    hold: Hold, every: float | None, expected: float
) -> None:
    with override_settings(LEASING={"RENEW_EVERY": every}), hold:
        assert hold.interval == expected


def test_every_error_of_a_hold_is_a_lease_error() -> None:
    assert issubclass(LeaseLost, LeaseError)
