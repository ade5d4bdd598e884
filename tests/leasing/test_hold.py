"""Taking a hold, its trust, its loss, and giving it back. Clock and store are moved by hand."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import override_settings

from leasing.exceptions import LeaseError, LeaseHeld, LeaseLost
from leasing.holding import Hold
from leasing.holding.term import Term, margin
from leasing.models import Lease
from leasing.store import Renewals
from tests.leasing.support import ByHand, FakeStore, at_once, far_away, granted, hold_of
from tests.logs import logged

Grants = Mapping[Any, uuid.UUID]


@pytest.fixture
def hold(hand: ByHand) -> Hold:
    """A hold for 30 s, not yet entered."""
    return hand.hold()


# Entering


def test_inside_the_block_the_hold_is_valid_and_shows_its_grant(hold: Hold) -> None:
    with pytest.raises(RuntimeError, match="enter the hold first"):
        _ = hold.term
    with hold as term:
        assert term is hold.term
        assert term.valid and not term.lost
        term.ensure()
        assert (term.holder, term.resource, term.fencing_token) == (
            "me",
            "crane:1",
            7,
        )
        assert term.expires_at == far_away()
        with pytest.raises(RuntimeError, match="already in use"):
            hold.__enter__()


def test_the_door_shows_the_term_and_nothing_of_it() -> None:
    """Who keeps the door would else read the token of the next term under that of an old one."""
    assert [name for name in dir(Hold) if not name.startswith("_")] == ["entering", "store", "term"]


def test_its_repr_says_who_holds_what_and_for_how_long_but_not_the_proof(
    hold: Hold, hand: ByHand
) -> None:
    me = "<Term crane:1: holder me, token 7,"
    assert repr(Lease.objects.hold("crane:1")) == "<Hold crane:1: not entered>"
    with hold as term:
        hand.clock.advance(9.4)
        assert repr(term) == f"{me} held, 20.0 s left>"
        assert repr(term) in repr(hold)
        assert str(term.grant_id) not in f"{term!r} {hold!r}"
    assert repr(term) == f"{me} released>"
    with pytest.raises(LeaseLost), hold as term:
        hand.clock.advance(60)  # the watchdog has not looked yet
        assert repr(term) == f"{me} lost: it was not renewed in time>"
    with pytest.raises(LeaseLost), hold as term:
        hand.lose(term)
        assert repr(term) == f"{me} lost: thief has held it>"
    assert repr(granted()) == f"{me} detached>"


def test_a_hold_can_be_entered_again_after_it_was_left(hold: Hold, hand: ByHand) -> None:
    with hold:
        first = hold.term.grant_id
    with hold:
        assert hold.term.valid
        assert hold.term.grant_id != first

    assert len(hand.store.released) == 2


def test_a_refused_acquisition_is_raised_and_nothing_is_held(hand: ByHand) -> None:
    def acquire() -> Any:
        raise LeaseHeld("crane:1", "bob", far_away())

    refused = Hold(hand.store, acquire, keeper=hand.keeper)
    with pytest.raises(LeaseHeld), refused:
        pytest.fail("the body must not run")

    assert not hand.keeper.holds


# Leaving


def test_leaving_the_block_releases_the_lease_once(hold: Hold, hand: ByHand) -> None:
    with hold:
        pass
    assert len(hand.store.released) == 1
    assert not hold.term.valid and not hold.term.lost

    with pytest.raises(ZeroDivisionError), hold:
        raise ZeroDivisionError
    assert len(hand.store.released) == 2


@pytest.mark.parametrize("reason", ["thief has held it", "it was not renewed in time"])
def test_leaving_a_lost_hold_raises_unless_the_body_failed(
    reason: str, hold: Hold, hand: ByHand
) -> None:
    def lose() -> None:
        if reason == "thief has held it":
            hand.lose(hold.term)
        else:
            hand.clock.advance(30)  # which nobody has found yet

    with pytest.raises(LeaseLost, match=f"crane:1 was lost: {reason}"), hold:
        lose()
    with pytest.raises(ZeroDivisionError), hold:
        lose()
        raise ZeroDivisionError
    with hold:
        lose()
        with pytest.raises(LeaseLost, match=reason):
            hold.term.release()  # and is left in peace then

    assert hand.store.released == []


def test_a_loss_that_only_the_release_finds_is_raised_and_reported_once(
    hold: Hold, hand: ByHand
) -> None:
    hand.store.release_error = LeaseLost("crane:1", "it was revoked")

    with pytest.raises(LeaseLost, match="it was revoked"), hold:
        pass

    assert hold.term.lost and not hold.term.valid
    with pytest.raises(LeaseLost, match="it was revoked"):
        hold.term.release()
    assert hand.reported == [hold.term]


def test_a_release_that_fails_is_logged_and_can_be_tried_again(
    hold: Hold, hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done while the lease was held."""
    hand.store.release_error = ConnectionError("the database is away")
    with caplog.at_level(logging.WARNING, "leasing"), hold:
        pass

    assert logged(caplog, resource="crane:1", error="the database is away") == ["lease.unreleased"]
    assert not hold.term.valid
    assert "not released yet" in repr(hold)
    with pytest.raises(ConnectionError):
        hold.term.release()
    assert hand.store.released == []

    hand.store.release_error = None
    hold.term.release()
    hold.term.release()
    assert len(hand.store.released) == 1


