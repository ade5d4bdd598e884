"""What the keeper renews, when, and what it makes of the answer or of none. No threads, no time."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import pytest
from django.test import override_settings

from leasing.holding import keeper as keeper_module
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term, detach_all, keep_all, margin
from leasing.store import Renewal, Renewals
from tests.leasing.support import ByHand, FakeStore, far_away, granted, hold_of
from tests.logs import logged

pytestmark = pytest.mark.usefixtures("without_jitter")

Grants = Mapping[Any, uuid.UUID]
#: How long a hold for 30 s is trusted after its grant or renewal.
TRUST = 30 - margin(30)


# What is due


def test_what_is_due_is_renewed_and_due_again_an_interval_later(hand: ByHand) -> None:
    (hold,) = hand.enter()
    calls = []
    for seconds in (8.9, 1.1, 8.9, 1.1):
        hand.after(seconds)
        calls.append(len(hand.store.calls))

    assert calls == [0, 1, 1, 2]
    assert hand.store.calls[0] == {1: hold.grant_id}
    assert hold.trusted_until == hand.now + TRUST
    assert hold.expires_at == far_away()
    assert hand.keeper.renewals == 2


def test_what_is_nearly_due_rides_along_but_not_with_another_store(hand: ByHand) -> None:
    other = FakeStore()
    hand.enter(1, 2)
    hand.enter(1, store=other)
    hand.clock.advance(0.9)
    hand.enter(3)
    hand.after(9.1)

    assert [set(call) for call in hand.store.calls] == [{1, 2, 3}]
    assert [set(call) for call in other.calls] == [{1}]


class MeteredStore(FakeStore):
    is_metered = True


@pytest.mark.parametrize("kind", [FakeStore, MeteredStore])
def test_a_metered_store_gets_one_request_an_interval_however_many_holds_come(
    hand: ByHand, kind: type[FakeStore]
) -> None:
    store, began, sent, holds = kind(), hand.now, [], 0
    with override_settings(LEASING={"JITTER": 0.15}):
        hand.enter(1, ttl=2, store=FakeStore())
        for moment in range(300):
            if moment % 3 == 0 and holds < 60:
                hand.enter(holds, store=store)
                holds += 1
            before = len(store.calls)
            hand.after(began + moment - hand.now)
            sent += [moment] * (len(store.calls) - before)

    apart = min(later - earlier for earlier, later in zip(sent, sent[1:], strict=False))
    assert (apart >= 10 and len(sent) <= 30) is (kind is MeteredStore)
    assert len(store.losses) == 0
    assert len(store.calls[-1]) == 60 or kind is FakeStore


def test_more_than_a_thousand_holds_are_renewed_in_batches(hand: ByHand) -> None:
    hand.enter(*range(2001))

    hand.after(10)
    assert [len(call) for call in hand.store.calls] == [1000, 1000, 1]
    assert {key for call in hand.store.calls for key in call} == set(range(2001))
    hand.after(1)
    assert len(hand.store.calls) == 3


def test_two_grants_of_one_key_are_renewed_apart(hand: ByHand) -> None:
    """A process that lost a row and won it again may for a moment hold both grants."""
    old, new = hand.enter("same", "same")
    hand.store.answer = lambda grants: Renewals(
        renewed={k: Renewal(far_away(), 30) for k, g in grants.items() if g == new.grant_id},
        lost={k: "superseded" for k, g in grants.items() if g != new.grant_id},
    )
    hand.after(10)

    assert hand.store.calls == [{"same": old.grant_id}, {"same": new.grant_id}]
    assert old.lost and new.valid


def test_holds_that_were_granted_together_are_renewed_together_until_they_are_detached(
    hand: ByHand,
) -> None:
    kept = [granted(key, sent_at=hand.now, store=hand.store) for key in range(3)]
    keep_all(kept, hand.keeper)
    assert all(held.valid and held.trusted_until == hand.now + TRUST for held in kept)

    hand.after(15)
    assert [len(call) for call in hand.store.calls] == [3]
    detach_all(kept)
    assert hand.keeper.holds == []
    hand.after(15)
    assert len(hand.store.calls) == 1


def test_renewals_are_spread_by_the_jitter(hand: ByHand) -> None:
    with override_settings(LEASING={"JITTER": 0.15}):
        hand.enter(*range(100))
        renewed: dict[Any, float] = {}
        began_at, hand.store.answer = hand.now, hand.store.all_busy
        while hand.now < began_at + 12:
            hand.after(0.1)
            for call in hand.store.calls:
                for key in call:
                    renewed.setdefault(key, hand.now - began_at)

    after = sorted(renewed.values())
    assert len(after) == 100
    assert 7.5 <= after[0] < 9 < 10 < after[-1] <= 11.6


def test_who_hurries_while_a_renewal_is_under_way_is_renewed_once_more(hand: ByHand) -> None:
    hand.enter()
    (term,) = hand.keeper.holds

    def renew_meanwhile(grants: Grants) -> Renewals:
        hand.clock.advance(0.1)
        hand.keeper.renew_now(term)
        return FakeStore.renew_all(grants)

    hand.store.answer = renew_meanwhile
    hand.after(10)
    hand.store.answer = FakeStore.renew_all
    for seconds, calls in ((0, 2), (8.9, 2), (1.1, 3)):
        hand.after(seconds)
        assert len(hand.store.calls) == calls


# The answer


def test_a_loss_that_the_store_answers_has_its_reason_and_concerns_nobody_else(
    hand: ByHand,
) -> None:
    lost, kept = hand.enter(1, 2)
    hand.store.answer = lambda grants: Renewals(
        renewed={2: Renewal(far_away(), 30)}, lost={1: "thief has held it"}
    )
    hand.after(10)

    assert hand.reported == [lost]
    assert hand.store.losses == ["thief has held it"]
    assert kept.valid
    hand.after(10)
    assert set(hand.store.calls[-1]) == {2}


def test_busy_rows_are_tried_again_shortly_and_are_not_trusted_longer(hand: ByHand) -> None:
    (hold,) = hand.enter()
    trusted_until = hold.trusted_until
    hand.store.answer = hand.store.all_busy

    hand.after(10)
    hand.after(0.1)
    assert len(hand.store.calls) == 1
    hand.after(0.4)
    assert len(hand.store.calls) == 2
    assert hold.trusted_until == trusted_until
    assert not hand.keeper.draining

    while hand.now < trusted_until - 0.1:
        hand.after(0.1)
        assert hold.valid
    hand.after(0.1)
    assert hold.lost


# Renewals that fail


def moments_of_calls(hand: ByHand, seconds: float, step: float = 0.01) -> list[float]:
    """When the store was called in the next ``seconds``, from their beginning."""
    began_at, moments = hand.now, []
    while hand.now < began_at + seconds:
        before = len(hand.store.calls)
        hand.after(step)
        moments += [hand.now - began_at] * (len(hand.store.calls) - before)
    return moments


def test_nothing_passes_an_open_breaker_until_its_pause_is_over(hand: ByHand) -> None:
    (hold,) = hand.enter()
    hand.store.answer = hand.store.fail
    hand.after(12)
    hand.keeper.renew_now(hold)
    hand.after(0)

    assert len(hand.store.calls) == 1
    hand.after(1)
    assert len(hand.store.calls) == 2


def test_a_failed_renewal_is_tried_again_ever_later_but_twice_in_an_interval(
    hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    (hold,) = hand.enter(ttl=300)
    hand.store.answer = hand.store.fail
    trusted_until = hold.trusted_until
    hand.after(100)
    reported = r"Renewal failed; will retry in about 0\.[12] s: the database is away"
    assert re.search(reported, caplog.text)
    assert hand.keeper.draining

    tries = [0.0, *moments_of_calls(hand, 180, step=0.1)]
    pauses = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]

    assert 25 < max(pauses) <= 51
    assert pauses[3] <= 4 + 2.1
    assert hold.valid and hold.trusted_until == trusted_until
    assert len(logged(caplog)) == 1, "an outage has one warning"


def test_the_first_try_after_a_failure_comes_within_two_tenths_of_a_second(hand: ByHand) -> None:
    hand.enter()
    hand.store.answer = hand.store.fail
    hand.after(10)

    first, *_ = moments_of_calls(hand, 1)
    assert 0.1 <= first <= 0.2 + 0.02 * 10 + 0.01


def test_the_keeper_drains_from_the_first_failure_until_a_success(
    hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    fine = FakeStore()
    hand.enter()
    (other,) = hand.enter(store=fine)
    assert not hand.keeper.draining

    hand.store.answer = hand.store.fail
    hand.after(10)
    assert hand.keeper.draining
    assert other.trusted_until == hand.now + TRUST, "another store is renewed as ever"

    hand.store.answer = hand.store.renew_all
    caplog.clear()
    with caplog.at_level(logging.INFO, "leasing.keeper"):
        hand.after(1)
        assert logged(caplog) == ["keeper.renewals_resumed"]
        hand.after(10)
    assert not hand.keeper.draining
    assert len(logged(caplog)) == 1, "and is silent about those that succeed as ever"


def fails(hand: ByHand, leave: Callable[[], None], grants: Grants) -> Renewals:
    leave()
    return FakeStore.fail(grants)


def is_slow(hand: ByHand, leave: Callable[[], None], grants: Grants) -> Renewals:
    leave()
    hand.clock.advance(5.1)
    return FakeStore.renew_all(grants)


@pytest.mark.parametrize("answer", [fails, is_slow])
@pytest.mark.parametrize("leaves", ["before the answer", "after it"])
def test_a_failure_of_what_nobody_holds_any_more_keeps_nobody_from_work(
    answer: Callable[..., Renewals], leaves: str, hand: ByHand
) -> None:
    """Nobody would renew anything, and so find out that renewals succeed."""
    (hold,) = hand.enter()
    hand.enter(2, store=FakeStore())
    leave = hold.release if leaves == "before the answer" else bool
    hand.store.answer = partial(answer, hand, leave)
    hand.after(11)
    if leaves == "after it":
        assert hand.keeper.draining
        hold.release()

    assert hand.store.calls and not hand.keeper.draining


@pytest.mark.parametrize("error", [ValueError("no proof"), SystemExit()], ids=repr)
def test_a_proof_that_raises_ends_its_own_hold_and_no_other(
    error: BaseException, hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    def prove() -> bool:
        raise error

    doubted = granted("doubted", 30, hand.now, hand.store)
    doubted.proof = prove
    keep_all([doubted], hand.keeper)
    (other,) = hand.enter()
    hand.after(10)

    assert doubted.is_lost
    assert other.trusted_until == hand.now + TRUST
    assert [set(call) for call in hand.store.calls] == [{1}]
    assert "keeper.proof_failed" in logged(caplog, key="doubted")


# Trust that runs out


def test_a_hold_is_declared_lost_when_its_trust_has_run_out_and_not_before(hand: ByHand) -> None:
    (hold,) = hand.enter()

    hand.clock.now = hold.trusted_until - 0.001
    hand.keeper.declare_lost()
    assert hand.reported == []

    hand.clock.now = hold.trusted_until
    for _ in range(2):
        hand.keeper.declare_lost()
    assert hand.reported == [hold]
    assert hand.store.losses == ["it was not renewed in time"]
    assert not hand.keeper.holds


def test_a_renewal_after_the_trust_ran_out_comes_too_late(hand: ByHand) -> None:
    """The process was not scheduled: the first step afterwards must not revive the hold."""
    (hold,) = hand.enter()
    hand.after(60)

    assert hold.lost


def test_a_hold_that_was_lost_before_it_was_kept_again_stays_with_the_keeper_no_longer(
    hand: ByHand,
) -> None:
    """Another thread's `ensure` may come between: the watchdog would never sleep again."""

    class Overtaken(Keeper):
        def add(self, holds: Collection[Term]) -> None:
            for hold in holds:
                hold.mark_lost("meanwhile")
            super().add(holds)

    keeper = Overtaken(clock=hand.clock, threads=False)
    held = granted(sent_at=hand.now, store=hand.store)
    keep_all([held], hand.keeper)
    held.detach()
    keep_all([held], keeper)
    held.detach()
    held.resume(hand.now)
    keeper.declare_lost()

    assert held.is_lost and hand.store.losses == ["meanwhile"]
    assert keeper.holds == []


