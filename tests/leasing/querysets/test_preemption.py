"""Grace, the longest hold, priority, and metadata: what a named lease may be granted with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from leasing import signals
from leasing.exceptions import LeaseHeld, LeaseLost, LeaseTimeout
from leasing.functions import after
from leasing.holding.term import Term
from leasing.models import Lease, LeaseEvent
from leasing.stores import portable
from leasing.testing.keeper import ManualKeeper
from tests.factories import make_lease
from tests.leasing.stopped import Waits
from tests.leasing.support import PATIENCE, events, expire, grants, stored, usurp

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked() -> Iterator[list[tuple[Lease, str]]]:
    """Every holder that was asked to yield, and by whom."""
    heard: list[tuple[Lease, str]] = []

    def receiver(lease: Lease, by: str, **_: Any) -> None:
        heard.append((lease, by))

    signals.preempted.connect(receiver)
    yield heard
    signals.preempted.disconnect(receiver)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def row(resource: str = "crane:1") -> Lease:
    return Lease.objects.get(resource=resource)


# Grace: after an expiry nobody else gets it for a while


def test_an_expired_lease_is_nobodys_until_its_grace_is_over(clocks: ManualKeeper) -> None:
    first = Lease.objects.acquire("crane:1", holder="ann", ttl=10, grace=5)

    clocks.advance(12)
    with pytest.raises(LeaseHeld) as refusal:
        Lease.objects.acquire("crane:1", holder="bob")

    assert refusal.value.holder == "ann"
    assert refusal.value.expires_at == first.expires_at + seconds(5)
    assert not Lease.objects.active().exists()

    clocks.advance(3)
    assert Lease.objects.acquire("crane:1", holder="bob").grants == 2
    assert events("crane:1") == ["acquired", "taken_over"]


def test_just_before_its_end_the_grace_holds(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("crane:1", ttl=10, grace=5)

    clocks.advance(14.999)
    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1")


def test_the_grace_begins_with_the_last_deadline(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("crane:1", ttl=10, grace=5)
    clocks.advance(9)
    Lease.objects.renew(lease)

    clocks.advance(14)
    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1")
    clocks.advance(1)
    Lease.objects.acquire("crane:1")


def test_an_expired_holder_is_lost_though_its_grace_runs(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("crane:1", ttl=10, grace=5)
    clocks.advance(11)

    with pytest.raises(LeaseLost, match="it expired at"):
        Lease.objects.renew(lease)


@pytest.mark.parametrize("state", ["released", "revoked"])
def test_what_was_given_back_or_taken_back_has_no_grace(state: str, clocks: ManualKeeper) -> None:
    make_lease(resource="crane:1", ttl=10, grace=5, state=state)

    assert Lease.objects.acquire("crane:1").grants == 2


@pytest.mark.usefixtures("portable")
def test_what_was_given_back_is_tried_again_where_another_try_met_it(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody has locked the row for a moment: its grace is none of a released row."""
    lease = Lease.objects.acquire("crane:1", holder="ann", grace=5)
    Lease.objects.release(lease)
    grant = portable.grant
    missed: list[list[Any]] = [[]]

    def once_in_vain(*asked: Any, **key: Any) -> Any:
        return missed.pop() if missed else grant(*asked, **key)

    monkeypatch.setattr(portable, "grant", once_in_vain)
    assert Lease.objects.acquire("crane:1", holder="bob").grants == 2