def test_a_release_by_hand_ends_the_term_and_loses_nothing(hold: Hold, hand: ByHand) -> None:
    with hold:
        hold.term.release()
        assert not hold.term.valid and not hold.term.lost
        hold.term.release()
        with pytest.raises(LeaseLost, match="it was released"):
            hold.term.ensure()
        with pytest.raises(LeaseLost):
            hold.term.renew()

    assert len(hand.store.released) == 1
    assert not hand.keeper.holds
    assert (hand.reported, hand.store.losses) == ([], [])


def test_an_end_that_is_expected_is_renewed_until_then_and_is_no_loss(
    hold: Hold, hand: ByHand
) -> None:
    hold.__enter__()
    (term,) = hand.keeper.holds
    term.expect_end()
    hand.after(12)
    assert hold.term.trusted_until == hand.now + 30 - margin(30)

    hand.store.answer = hand.store.lose_all
    hand.after(12)

    assert not hold.term.valid
    assert (hand.reported, hand.store.losses) == ([], [])


# Trust counts from before the request (C1)


def test_a_hold_is_trusted_until_the_ttl_after_the_request_less_the_margin(
    hold: Hold, hand: ByHand
) -> None:
    sent_at = hand.now
    with pytest.raises(LeaseLost), hold:
        assert hold.term.trusted_until == sent_at + 30 - 0.6
        hand.clock.now = hold.term.trusted_until - 0.001
        assert hold.term.valid
        hand.clock.now = hold.term.trusted_until
        assert not hold.term.valid


@pytest.mark.parametrize("way", ["acquired", "renewed by the keeper", "renewed by hand"])
def test_the_time_that_an_answer_took_is_not_trusted(way: str, hand: ByHand) -> None:
    def acquire() -> Term:
        grant = granted(ttl=30, sent_at=hand.now)
        if way == "acquired":
            hand.clock.advance(4)
        return grant

    sent_at = hand.now
    with Hold(hand.store, at_once(acquire), keeper=hand.keeper) as hold:
        hand.store.answer = hand.slowly(4)
        if way != "acquired":
            sent_at += 12
            hand.clock.advance(12)
            if way == "renewed by hand":
                hold.renew()
            else:
                hand.keeper.renew_due()

        assert hold.trusted_until == sent_at + 30 - margin(30)


@pytest.mark.parametrize(("ttl", "expected"), [(1, 0.2), (10, 0.2), (30, 0.6), (3600, 72)])
def test_the_margin_is_a_round_trip_or_two_percent(ttl: float, expected: float) -> None:
    assert margin(ttl) == pytest.approx(expected)


def test_the_margin_can_be_configured_but_takes_no_more_than_a_third_of_the_ttl() -> None:
    with override_settings(LEASING={"MARGIN": 3}):
        assert (margin(30), margin(3)) == (3, 1)


@pytest.mark.parametrize(("every", "expected"), [(None, 10), (3, 3), (100, 15)])
def test_holds_are_renewed_every_third_of_the_ttl_or_as_configured_but_twice_at_least(
    hold: Hold, every: float | None, expected: float
) -> None:
    with override_settings(LEASING={"RENEW_EVERY": every}), hold:
        assert hold.term.interval == expected


def test_ensure_raises_and_loses_the_hold_when_its_trust_has_run_out(
    hold: Hold, hand: ByHand
) -> None:
    assert issubclass(LeaseLost, LeaseError)
    with pytest.raises(LeaseLost, match="crane:1 was lost: it was not renewed in time"), hold:
        hand.clock.advance(30)
        with pytest.raises(LeaseLost):
            hold.term.ensure()
        assert hold.term.lost
        assert hand.reported == [hold.term]


# Renewing by hand