def test_a_callback_that_enters_holds_harms_nobody(hand: ByHand) -> None:
    def start_again(lost: Term) -> None:
        hand.enter(3)

    hold_of(hand.store, hand.keeper, 1, on_lost=start_again).__enter__()
    (second,) = hand.enter(2)
    hand.clock.advance(60)
    hand.keeper.declare_lost()

    assert second.lost
    assert [term.key for term in hand.keeper.holds] == [3]


# Requests that hang


def hanging(hand: ByHand, step: float) -> Callable[[Grants], Renewals]:
    """An answer that never comes: the keeper looks every ``step`` seconds until it is cut off."""

    def answer(grants: Grants) -> Renewals:
        while not hand.store.aborted:
            hand.clock.advance(step)
            hand.keeper.cut_off()
        raise ConnectionError("cut off")

    return answer


def test_a_request_that_outlasts_its_limit_is_cut_off_once(hand: ByHand) -> None:
    hand.enter()

    def hang(grants: Grants) -> Renewals:
        for seconds, times in ((7.4, 0), (0.2, 1), (10, 1)):
            hand.clock.advance(seconds)
            hand.keeper.cut_off()
            assert hand.store.aborted == times
            assert hand.keeper.draining == bool(times)
        raise ConnectionError("cut off")

    hand.store.answer = hang
    hand.clock.advance(12)
    hand.keeper.renew_due()
    hand.keeper.cut_off()

    assert hand.store.aborted == 1
    assert hand.keeper.draining, "the failure itself has opened the breaker"