def test_the_grace_is_the_holders_and_not_the_next_ones(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("crane:1", ttl=10)
    clocks.advance(10)

    assert Lease.objects.acquire("crane:1", ttl=10, grace=60).grants == 2


def test_the_next_grant_has_a_grace_of_its_own(clocks: ManualKeeper) -> None:
    Lease.objects.release(Lease.objects.acquire("crane:1", ttl=10, grace=60))
    Lease.objects.acquire("crane:1", ttl=10)
    clocks.advance(10)

    assert Lease.objects.acquire("crane:1").grants == 3


def test_a_grace_for_all_is_a_setting(clocks: ManualKeeper) -> None:
    with override_settings(LEASING={"GRACE": 5}):
        Lease.objects.acquire("crane:1", ttl=10)
        clocks.advance(12)
        with pytest.raises(LeaseHeld):
            Lease.objects.acquire("crane:1")


def test_who_waits_gets_it_when_the_grace_is_over(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    Waits(clocks, monkeypatch)
    Lease.objects.acquire("crane:1", ttl=10, grace=5)

    Lease.objects.acquire("crane:1", wait=60)

    assert 15 <= clocks.passed <= 16


# The longest hold


def test_renewals_never_move_the_deadline_beyond_the_longest_hold(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("crane:1", ttl=10, max_hold=25)
    assert lease.acquired_at is not None
    end = lease.acquired_at + seconds(25)
    found = []
    for _ in range(4):
        clocks.advance(6)
        Lease.objects.renew(lease)
        found.append(end - lease.expires_at)

    assert found == [seconds(9), seconds(3), seconds(0), seconds(0)]
    clocks.advance(1)
    with pytest.raises(LeaseLost, match="it expired at"):
        Lease.objects.renew(lease)


def test_a_hold_ends_with_its_longest_time_and_says_so(clocks: ManualKeeper) -> None:
    reported: list[Term] = []
    hold = Lease.objects.hold("crane:1", ttl=10, max_hold=25, on_lost=reported.append)
    with pytest.raises(LeaseLost, match="its maximum hold time"), hold:
        clocks.advance(24)
        assert hold.term.valid
        clocks.advance(1)
        assert hold.term.lost.is_set()
        assert row().expires_at > clocks.now - seconds(0.001)  # told before others get it

    assert reported == [hold.term]


def test_the_renewal_that_reaches_the_longest_time_is_the_last(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("crane:1", ttl=10, max_hold=25)
    last = []
    for _ in range(2):
        clocks.advance(9)
        last.append(Lease.objects.renew_many(grants(lease)).renewed[lease.pk].is_last)

    assert last == [False, True]


def test_without_a_longest_hold_a_lease_is_renewed_for_ever(clocks: ManualKeeper) -> None:
    with Lease.objects.hold("crane:1", ttl=10) as hold:
        clocks.advance(120)
        hold.ensure()


def test_the_next_grant_has_no_longest_hold_of_the_one_before(clocks: ManualKeeper) -> None:
    Lease.objects.release(Lease.objects.acquire("crane:1", ttl=10, max_hold=10))

    with Lease.objects.hold("crane:1", ttl=10) as hold:
        clocks.advance(60)
        hold.ensure()


# Priority


def test_a_higher_priority_alone_takes_nothing(
    clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    Lease.objects.acquire("crane:1", holder="ann", priority=1)
    before = stored(row())

    with pytest.raises(LeaseHeld, match="held by ann"):
        Lease.objects.acquire("crane:1", holder="bob", priority=9)

    assert stored(row()) == before
    assert (row().ends_at, row().yield_to, asked) == (None, "", [])


@pytest.mark.parametrize("priority", [4, 5], ids=["lower", "the same"])
def test_no_more_than_the_holders_priority_asks_for_nothing(
    priority: int, clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    Lease.objects.acquire("crane:1", holder="ann", priority=5)

    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1", priority=priority, preempt_after=0)

    assert (row().ends_at, row().yield_to, asked) == (None, "", [])
    assert events("crane:1") == ["acquired"]


def ask(by: str = "bob", priority: int = 9, preempt_after: float = 0) -> None:
    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1", holder=by, priority=priority, preempt_after=preempt_after)


def test_a_higher_priority_asks_the_holder_to_yield(
    clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    held = Lease.objects.acquire("crane:1", holder="ann", ttl=10)

    ask(by="bob", preempt_after=60)

    assert (row().holder, row().yield_to) == ("ann", "bob")
    assert row().ends_at == clocks.now + seconds(60)
    assert [(lease.pk, by) for lease, by in asked] == [(held.pk, "bob")]
    event = LeaseEvent.objects.get(kind="preempted")
    assert (event.holder, event.actor, event.grant_id) == ("ann", "bob", held.grant_id)
    assert event.reason == "asked to yield to bob"


def test_what_the_holder_was_promised_is_kept(clocks: ManualKeeper) -> None:
    """Its own clock lets it believe until then, so nobody may have it before."""
    held = Lease.objects.acquire("crane:1", holder="ann", ttl=10)

    ask(preempt_after=0)

    assert row().ends_at == held.expires_at
    assert row().expires_at == held.expires_at
    clocks.advance(9.999)
    ask()
    clocks.advance(0.001)
    assert Lease.objects.acquire("crane:1", holder="bob").holder == "bob"


def test_renewals_go_on_until_the_end_that_was_set(clocks: ManualKeeper) -> None:
    held = Lease.objects.acquire("crane:1", holder="ann", ttl=10)
    ask(preempt_after=15)
    end = clocks.now + seconds(15)

    clocks.advance(3)
    Lease.objects.renew(held)
    assert held.expires_at == clocks.now + seconds(10)
    clocks.advance(9)
    Lease.objects.renew(held)
    assert held.expires_at == end


def test_the_holder_hears_of_it_once_and_loses_it_at_the_end(clocks: ManualKeeper) -> None:
    yielding: list[Term] = []
    reported: list[Term] = []
    hold = Lease.objects.hold(
        "crane:1", holder="ann", ttl=10, on_yield=yielding.append, on_lost=reported.append
    )
    with pytest.raises(LeaseLost, match="preempted by bob, which has a higher priority"), hold:
        assert hold.term.yield_to == ""
        ask(by="bob", preempt_after=30)
        clocks.advance(5)
        assert (yielding, hold.term.yield_to) == ([hold.term], "bob")
        clocks.advance(20)
        assert hold.term.valid
        clocks.advance(5)
        assert not hold.term.valid

    assert (yielding, reported) == ([hold.term], [hold.term])
    assert Lease.objects.acquire("crane:1", holder="bob", priority=9).grants == 2
    assert events("crane:1") == ["acquired", "preempted", "lost", "taken_over"]


def test_another_asking_too_is_not_told_again(clocks: ManualKeeper) -> None:
    yielding: list[Term] = []
    with (
        pytest.raises(LeaseLost, match="preempted by cid"),
        Lease.objects.hold("crane:1", ttl=10, on_yield=yielding.append) as hold,
    ):
        ask(by="bob", preempt_after=30)
        clocks.advance(5)
        ask(by="cid", preempt_after=10)
        clocks.advance(5)
        assert (yielding, hold.yield_to) == ([hold], "cid")
        clocks.advance(5)


def test_asking_again_never_moves_the_end_away(
    clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    """A waiter asks with every poll."""
    Lease.objects.acquire("crane:1", ttl=10)
    ask(preempt_after=20)
    end = row().ends_at
    clocks.advance(5)

    ask(preempt_after=20)
    ask(by="cid", preempt_after=15)

    assert (row().ends_at, row().yield_to) == (end, "bob")
    assert len(asked) == 1


def test_who_is_in_a_greater_hurry_brings_the_end_nearer(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("crane:1", ttl=10)
    ask(by="bob", preempt_after=60)

    ask(by="cid", preempt_after=20)

    assert (row().ends_at, row().yield_to) == (clocks.now + seconds(20), "cid")


def test_a_hold_that_ends_sooner_anyway_is_not_asked(
    clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    held = Lease.objects.acquire("crane:1", ttl=10, max_hold=12)

    ask(preempt_after=20)

    assert row().ends_at == held.acquired_at + seconds(12)  # type: ignore[operator]
    assert (row().yield_to, asked) == ("", [])


def test_a_longest_hold_that_ends_later_gives_way(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("crane:1", ttl=10, max_hold=3600)

    ask(preempt_after=20)

    assert row().ends_at == clocks.now + seconds(20)


@pytest.mark.parametrize(
    "meanwhile",
    [
        usurp,
        expire,
        lambda lease: Lease.objects.release(lease),
        lambda lease: Lease.objects.filter(pk=lease.pk).revoke(),
    ],
    ids=["taken over", "expired", "released", "revoked"],
)
def test_only_the_grant_that_was_seen_is_asked(
    meanwhile: Any, clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    """Between the look and the asking it became another's, or nobody's."""
    seen = Lease.objects.acquire("crane:1", ttl=10)
    stale = Lease.objects.get()
    meanwhile(seen)
    before = Lease.objects.values().get()

    Lease.objects.all().home()._preempt(stale, "bob", 9, seconds(20))

    assert Lease.objects.values().get() == before
    assert asked == []


def test_a_release_that_only_its_mark_shows_is_not_asked(
    clocks: ManualKeeper, asked: list[tuple[Lease, str]]
) -> None:
    """By a clock that was set back since, the deadline of a released lease lies ahead."""
    lease = Lease.objects.acquire("crane:1", ttl=10)
    Lease.objects.filter(pk=lease.pk).update(
        released_at=after(seconds(60)), expires_at=after(seconds(50))
    )

    Lease.objects.all().home()._preempt(lease, "bob", 9, seconds(20))

    assert (row().yield_to, asked) == ("", [])


def test_the_next_grant_is_asked_by_nobody(clocks: ManualKeeper) -> None:
    held = Lease.objects.acquire("crane:1", ttl=10)
    ask(preempt_after=0)
    Lease.objects.release(held)

    taken = Lease.objects.acquire("crane:1", holder="bob", priority=9)

    assert (taken.yield_to, taken.ends_at, taken.priority) == ("", None, 9)


def test_who_waits_with_a_higher_priority_gets_it_at_the_deadline(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    Waits(clocks, monkeypatch)
    yielding: list[Term] = []
    hold = Lease.objects.hold("crane:1", holder="ann", ttl=10, on_yield=yielding.append)
    hold.__enter__()

    lease = Lease.objects.acquire("crane:1", holder="bob", priority=9, preempt_after=15, wait=60)

    assert lease.holder == "bob"
    assert 15 <= clocks.passed <= 16
    assert yielding == [hold.term]
    assert hold.term.lost.is_set()


def test_who_waits_with_no_higher_priority_waits_in_vain(
    clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    Waits(clocks, monkeypatch)
    with (
        Lease.objects.hold("crane:1", holder="ann", ttl=10, priority=9),
        pytest.raises(LeaseTimeout, match="held by ann"),
    ):
        Lease.objects.acquire("crane:1", priority=9, preempt_after=0, wait=12)


@pytest.mark.django_db(transaction=True)
def test_who_yields_early_hands_over_at_once() -> None:
    """With threads: the keeper tells the holder, whose release wakes the one who waits."""
    asked_to = threading.Event()
    hold = Lease.objects.hold("crane:1", holder="ann", ttl=60, on_yield=lambda _: asked_to.set())

    def take() -> Lease:
        try:
            return Lease.objects.acquire(
                "crane:1", holder="bob", priority=9, preempt_after=30, wait=PATIENCE
            )
        finally:
            connections.close_all()

    with (
        override_settings(LEASING={"RENEW_EVERY": 0.05, "JITTER": 0}),
        ThreadPoolExecutor(1) as crew,
    ):
        with hold:
            winner = crew.submit(take)
            assert asked_to.wait(PATIENCE)
            assert hold.term.yield_to == "bob"
            hold.term.ensure()
        lease = winner.result(PATIENCE)

    assert lease.holder == "bob"
    assert events("crane:1") == ["acquired", "preempted", "released", "acquired"]


# Metadata


def test_metadata_stands_on_the_row_until_the_next_grant(clocks: ManualKeeper) -> None:
    lease = Lease.objects.acquire("crane:1", metadata={"ticket": 42})
    Lease.objects.renew(lease)
    assert row().metadata == {"ticket": 42}

    Lease.objects.release(lease)
    assert row().metadata == {"ticket": 42}

    assert Lease.objects.acquire("crane:1").metadata == {}
    assert row().metadata == {}


def test_rows_can_be_found_by_their_metadata(clocks: ManualKeeper) -> None:
    Lease.objects.acquire("crane:1", metadata={"ticket": 42})
    Lease.objects.acquire("crane:2", metadata={"ticket": 7})

    assert [lease.resource for lease in Lease.objects.filter(metadata__ticket=42)] == ["crane:1"]


def test_a_stale_instance_saved_changes_nothing_of_these(clocks: ManualKeeper) -> None:
    stale = Lease.objects.acquire("crane:1", ttl=10, metadata={"by": "ann"}, max_hold=20)
    Lease.objects.release(stale)
    Lease.objects.acquire("crane:1", ttl=10, metadata={"by": "bob"}, priority=3, grace=7)
    before = Lease.objects.values().get()

    stale.save()

    assert Lease.objects.values().get() == before
