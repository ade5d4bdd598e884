"""The trust of a hold: only answers extend it, counted from their request (C1, C2)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import override_settings

from leasing.exceptions import LeaseError, LeaseLost
from leasing.hold import Hold
from leasing.hold.trust import margin
from leasing.keeper import Keeper
from leasing.store import Grant, Renewal, Renewals
from tests.leasing.support import FakeClock, FakeStore, at_once, far_away, granted

#: What the store answers to a renewal of a grant for thirty seconds.
RENEWED = Renewal(far_away(), remaining=30)

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
        hold._held.abandon()


def test_the_time_that_the_answer_took_is_not_trusted(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    def acquire_slowly() -> Grant:
        grant = granted(ttl=30, sent_at=clock.now)
        clock.advance(4)
        return grant

    sent_at = clock.now
    slow = Hold(store, at_once(acquire_slowly), keeper=manual_keeper)
    with slow:
        assert slow.trusted_until == sent_at + 30 - margin(30)


def test_an_answer_that_comes_after_the_trust_is_worth_nothing(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    def acquire_too_slowly() -> Grant:
        grant = granted(ttl=30, sent_at=clock.now)
        clock.advance(31)
        return grant

    late = Hold(store, at_once(acquire_too_slowly), keeper=manual_keeper)
    with pytest.raises(LeaseLost, match="not renewed in time"), late:
        assert not late.valid


@pytest.mark.parametrize(("ttl", "expected"), [(1, 0.2), (10, 0.2), (30, 0.6), (3600, 72)])
def test_the_margin_is_a_round_trip_or_two_percent(ttl: float, expected: float) -> None:
    assert margin(ttl) == pytest.approx(expected)


def test_the_margin_can_be_configured() -> None:
    with override_settings(LEASING={"MARGIN": 3}):
        assert margin(30) == 3


def test_no_margin_takes_more_than_a_third_of_the_ttl() -> None:
    with override_settings(LEASING={"MARGIN": 3}):
        assert margin(3) == 1


def test_ensure_raises_and_loses_the_hold_when_its_trust_has_run_out(
    hold: Hold, clock: FakeClock
) -> None:
    with pytest.raises(LeaseLost, match="crane:1 was lost: it was not renewed in time"), hold:
        clock.advance(30)
        with pytest.raises(LeaseLost):
            hold.ensure()
        assert hold.lost.is_set()


# Renewing by hand


def test_a_renewal_by_hand_extends_the_trust(
    hold: Hold, store: FakeStore, clock: FakeClock
) -> None:
    with hold:
        clock.advance(5)
        hold.renew()

        assert hold.trusted_until == clock.now + 30 - margin(30)
        assert clock.now + 10 * 0.85 <= hold._held.due_at <= clock.now + 10 * 1.15
        assert store.calls == [{1: hold.grant_id}]


def test_the_time_that_a_renewal_by_hand_took_is_not_trusted(
    hold: Hold, store: FakeStore, clock: FakeClock
) -> None:
    def answer_slowly(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        clock.advance(4)
        return FakeStore.renew_all(grants)

    store.answer = answer_slowly
    with hold:
        clock.advance(5)
        sent_at = clock.now
        hold.renew()

        assert hold.trusted_until == sent_at + 30 - margin(30)


def test_a_renewal_by_hand_that_is_answered_too_late_is_a_loss(
    hold: Hold, store: FakeStore, clock: FakeClock
) -> None:
    def answer_too_late(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        clock.advance(30)
        return FakeStore.renew_all(grants)

    store.answer = answer_too_late
    with pytest.raises(LeaseLost), hold, pytest.raises(LeaseLost):
        hold.renew()


def test_a_renewal_by_hand_tells_what_was_lost(hold: Hold, store: FakeStore) -> None:
    store.answer = store.lose_all

    with pytest.raises(LeaseLost), hold:
        with pytest.raises(LeaseLost, match="thief has held it"):
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
        hold._held.mark_lost("thief has held it")
        with pytest.raises(LeaseLost, match="thief has held it"):
            hold.renew()

    assert store.calls == []


# Late answers (C2)


def test_a_late_answer_never_extends(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost), hold:
        sent_at = clock.now + 10
        clock.now = hold.trusted_until
        hold._held.renewed(sent_at, RENEWED)

        assert not hold.valid
        assert hold.lost.is_set(), "nobody was told"


def test_the_trust_counts_from_the_request_and_not_from_the_answer(
    hold: Hold, clock: FakeClock
) -> None:
    with hold:
        sent_at = clock.now + 10
        clock.advance(25)
        hold._held.renewed(sent_at, RENEWED)

        assert hold.trusted_until == sent_at + 30 - margin(30)


def test_answers_in_the_wrong_order_never_shorten_the_trust(hold: Hold, clock: FakeClock) -> None:
    with hold:
        clock.advance(20)
        hold._held.renewed(clock.now - 1, RENEWED)
        trusted_until = hold.trusted_until
        hold._held.renewed(clock.now - 15, RENEWED)

        assert hold.trusted_until == trusted_until


def test_a_lost_hold_is_not_revived_by_an_answer(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost), hold:
        hold._held.mark_lost("thief has held it")
        hold._held.renewed(clock.now, RENEWED)

        assert not hold.valid


def test_a_hold_that_a_fork_forgot_is_not_revived_by_an_answer(
    hold: Hold, clock: FakeClock
) -> None:
    with pytest.raises(LeaseLost, match="fork"), hold:
        trusted_until = hold.trusted_until
        hold._held.forget()
        clock.advance(1)
        hold._held.renewed(clock.now, RENEWED)

        assert hold.trusted_until == trusted_until
        assert not hold.valid


# How often


@pytest.mark.parametrize(("every", "expected"), [(None, 10), (3, 3), (100, 15)])
def test_holds_are_renewed_every_third_of_the_ttl_or_as_configured_but_twice_at_least(
    hold: Hold, every: float | None, expected: float
) -> None:
    with override_settings(LEASING={"RENEW_EVERY": every}), hold:
        assert hold.interval == expected


def test_every_error_of_a_hold_is_a_lease_error() -> None:
    assert issubclass(LeaseLost, LeaseError)