def test_each_hold_has_the_limit_of_its_own_interval(hand: ByHand) -> None:
    for key, ttl in ((1, 1), (2, 9), (3, 10)):
        hand.enter(key, ttl=ttl)
    for term in hand.keeper.holds:
        hand.keeper.renew_now(term)
    hand.after(0)

    assert [list(call) for call in hand.store.calls] == [[1], [2, 3]]
    assert hand.store.timeouts == [keeper_module.SHORTEST_LIMIT, 1.5]


def test_a_hold_lasts_on_a_slow_database_whatever_short_ones_come_beside_it(hand: ByHand) -> None:
    (hold,) = hand.enter("long", ttl=9)

    def answer_slowly(grants: Grants) -> Renewals:
        limit = hand.store.timeouts[-1]
        hand.clock.advance(min(limit, 0.4))
        if limit < 0.4:
            raise ConnectionError("it took too long")
        return FakeStore.renew_all(grants)

    hand.store.answer = answer_slowly
    ends_at = hand.now + 60
    while hand.now < ends_at:
        hand.enter(hand.now, ttl=1)
        while len(hand.keeper.holds) > 1:
            hand.after(0.02)

    assert hold.valid


def test_a_request_that_hangs_gives_way_to_the_last_chance_of_a_shorter_hold(
    hand: ByHand,
) -> None:
    hand.enter(ttl=9)
    hand.clock.advance(3)
    (short,) = hand.enter(ttl=1, store=FakeStore())
    began_at = hand.now

    hand.store.answer = hanging(hand, 0.01)
    hand.keeper.renew_due()
    assert hand.now - began_at < 0.5 < 1.5 * keeper_module.CUT_OFF
    hand.after(max(0.0, began_at + 0.334 - hand.now))

    assert short.valid
    assert short.trusted_until > hand.now + 0.5


