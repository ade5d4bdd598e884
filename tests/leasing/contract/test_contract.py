"""The contract of whatever can hold a lease. Time stands still, and is moved by the test."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from leasing.exceptions import InvalidTTL, LeaseHeld, LeaseLost, LeaseTimeout
from leasing.holding.term import Term, margin
from leasing.testing import (
    assert_free,
    assert_held,
    assert_lost,
    events_of,
    expire,
    hold_elsewhere,
    revoke,
)
from leasing.testing.keeper import ManualKeeper
from leasing.testing.subject import subject_of
from tests.leasing.contract.adapters import (
    ADAPTERS,
    Adapter,
    kinds,
    over,
    over_each,
    over_each_with_terms,
)
from tests.shop.models import Order

# Granting


@over_each
def test_what_is_free_is_granted_and_held_until_the_block_ends(thing: Adapter) -> None:
    assert_free(thing.what)
    with thing.hold(holder="me") as hold:
        assert hold.valid
        assert hold.holder == "me"
        assert_held(thing.what, by="me")
        assert_held(thing.what, by=hold)

    assert not hold.valid
    assert not hold.lost.is_set()
    assert_free(thing.what)
    assert kinds(thing) == ["acquired", "released"]


@over_each
def test_what_is_held_is_granted_to_nobody_else(thing: Adapter) -> None:
    with thing.hold(holder="me") as hold:
        with pytest.raises(LeaseHeld) as refusal, thing.hold(holder="other"):
            pytest.fail("two hold it")

        assert refusal.value.holder == "me"
        assert refusal.value.resource == hold.resource
        assert refusal.value.expires_at == hold.expires_at
        assert not isinstance(refusal.value, LeaseTimeout)
        hold.renew()


@over_each
def test_the_name_of_the_holder_opens_nothing(thing: Adapter) -> None:
    with thing.hold(holder="me"), pytest.raises(LeaseHeld), thing.hold(holder="me"):
        pytest.fail("two hold it")


@over_each
def test_every_grant_has_a_grant_id_of_its_own_and_a_greater_token(thing: Adapter) -> None:
    ids, tokens = set(), []
    for end in (None, expire, revoke, None, None):
        hold = thing.hold()
        tokens.append(thing.grant(hold).fencing_token)
        ids.add(thing.row.grant_id)
        (end or release_row)(thing.what)

    assert tokens == sorted(set(tokens))
    assert len(ids) == 5


def release_row(what: Any) -> None:
    place = subject_of(what)
    place.change({"released_at": place.look().now, "expires_at": place.look().now})


@over_each
def test_the_deadline_lies_a_ttl_ahead(thing: Adapter) -> None:
    with thing.hold(ttl=7) as hold:
        assert hold.expires_at == thing.row.expires_at
        assert thing.row.expires_at - thing.row.now == timedelta(seconds=7)
        assert thing.row.ttl == timedelta(seconds=7)


@over_each
def test_the_ttl_of_the_settings_is_the_default(thing: Adapter) -> None:
    with override_settings(LEASING={**settings_of(), "TTL": 11}), thing.hold():
        assert thing.row.ttl == timedelta(seconds=11)


def settings_of() -> dict[str, Any]:
    from leasing.conf import leasing_settings

    return dict(leasing_settings.given())


@over_each
@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e9, True, "10"])
def test_an_impossible_ttl_is_refused_before_anything_happens(thing: Adapter, ttl: Any) -> None:
    with pytest.raises(InvalidTTL):
        thing.hold(ttl=ttl)
    assert_free(thing.what)


@over_each
def test_a_hold_can_be_entered_again_once_it_was_left(thing: Adapter) -> None:
    hold = thing.hold()
    with hold:
        first = hold.term.fencing_token
        with pytest.raises(RuntimeError, match="in use"):
            hold.__enter__()
    with hold:
        assert hold.term.fencing_token > first
    assert_free(thing.what)


# Renewing


@over_each
def test_the_keeper_renews_it_for_as_long_as_the_block_runs(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    with thing.hold(ttl=10) as hold:
        clocks.advance(100)
        assert hold.valid
        assert_held(thing.what, by=hold)
        assert thing.row.renewals > 10
        assert thing.row.acquired_at + timedelta(seconds=100) == thing.row.now
    assert kinds(thing) == ["acquired", "released"]


@over_each
def test_a_renewal_moves_the_deadline_to_a_ttl_from_then(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    with thing.hold(ttl=30) as hold:
        before = hold.expires_at
        clocks.frozen = True
        clocks.advance(20)
        assert thing.row.expires_at == before

        hold.renew()
        assert hold.expires_at == thing.row.expires_at == before + timedelta(seconds=20)
        assert thing.row.renewed_at == thing.row.now
        assert hold.trusted_until == pytest.approx(clocks.seconds + 30 - margin(30))


@over_each
def test_a_renewal_never_shortens(thing: Adapter, clocks: ManualKeeper) -> None:
    with thing.hold(ttl=10) as hold:
        far = hold.expires_at + timedelta(seconds=50)
        subject_of(thing.what).change({"expires_at": far})

        hold.renew()
        assert hold.expires_at == thing.row.expires_at == far


@over_each
def test_a_renewal_that_comes_too_late_is_refused(thing: Adapter, clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost, match="expired"), thing.hold() as hold:
        expire(thing.what)
        deadline = thing.row.expires_at

        with pytest.raises(LeaseLost, match="expired"):
            hold.renew()
        assert_lost(hold)
        assert thing.row.expires_at == deadline
        assert thing.row.renewals == 0


@over_each
def test_a_renewal_under_an_older_grant_is_refused(thing: Adapter, clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost, match="rival has held it"), thing.hold() as hold:
        expire(thing.what)
        rival = thing.take("rival")
        clocks.renew()

        assert_lost(hold, "rival has held it")
        assert_held(thing.what, by="rival")
        assert thing.row.expires_at == rival.expires_at


@over_each
def test_what_was_released_is_not_renewed(thing: Adapter, clocks: ManualKeeper) -> None:
    with thing.hold() as hold:
        hold.release()
        with pytest.raises(LeaseLost):
            hold.renew()
        clocks.advance(100)
    assert_free(thing.what)
    assert thing.row.renewals == 0


# Releasing


@over_each
def test_a_release_frees_it_long_before_the_deadline(thing: Adapter) -> None:
    with thing.hold(ttl=3600) as hold:
        hold.release()
        assert_free(thing.what)
        with thing.hold(holder="other"):
            assert_held(thing.what, by="other")


@over_each
def test_a_second_release_changes_nothing(thing: Adapter) -> None:
    with thing.hold() as hold:
        hold.release()
        with thing.hold(holder="other") as other:
            hold.release()
            assert_held(thing.what, by=other)
    assert kinds(thing).count("refused") == 0


@over_each
def test_a_release_twice_of_one_grant_is_no_error_for_the_store(thing: Adapter) -> None:
    hold = thing.hold()
    grant = thing.grant(hold)

    hold.store.release(grant)
    hold.store.release(grant)
    assert kinds(thing) == ["acquired", "released"]


@over_each
def test_a_release_under_an_older_grant_is_refused_and_noted(thing: Adapter) -> None:
    hold = thing.hold(holder="me")
    grant = thing.grant(hold)
    expire(thing.what)
    thing.take("rival")

    with pytest.raises(LeaseLost, match="rival has held it"):
        hold.store.release(grant)
    assert_held(thing.what, by="rival")
    assert kinds(thing) == ["acquired", "taken_over", "refused"]


@over_each
def test_a_release_after_the_deadline_is_refused(thing: Adapter) -> None:
    hold = thing.hold()
    grant = thing.grant(hold)
    expire(thing.what)

    with pytest.raises(LeaseLost, match="expired"):
        hold.store.release(grant)


@over_each
def test_what_was_given_back_is_free_though_the_clock_was_set_back(thing: Adapter) -> None:
    thing.take("before")
    set_ahead_of_the_clock(thing)
    assert_free(thing.what)

    with thing.hold(holder="next"):
        assert_held(thing.what, by="next")
    assert kinds(thing) == ["acquired", "acquired", "released"]


@over_each_with_terms
def test_what_was_given_back_has_no_grace_whatever_the_clock(thing: Adapter) -> None:
    thing.grant(thing.hold(grace=60))
    set_ahead_of_the_clock(thing)

    with thing.hold(holder="next"):
        assert_held(thing.what, by="next")


def set_ahead_of_the_clock(thing: Adapter) -> None:
    """Give it back by a clock that was set back since."""
    now = thing.row.now
    ahead = {"released_at": now + timedelta(seconds=60), "expires_at": now + timedelta(seconds=50)}
    subject_of(thing.what).change(ahead)


# Running out


@over_each
def test_what_ran_out_is_granted_to_the_next(thing: Adapter, clocks: ManualKeeper) -> None:
    dead = thing.take("dead", ttl=5)
    clocks.advance(4.9)
    with pytest.raises(LeaseHeld), thing.hold():
        pytest.fail("two hold it")

    clocks.advance(0.1)
    with thing.hold(holder="next") as hold:
        assert hold.fencing_token > dead.fencing_token
    (taken_over,) = [event for event in events_of(thing.what) if event.kind == "taken_over"]
    assert taken_over.previous_holder == "dead"
    assert taken_over.previous_expired_at == dead.expires_at


@over_each
def test_the_holder_hears_of_its_end_before_anybody_else_can_have_it(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    with pytest.raises(LeaseLost), thing.hold(ttl=30) as hold:
        clocks.frozen = True
        clocks.advance(30 - margin(30) - 0.001)
        assert hold.valid

        clocks.advance(0.002)
        assert_lost(hold, "not renewed in time")
        assert_held(thing.what, by=hold)


@over_each
def test_a_loss_is_never_undone_by_a_late_answer(thing: Adapter, clocks: ManualKeeper) -> None:
    with pytest.raises(LeaseLost), thing.hold(ttl=30) as hold:
        clocks.frozen = True
        clocks.advance(29.9)
        clocks.frozen = False
        clocks.renew()
        assert not hold.valid
        assert_lost(hold)


# Losing


@over_each
def test_a_revocation_frees_it_at_once_and_raises_the_token(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    with pytest.raises(LeaseLost), thing.hold() as hold:
        revoke(thing.what, reason="stuck", by="alice")
        assert_free(thing.what)
        assert thing.row.fencing_token > hold.fencing_token
        (event,) = [event for event in events_of(thing.what) if event.kind == "revoked"]
        assert (event.reason, event.actor) == ("stuck", "alice")

        clocks.renew()
        assert_lost(hold, "revoked")


@over_each
def test_a_revoked_holder_cannot_release_what_the_next_has(thing: Adapter) -> None:
    hold = thing.hold()
    grant = thing.grant(hold)
    revoke(thing.what)
    with pytest.raises(LeaseLost):
        hold.store.release(grant)

    thing.take("rival")
    with pytest.raises(LeaseLost):
        hold.store.release(grant)
    assert_held(thing.what, by="rival")


@over_each
def test_a_loss_is_told_in_every_way_and_once(thing: Adapter, clocks: ManualKeeper) -> None:
    reported: list[Term] = []
    with pytest.raises(LeaseLost, match="revoked"), thing.hold(on_lost=reported.append) as hold:
        revoke(thing.what)
        assert hold.valid  # nobody has asked yet
        clocks.renew()

        assert reported == [hold]
        assert hold.lost.is_set()
        assert not hold.valid
        with pytest.raises(LeaseLost):
            hold.ensure()
        clocks.advance(1000)
    assert reported == [hold]
    assert kinds(thing).count("lost") == 1


@over_each
def test_on_lost_is_not_called_for_what_was_released(thing: Adapter, clocks: ManualKeeper) -> None:
    reported: list[Term] = []
    with thing.hold(on_lost=reported.append):
        pass
    clocks.advance(1000)
    assert reported == []


@over_each
def test_ensure_finds_the_end_by_itself(thing: Adapter, clocks: ManualKeeper) -> None:
    reported: list[Term] = []
    with pytest.raises(LeaseLost), thing.hold(ttl=30, on_lost=reported.append) as hold:
        clocks.suspend(40)
        assert not hold.valid
        with pytest.raises(LeaseLost, match="not renewed in time"):
            hold.ensure()
        assert reported == [hold]


@over_each
def test_the_end_of_the_block_finds_a_revocation_that_nobody_heard_of(thing: Adapter) -> None:
    with pytest.raises(LeaseLost, match="revoked"), thing.hold():
        revoke(thing.what)


@over_each
def test_an_error_of_the_block_frees_it_and_is_raised(thing: Adapter) -> None:
    with pytest.raises(ZeroDivisionError), thing.hold():
        raise ZeroDivisionError
    assert_free(thing.what)


@over_each
def test_an_error_of_the_block_is_not_hidden_by_the_loss(thing: Adapter) -> None:
    with pytest.raises(ZeroDivisionError), thing.hold() as hold:
        expire(hold)
        raise ZeroDivisionError


@over_each
def test_a_lost_hold_can_be_entered_again(thing: Adapter, clocks: ManualKeeper) -> None:
    hold = thing.hold()
    with pytest.raises(LeaseLost), hold:
        expire(hold.term)
    with hold:
        assert hold.term.valid
        assert not hold.term.lost.is_set()
        clocks.advance(100)
        assert hold.term.valid


# Waiting


@over_each
def test_who_waits_gets_it_when_the_dead_holder_runs_out(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    thing.take("dead", ttl=5)
    with thing.hold(wait=60) as hold:
        assert hold.valid
        assert 5 <= clocks.passed <= 7


@over_each
def test_who_waited_in_vain_hears_who_has_it(thing: Adapter, clocks: ManualKeeper) -> None:
    with hold_elsewhere_of(thing) as rival:
        with pytest.raises(LeaseTimeout) as refusal, thing.hold(wait=5):
            pytest.fail("two hold it")
        assert refusal.value.holder == rival.holder
        assert clocks.passed == pytest.approx(5)


def hold_elsewhere_of(thing: Adapter) -> Any:
    assert not isinstance(thing.what, Term)
    return hold_elsewhere(thing.what)


@over_each
def test_the_wait_of_the_settings_is_the_default(thing: Adapter, clocks: ManualKeeper) -> None:
    with (
        override_settings(LEASING={**settings_of(), "WAIT": 3}),
        hold_elsewhere_of(thing),
        pytest.raises(LeaseTimeout),
        thing.hold(),
    ):
        pytest.fail("two hold it")
    assert clocks.passed == pytest.approx(3)


@over_each
def test_who_waits_goes_on_renewing_what_else_it_holds(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    from leasing.models import Lease

    with Lease.objects.hold("other", ttl=10) as other, hold_elsewhere_of(thing):
        with pytest.raises(LeaseTimeout), thing.hold(wait=30):
            pytest.fail("two hold it")
        assert other.valid


# Terms


@over_each_with_terms
def test_metadata_stands_on_the_lease_until_the_next_grant(thing: Adapter) -> None:
    with thing.hold(metadata={"job": 7}):
        assert thing.row.metadata == {"job": 7}
    with thing.hold():
        assert thing.row.metadata == {}


@over_each_with_terms
def test_a_hold_ends_at_its_maximum(thing: Adapter, clocks: ManualKeeper) -> None:
    with (
        pytest.raises(LeaseLost, match="maximum hold time"),
        thing.hold(ttl=10, max_hold=35) as hold,
    ):
        granted = hold.expires_at - timedelta(seconds=10)
        clocks.advance(34)
        assert hold.valid
        assert hold.expires_at == granted + timedelta(seconds=35)

        clocks.advance(1)
        assert_lost(hold, "maximum hold time")
        assert_free(thing.what)


@over_each_with_terms
def test_the_grace_of_a_dead_holder_is_waited_for(thing: Adapter, clocks: ManualKeeper) -> None:
    thing.grant(thing.hold(holder="dead", ttl=5, grace=20))
    clocks.advance(6)
    with pytest.raises(LeaseHeld) as refusal, thing.hold():
        pytest.fail("the grace runs")
    assert refusal.value.expires_at == thing.row.expires_at + timedelta(seconds=20)
    with pytest.raises(AssertionError):
        assert_free(thing.what)

    clocks.advance(19)
    assert_free(thing.what)
    with thing.hold():
        pass


@over_each_with_terms
def test_a_release_has_no_grace(thing: Adapter) -> None:
    with thing.hold(grace=20):
        pass
    with thing.hold():
        pass


@over_each_with_terms
def test_a_higher_priority_asks_the_holder_to_yield_and_gets_it_at_the_deadline(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    asked: list[Term] = []
    with pytest.raises(LeaseLost, match="boss"), thing.hold(ttl=10, on_yield=asked.append) as hold:
        with pytest.raises(LeaseHeld), thing.hold(holder="boss", priority=5, preempt_after=30):
            pytest.fail("two hold it")
        assert asked == []

        clocks.advance(25)
        assert asked == [hold]
        assert hold.yield_to == "boss"
        assert hold.valid

        clocks.advance(5)
        assert_lost(hold, "preempted by boss")
        with thing.hold(holder="boss", priority=5) as after:
            assert after.yield_to == ""
    assert "preempted" in kinds(thing)


@over_each_with_terms
def test_who_was_asked_is_not_asked_for_less_than_it_was_promised(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    with thing.hold(ttl=10) as hold:
        promised = hold.expires_at
        with pytest.raises(LeaseHeld), thing.hold(priority=1, preempt_after=0):
            pytest.fail("two hold it")
        hold.renew()
        assert hold.expires_at == promised
        hold.release()


@over_each_with_terms
@pytest.mark.parametrize("priority", [-1, 0])
def test_no_higher_priority_asks_for_nothing(
    thing: Adapter, clocks: ManualKeeper, priority: int
) -> None:
    with thing.hold(ttl=10) as hold:
        with pytest.raises(LeaseHeld), thing.hold(priority=priority, preempt_after=0):
            pytest.fail("two hold it")
        clocks.advance(100)
        assert hold.valid
        assert hold.yield_to == ""


@over_each_with_terms
def test_who_waits_with_priority_gets_it_from_a_holder_that_yields(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    held = thing.hold(ttl=10, on_yield=Term.release)
    with held, thing.hold(priority=1, preempt_after=60, wait=60) as hold:
        assert hold.valid
        assert not held.term.valid
        assert not held.term.lost.is_set()


# Still mine


over_each_with_a_database = pytest.mark.parametrize(
    "adapter_class", [pytest.param(a, id=a.name.replace(" ", "-")) for a in ADAPTERS]
)


@pytest.mark.django_db
@over_each_with_a_database
def test_what_is_written_while_it_is_still_mine_stays(thing: Adapter) -> None:
    with thing.hold() as hold, hold.still_mine():
        Order.objects.create(article="bell")
    assert Order.objects.filter(article="bell").exists()


@pytest.mark.django_db
@over_each_with_a_database
def test_what_is_written_after_the_loss_is_rolled_back(
    thing: Adapter, clocks: ManualKeeper
) -> None:
    with pytest.raises(LeaseLost), thing.hold(ttl=30) as hold, hold.still_mine():
        Order.objects.create(article="bell")
        clocks.frozen = True
        clocks.suspend(31)
    assert not Order.objects.filter(article="bell").exists()
    assert "refused" in kinds(thing)


@pytest.mark.django_db
@over_each_with_a_database
def test_the_block_is_not_entered_when_it_is_not_mine_any_more(thing: Adapter) -> None:
    with pytest.raises(LeaseLost), thing.hold() as hold:
        revoke(thing.what)
        with hold.still_mine():
            pytest.fail("it was revoked")


# Several rows at once


@over(*(a for a in ADAPTERS if a.name == "row of a model"))
class TestClaim:
    def test_it_takes_so_many_of_the_free_ones_in_their_order(self, thing: Adapter) -> None:
        orders: list[Any] = [thing.what, *(Order.objects.create(article=f"{n}") for n in range(4))]
        thing.take("rival")

        with Order.objects.claim(2, holder="me") as claimed:
            assert list(claimed) == orders[1:3]
            for order in claimed:
                assert_held(order, by="me")
            with Order.objects.order_by("-pk").claim(9) as rest:
                assert list(rest) == orders[:2:-1]
        for order in orders[1:]:
            assert_free(order)

    def test_all_are_renewed_while_the_block_runs(
        self, thing: Adapter, clocks: ManualKeeper
    ) -> None:
        Order.objects.create(article="second")
        with Order.objects.claim(2, ttl=10) as claimed:
            clocks.advance(100)
            claimed.ensure()
            assert [hold.valid for hold in claimed.holds] == [True, True]

    def test_one_that_was_lost_is_told_after_the_others_were_released(
        self, thing: Adapter, clocks: ManualKeeper
    ) -> None:
        second = Order.objects.create(article="second")
        with pytest.raises(LeaseLost, match="revoked"), Order.objects.claim(2) as claimed:
            revoke(thing.what)
            clocks.renew()
            with pytest.raises(LeaseLost):
                claimed.ensure()
        assert_free(second)

    def test_nothing_free_is_an_empty_list(self, thing: Adapter) -> None:
        thing.take("rival")
        with Order.objects.claim(3) as claimed:
            assert claimed == []
