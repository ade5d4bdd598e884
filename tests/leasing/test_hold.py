"""Taking a hold and giving it back. Clock and store are moved by hand."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.hold import Hold
from leasing.hold.trust import margin
from leasing.keeper import Keeper
from leasing.models import Lease
from tests.leasing.support import FakeClock, FakeStore, far_away, granted, hold_of
from tests.logs import logged

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


def test_a_hold_shows_what_its_holder_may_use_and_nothing_else() -> None:
    assert [name for name in dir(Hold) if not name.startswith("_")] == [
        *("ensure", "expires_at", "fencing_token", "grant_id", "holder", "interval", "lost"),
        *("refused", "release", "renew", "resource", "still_mine", "trusted_until", "ttl"),
        *("valid", "yield_to"),
    ]


def test_its_repr_says_who_holds_what_and_for_how_long_but_not_the_proof(
    hold: Hold, clock: FakeClock
) -> None:
    with hold:
        clock.advance(9.4)
        assert repr(hold) == "<Hold crane:1: holder me, token 7, held, 20.0 s left>"
        assert str(hold.grant_id) not in f"{hold!r} {hold}"

    assert repr(hold) == "<Hold crane:1: holder me, token 7, released>"


def test_the_repr_of_a_hold_that_is_lost_says_why(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost), hold:
        clock.advance(60)  # the watchdog has not looked yet
        assert repr(hold) == (
            "<Hold crane:1: holder me, token 7, lost: it was not renewed in time>"
        )
        hold._held.mark_lost("thief has held it")
        assert repr(hold).endswith("lost: thief has held it>")


def test_what_has_no_term_yet_says_so() -> None:
    assert repr(Lease.objects.hold("crane:1")) == "<Hold crane:1: not entered>"


def test_the_event_of_a_loss_is_true_once_it_is_lost(hold: Hold) -> None:
    assert not hold.lost
    with pytest.raises(LeaseLost), hold:
        assert not hold.lost
        hold._held.mark_lost("thief has held it")
        assert hold.lost and hold.lost.wait(0)


def test_a_hold_in_use_cannot_be_entered_again(hold: Hold) -> None:
    with hold, pytest.raises(RuntimeError, match="already in use"):
        hold.__enter__()


def test_a_hold_that_was_adopted_cannot_be_entered(store: FakeStore, manual_keeper: Keeper) -> None:
    adopted = Hold(store, keeper=manual_keeper)
    adopted._begin_term(granted(sent_at=manual_keeper.clock())).keep()

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
    with pytest.raises(LeaseLost, match="crane:1 was lost: thief has held it"), hold:
        hold._held.mark_lost("thief has held it")

    assert store.released == []


def test_leaving_a_hold_that_nobody_yet_found_lost_raises(hold: Hold, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost, match="not renewed in time"), hold:
        clock.advance(30)


def test_the_error_of_the_body_wins_over_the_loss(hold: Hold) -> None:
    with pytest.raises(ZeroDivisionError), hold:
        hold._held.mark_lost("thief has held it")
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

    assert logged(caplog, resource="crane:1", error="the database is away") == ["lease.unreleased"]
    assert not hold.valid


def test_a_lost_hold_that_is_caught_inside_can_be_left_in_peace(hold: Hold) -> None:
    with hold:
        hold._held.mark_lost("thief has held it")
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
    reported: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=reported.append)
    with hold:
        hold.release()
        with pytest.raises(LeaseLost, match="it was released"):
            hold.ensure()
        with pytest.raises(LeaseLost):
            hold.renew()

    assert (reported, store.losses) == ([], [])
    assert not hold.lost.is_set()


def test_a_hold_that_was_left_is_not_given_back(hold: Hold, store: FakeStore) -> None:
    with hold:
        hold._held.abandon()

    assert store.released == []


def test_a_hold_that_settles_is_renewed_but_not_told_of_its_end(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    reported: list[Hold] = []
    hold = hold_of(store, manual_keeper, on_lost=reported.append)
    hold.__enter__()
    hold._held.expect_end()
    clock.advance(11)
    manual_keeper.renew_due()
    assert hold.trusted_until == clock.now + 30 - margin(30)

    store.answer = store.lose_all
    clock.advance(11)
    manual_keeper.renew_due()

    assert not hold.valid
    assert (reported, store.losses) == ([], [])