@pytest.mark.parametrize("why_not", ["it had its chance", "it is not due", "its own renewals fail"])
def test_a_request_gives_way_to_nobody_whom_that_would_not_help(why_not: str, hand: ByHand) -> None:
    other = FakeStore()
    hand.enter(ttl=9)
    # Trusted for 0.8 s, due after a third of one, and of use until 0.425 s.
    hand.clock.advance(2.5 if why_not == "it had its chance" else 3)
    margin = 0.33 if why_not == "it is not due" else None
    with override_settings(LEASING={"JITTER": 0, "MARGIN": margin}):
        hand.enter(ttl=1, store=other)
    hand.clock.now += 0.5 if why_not == "it had its chance" else 0
    if why_not == "its own renewals fail":
        other.answer = other.fail
        hand.keeper.renew_now(hand.keeper.holds[-1])
    else:
        other.answer = other.all_busy
    began_at = hand.now

    hand.store.answer = hanging(hand, 0.1)
    hand.keeper.renew_due()

    assert hand.now - began_at >= 1.5 * keeper_module.CUT_OFF


# Notes


def test_notes_wait_while_a_renewal_is_due(hand: ByHand) -> None:
    hand.enter()
    written: list[int] = []

    def slow(number: int) -> None:
        hand.clock.advance(6)
        written.append(number)

    for number in range(5):
        hand.keeper.soon(partial(slow, number))

    hand.keeper.write_notes()
    assert written == [0, 1]
    hand.keeper.renew_due()
    hand.keeper.write_notes()
    assert written == [0, 1, 2, 3]


def test_a_note_that_fails_waits_with_all_behind_it_and_is_tried_again(
    hand: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[str] = []
    errors = [ConnectionError("the database is away")]

    def first() -> None:
        if errors:
            raise errors.pop()
        written.append("first")

    hand.keeper.soon(first)
    hand.keeper.soon(lambda: written.append("second"))

    hand.keeper.write_notes()
    assert written == []
    assert "keeper.note_waits" in logged(caplog, error="the database is away")
    hand.clock.advance(keeper_module.NOTE_PAUSE / 2)
    hand.keeper.write_notes()
    assert written == []
    hand.clock.advance(keeper_module.NOTE_PAUSE / 2)
    hand.keeper.write_notes()
    assert written == ["first", "second"]


def test_of_too_many_notes_the_oldest_give_way(hand: ByHand) -> None:
    written: list[int] = []
    for number in range(keeper_module.MAX_NOTES + 10):
        hand.keeper.soon(partial(written.append, number))
    hand.keeper.write_notes()

    assert written == [*range(10, keeper_module.MAX_NOTES + 10)]


def test_a_note_that_hangs_is_cut_off_too(hand: ByHand) -> None:
    aborted: list[bool] = []

    def hang() -> None:
        hand.clock.advance(keeper_module.NOTE_LIMIT * keeper_module.CUT_OFF)
        hand.keeper.cut_off()

    hand.keeper.soon(hang, lambda: aborted.append(True))
    hand.keeper.write_notes()

    assert aborted == [True]
    assert not hand.keeper.draining
