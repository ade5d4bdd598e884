"""Holds on rows of the database, kept by a keeper whose clock is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation

from leasing.exceptions import InvalidResource, InvalidTTL, LeaseHeld, LeaseLost
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term
from leasing.models import Lease, LeaseEvent
from leasing.models.lease import LeaseQuerySet
from leasing.stores.rows import RowStore
from tasks.models import Task
from tests.factories import make_lease
from tests.keys.models import ByUuid
from tests.leasing.conftest import Sent
from tests.leasing.support import FakeClock, events, expire, row_hold, stored, usurp
from tests.shop.models import Order

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("notes")]


def test_a_hold_acquires_renews_and_releases_its_row(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    with row_hold(manual_keeper, ttl=30) as hold:
        lease = Lease.objects.get()
        assert hold.grant_id == lease.grant_id
        assert (hold.holder, hold.resource) == (lease.holder, "crane:1")
        assert (hold.fencing_token, hold.expires_at) == (lease.fencing_token, lease.expires_at)

        clock.advance(11)
        manual_keeper.renew_due()
        lease.refresh_from_db()
        assert lease.renewals == 1
        assert hold.expires_at == lease.expires_at

    assert stored(lease)["released_at"] is not None
    assert events("crane:1") == ["acquired", "released"]


def test_a_hold_on_a_held_lease_is_refused(manual_keeper: Keeper) -> None:
    make_lease(resource="crane:1", holder="bob")

    with pytest.raises(LeaseHeld, match="held by bob"), row_hold(manual_keeper):
        pytest.fail("the body must not run")


def test_a_revoked_hold_hears_of_it_with_the_next_renewal(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    reported: list[Term] = []
    hold = row_hold(manual_keeper, on_lost=reported.append)
    with pytest.raises(LeaseLost, match="revoked or released"), hold:
        Lease.objects.revoke("enough", "root")
        clock.advance(11)
        manual_keeper.renew_due()
        assert hold.term.lost.is_set()

    assert reported == [hold.term]
    assert stored(Lease.objects.get())["renewals"] == 0


def test_a_hold_that_was_taken_over_hears_who_has_it(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    with pytest.raises(LeaseLost, match="bob has held it since"), row_hold(manual_keeper) as hold:
        expire(Lease.objects.get())
        taken = Lease.objects.acquire("crane:1", holder="bob")
        before = stored(taken)
        clock.advance(11)
        manual_keeper.renew_due()
        assert hold.lost.is_set()

    assert stored(taken) == before


def test_an_expired_hold_is_not_revived_though_nobody_took_the_lease(
    manual_keeper: Keeper, clock: FakeClock
) -> None:
    with pytest.raises(LeaseLost, match="it expired at"), row_hold(manual_keeper):
        expire(Lease.objects.get())
        clock.advance(11)
        manual_keeper.renew_due()

    assert not Lease.objects.active().exists()


def test_a_loss_that_shows_at_the_release_is_raised_and_noted(manual_keeper: Keeper) -> None:
    with pytest.raises(LeaseLost, match="it was revoked"), row_hold(manual_keeper):
        Lease.objects.revoke()

    assert events("crane:1") == ["acquired", "revoked", "refused"]


def test_a_hold_never_gives_back_the_lease_of_its_successor(manual_keeper: Keeper) -> None:
    with pytest.raises(LeaseLost), row_hold(manual_keeper):
        usurp(Lease.objects.get())
        before = stored(Lease.objects.get())

    assert stored(Lease.objects.get()) == before


def test_a_loss_is_noted_over_the_keepers_connection_and_signalled_at_once(
    manual_keeper: Keeper, clock: FakeClock, sent: Sent
) -> None:
    with pytest.raises(LeaseLost), row_hold(manual_keeper) as hold:
        clock.advance(30)
        manual_keeper.declare_lost()

    assert [name for name, *_ in sent] == ["acquired", "lost"]
    _, lease, details = sent[-1]
    assert lease.resource == "crane:1"
    assert details == {"reason": "it was not renewed in time"}
    assert events("crane:1") == ["acquired"]

    manual_keeper.write_notes()
    event = LeaseEvent.objects.get(kind="lost")
    assert (event.grant_id, event.holder) == (hold.grant_id, hold.holder)
    assert event.reason == "it was not renewed in time"


def test_who_hears_late_of_a_loss_hears_of_the_term_that_was_lost(
    manual_keeper: Keeper, clock: FakeClock, sent: Sent
) -> None:
    later: list[Callable[[], None]] = []

    class LateStore(RowStore):
        def lost(self, grant: Term, reason: str) -> None:
            later.append(partial(super().lost, grant, reason))

    hold = row_hold(manual_keeper, kind=LateStore)
    hold.__enter__()
    grant_id = hold.term.grant_id
    Lease.objects.revoke()
    clock.advance(11)
    manual_keeper.renew_due()
    with pytest.raises(LeaseLost):
        hold.term.release()
    hold.__enter__()
    for report in later:
        report()

    assert hold.term.grant_id != grant_id
    assert [lease.grant_id for name, lease, _ in sent if name == "lost"] == [grant_id]
    hold.term.release()


def test_holds_of_rows_of_one_model_are_renewed_in_one_statement(
    manual_keeper: Keeper, clock: FakeClock, django_assert_max_num_queries: object
) -> None:
    holds = [row_hold(manual_keeper, f"crane:{n}").__enter__() for n in range(5)]

    clock.advance(11)
    with django_assert_max_num_queries(6):  # type: ignore[operator]
        manual_keeper.renew_due()

    assert [lease.renewals for lease in Lease.objects.all()] == [1] * 5
    for term in holds:
        term.release()


def test_stores_of_the_same_rows_are_one_store() -> None:
    one, same = (RowStore(Lease, "default", LeaseQuerySet) for _ in range(2))
    assert one == same
    assert len({one, same}) == 1
    assert one != RowStore(Lease, "other", LeaseQuerySet)


def test_the_manager_makes_a_hold_with_its_ttl_and_holder() -> None:
    hold = Lease.objects.hold("crane:1", holder="ann", ttl=timedelta(seconds=60))
    assert not Lease.objects.exists()

    with hold:
        lease = Lease.objects.get()
        assert (lease.holder, lease.ttl) == ("ann", timedelta(seconds=60))


def test_a_ttl_out_of_bounds_is_refused_before_the_block() -> None:
    with pytest.raises(InvalidTTL):
        Lease.objects.hold("crane:1", ttl=0)


def test_an_unusable_name_is_refused_at_the_block() -> None:
    with pytest.raises(InvalidResource), Lease.objects.hold("crane\n"):
        pytest.fail("the body must not run")


@pytest.mark.parametrize("verb", ["acquire", "hold"])
def test_a_row_that_is_not_saved_cannot_be_leased(verb: str) -> None:
    with pytest.raises(ValueError, match="^This task is not saved, so it cannot be leased: save"):
        getattr(Task.lease_rows(), verb)(Task(name="jobs.echo"))
    with pytest.raises(ValueError, match="is not saved"):
        Task(name="jobs.echo").hold()
    with pytest.raises(ValueError, match="is not saved"):
        getattr(ByUuid.lease_rows(), verb)(ByUuid())  # which has its key already


@pytest.mark.django_db(transaction=True)
def test_a_hold_that_a_coroutine_enters_by_with_names_async_with() -> None:
    async def enter() -> None:
        with Lease.objects.hold("crane:1"):
            pytest.fail("the body must not run")

    with pytest.raises(SynchronousOnlyOperation, match="holds a lease by `async with`"):
        async_to_sync(enter)()


def test_a_claimed_row_that_was_read_again_after_its_revocation_is_told_of_it() -> None:
    Order.objects.create(article="ink")
    with pytest.raises(LeaseLost), Order.objects.claim(1) as (order,):
        Order.objects.all().revoke()
        order.refresh_from_db()