def test_a_renewal_by_hand_extends_the_trust_and_puts_the_next_one_off(
    hold: Hold, hand: ByHand
) -> None:
    with hold:
        hand.clock.advance(5)
        hold.term.renew()
        assert hold.term.trusted_until == hand.now + 30 - margin(30)
        assert hand.store.calls == [{1: hold.term.grant_id}]

        hand.after(7)  # it was due after ten seconds at first
        assert len(hand.store.calls) == 1
        hand.after(5)
        assert len(hand.store.calls) == 2


def test_a_renewal_by_hand_raises_what_was_lost(hold: Hold, hand: ByHand) -> None:
    hand.store.answer = hand.store.lose_all
    with pytest.raises(LeaseLost), hold:
        for _ in range(2):
            with pytest.raises(LeaseLost, match="thief has held it"):
                hold.term.renew()
        assert hold.term.lost

    assert len(hand.store.calls) == 1, "what is lost is not renewed"


@pytest.mark.parametrize("answer", ["fail", "all_busy"])
def test_a_renewal_by_hand_that_is_not_granted_extends_nothing_and_is_no_loss(
    answer: str, hold: Hold, hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.store.answer = getattr(hand.store, answer)
    with hold:
        trusted_until = hold.term.trusted_until
        hand.clock.advance(1)
        if answer == "fail":
            with pytest.raises(ConnectionError):
                hold.term.renew()
        else:
            hold.term.renew()

        assert hold.term.trusted_until == trusted_until
        assert hold.term.valid


# Late answers (C2)


@pytest.mark.parametrize("way", ["acquired", "renewed by the keeper", "renewed by hand"])
def test_an_answer_that_comes_after_the_trust_is_a_loss(way: str, hand: ByHand) -> None:
    def acquire() -> Term:
        grant = granted(ttl=30, sent_at=hand.now)
        if way == "acquired":
            hand.clock.advance(31)
        return grant

    hand.store.answer = hand.slowly(30)
    late = Hold(hand.store, at_once(acquire), keeper=hand.keeper, on_lost=hand.reported.append)
    with pytest.raises(LeaseLost, match="not renewed in time"), late:
        if way == "renewed by hand":
            with pytest.raises(LeaseLost):
                late.term.renew()
        elif way == "renewed by the keeper":
            hand.clock.advance(12)
            hand.keeper.renew_due()
        if way != "acquired":
            assert late.term.lost and hand.reported == [late.term]
        assert not late.term.valid


@pytest.mark.parametrize("between", ["renewed", "lost", "forked"])
def test_an_answer_that_was_overtaken_changes_nothing(
    between: str, hold: Hold, hand: ByHand
) -> None:
    hold.__enter__()
    hand.clock.advance(12)
    expected = 0.0

    def overtaken(grants: Grants) -> Renewals:
        nonlocal expected
        hand.store.answer = hand.store.renew_all
        hand.clock.advance(1)
        if between == "renewed":
            hold.term.renew()
        elif between == "lost":
            hand.lose(hold.term)
        else:
            hand.keeper.after_fork()
        expected = hold.term.trusted_until
        return FakeStore.renew_all(grants)

    hand.store.answer = overtaken
    hand.keeper.renew_due()

    assert hold.term.trusted_until == expected
    assert hold.term.valid is (between == "renewed")
    if between == "forked":
        assert hold.term.lost
        with pytest.raises(LeaseLost, match="fork"):
            hold.term.release()


# A loss is reported once, to each who should know (C3)


def test_a_loss_is_reported_once_however_many_find_it_together(hold: Hold, hand: ByHand) -> None:
    hold.__enter__()
    hand.clock.advance(60)
    start = threading.Barrier(8)

    def find_out() -> None:
        start.wait()
        hand.keeper.declare_lost()
        with pytest.raises(LeaseLost):
            hold.term.ensure()

    threads = [threading.Thread(target=find_out) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert hand.reported == [hold.term]
    assert hand.store.losses == ["it was not renewed in time"]
    assert hold.term.lost.wait(0)


def test_the_ledger_hears_of_the_loss_with_or_without_a_callback_and_if_it_fails(
    hand: ByHand,
) -> None:
    def fail(hold: Term) -> None:
        raise ZeroDivisionError

    silent = hold_of(hand.store, hand.keeper, on_lost=None)
    with pytest.raises(LeaseLost), silent:
        hand.lose(silent.term)
    failing = hold_of(hand.store, hand.keeper, on_lost=fail)
    failing.__enter__()
    with pytest.raises(ZeroDivisionError):
        hand.lose(failing.term)

    assert hand.store.losses == ["thief has held it"] * 2
