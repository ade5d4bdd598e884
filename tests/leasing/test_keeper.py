"""The keeper's renewals, and its handling of the answer. No threads, no time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import override_settings

from leasing.hold import Hold
from leasing.hold.trust import margin
from leasing.keeper import Keeper
from leasing.store import Renewal, Renewals
from tests.leasing.support import FakeClock, FakeStore, enter, far_away

pytestmark = pytest.mark.usefixtures("without_jitter")


# What is due


def test_nothing_is_renewed_before_it_is_due(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 1, ttl=30)

    clock.advance(8.9)
    manual_keeper.renew_due()

    assert store.calls == []


def test_what_is_due_is_renewed_and_due_again_an_interval_later(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)

    clock.advance(10)
    manual_keeper.renew_due()

    assert store.calls == [{1: hold.grant_id}]
    assert hold._held.due_at == clock.now + 10
    assert hold.trusted_until == clock.now + 30 - margin(30)
    assert hold.expires_at == far_away()


def test_what_is_nearly_due_rides_along(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 1, ttl=30)
    clock.advance(0.9)
    enter(store, manual_keeper, 2, ttl=30)
    clock.advance(9.1)
    manual_keeper.renew_due()

    assert [set(call) for call in store.calls] == [{1, 2}]


def test_holds_of_one_store_are_renewed_in_one_call_and_others_apart(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    other = FakeStore()
    enter(store, manual_keeper, 1, 2, 3)
    enter(other, manual_keeper, 1)

    clock.advance(10)
    manual_keeper.renew_due()

    assert [set(call) for call in store.calls] == [{1, 2, 3}]
    assert [set(call) for call in other.calls] == [{1}]


class MeteredStore(FakeStore):
    is_metered = True


@pytest.mark.parametrize("kind", [FakeStore, MeteredStore])
def test_a_metered_store_gets_one_request_an_interval_however_many_holds_come(
    manual_keeper: Keeper, clock: FakeClock, kind: type[FakeStore]
) -> None:
    store, other = kind(), FakeStore()
    began, sent, holds = clock.now, [], 0
    with override_settings(LEASING={"JITTER": 0.15}):
        enter(other, manual_keeper, 1, ttl=2)
        for moment in range(0, 600, 1):
            if moment % 3 == 0 and holds < 90:
                enter(store, manual_keeper, holds, ttl=30)
                holds += 1
            clock.now = began + moment
            before = len(store.calls)
            manual_keeper.renew_due()
            manual_keeper.declare_lost()
            sent += [moment] * (len(store.calls) - before)

    apart = min(later - earlier for earlier, later in zip(sent, sent[1:], strict=False))
    assert (apart >= 10 and len(sent) <= 60) is (kind is MeteredStore)
    assert len(store.losses) == 0
    assert len(store.calls[-1]) == 90 or kind is FakeStore


def test_more_than_a_thousand_holds_are_renewed_in_batches(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    holds = enter(store, manual_keeper, *range(2001))

    clock.advance(10)
    manual_keeper.renew_due()

    assert [len(call) for call in store.calls] == [1000, 1000, 1]
    assert {key for call in store.calls for key in call} == set(range(2001))
    assert all(hold._held.due_at > clock.now for hold in holds)


def test_two_grants_of_one_key_are_renewed_apart(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    """A process that lost a row and won it again may for a moment hold both grants."""
    old, new = enter(store, manual_keeper, "same", "same")
    store.answer = lambda grants: Renewals(
        renewed={k: Renewal(far_away(), 30) for k, g in grants.items() if g == new.grant_id},
        lost={k: "superseded" for k, g in grants.items() if g != new.grant_id},
    )

    clock.advance(10)
    manual_keeper.renew_due()

    assert store.calls == [{"same": old.grant_id}, {"same": new.grant_id}]
    assert old.lost.is_set()
    assert new.valid


def test_a_renewal_may_take_half_of_the_shortest_interval_of_all_that_is_held(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 1, ttl=30)
    enter(FakeStore(), manual_keeper, 2, ttl=60)

    clock.advance(20)
    manual_keeper.renew_due()

    assert store.timeouts == [5]


def test_renewals_are_spread_by_the_jitter(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    with override_settings(LEASING={"JITTER": 0.15}):
        holds = enter(store, manual_keeper, *range(100), ttl=30)

    after = sorted(hold._held.due_at - clock.now for hold in holds)
    assert 8.5 <= after[0] < 9.5 < 10.5 < after[-1] <= 11.5


def test_who_hurries_while_a_renewal_is_under_way_is_renewed_once_more(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)

    def renew_meanwhile(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        clock.advance(0.1)
        manual_keeper.renew_now(hold._held)
        return FakeStore.renew_all(grants)

    store.answer = renew_meanwhile
    clock.advance(10)
    manual_keeper.renew_due()
    store.answer = FakeStore.renew_all

    assert hold._held.due_at == clock.now
    manual_keeper.renew_due()
    assert len(store.calls) == 2
    assert hold._held.due_at == clock.now + 10


def test_what_was_discarded_is_not_renewed(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1)
    manual_keeper.discard(hold._held)

    clock.advance(10)
    manual_keeper.renew_due()

    assert store.calls == []


# What comes back


def test_the_time_that_the_answer_took_is_not_trusted(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)

    def answer_slowly(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        clock.advance(4)
        return FakeStore.renew_all(grants)

    store.answer = answer_slowly
    clock.advance(10)
    sent_at = clock.now
    manual_keeper.renew_due()

    assert hold.trusted_until == sent_at + 30 - margin(30)


def test_what_the_store_says_is_lost_is_lost_with_its_reason(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    lost, kept = enter(store, manual_keeper, 1, 2)
    store.answer = lambda grants: Renewals(
        renewed={2: Renewal(far_away(), 30)}, lost={1: "thief has held it"}
    )

    clock.advance(10)
    manual_keeper.renew_due()

    assert lost.lost.is_set()
    assert store.losses == ["thief has held it"]
    assert kept.valid
    assert manual_keeper.holds == [kept._held]


def test_busy_rows_are_tried_again_shortly_and_are_not_trusted_longer(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)
    trusted_until = hold.trusted_until
    store.answer = store.all_busy

    clock.advance(10)
    manual_keeper.renew_due()

    assert clock.now + 0.2 <= hold._held.due_at <= clock.now + 0.5
    assert hold.trusted_until == trusted_until
    assert not hold.lost.is_set()
    assert not manual_keeper.draining

    store.answer = store.renew_all
    clock.now = hold._held.due_at
    manual_keeper.renew_due()
    assert hold.trusted_until == clock.now + 30 - margin(30)


def test_a_row_that_stays_busy_is_lost_when_its_trust_ends(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    (hold,) = enter(store, manual_keeper, 1, ttl=30)
    store.answer = store.all_busy

    while clock.now < hold.trusted_until:
        clock.advance(0.1)
        manual_keeper.renew_due()
        assert not hold.lost.is_set()
        if clock.now >= hold.trusted_until:
            break
    manual_keeper.declare_lost()

    assert hold.lost.is_set()


def test_an_answer_to_a_term_that_was_released_meanwhile_is_no_loss(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    reported: list[Hold] = []
    (hold,) = enter(store, manual_keeper, 1, on_lost=reported.append)

    def released_meanwhile(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        hold.release()
        return FakeStore.lose_all(grants)

    store.answer = released_meanwhile
    clock.advance(10)
    manual_keeper.renew_due()

    assert reported == []
    assert not hold.lost.is_set()


def test_an_answer_to_the_term_before_does_not_end_the_next_one(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    """A hold may be left and entered again while a renewal of its last term is under way."""
    (hold,) = enter(store, manual_keeper, 1)

    def left_and_entered_again(grants: Mapping[Any, uuid.UUID]) -> Renewals:
        hold.__exit__(None, None, None)
        hold.__enter__()
        return FakeStore.lose_all(grants)

    store.answer = left_and_entered_again
    clock.advance(10)
    manual_keeper.renew_due()

    assert hold.valid


def test_renewals_that_were_granted_are_counted(
    store: FakeStore, manual_keeper: Keeper, clock: FakeClock
) -> None:
    enter(store, manual_keeper, 2, ttl=30)
    for _ in range(2):
        clock.advance(10)
        manual_keeper.renew_due()

    assert manual_keeper.renewals == 2
