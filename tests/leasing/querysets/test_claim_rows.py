"""Leases on rows of a user's own model: acquire, hold, claim."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from leasing.exceptions import (
    InvalidResource,
    InvalidTTL,
    LeaseHeld,
    LeaseInTransaction,
    LeaseLost,
    LeaseTimeout,
)
from leasing.holding import claim as claims
from leasing.holding.term import Term, keep_all
from leasing.models import Lease, LeaseEvent
from leasing.querysets import LeasableQuerySet
from leasing.stores import portable
from leasing.testing.keeper import ManualKeeper
from tests.leasing.conftest import Sent
from tests.leasing.stopped import Waits
from tests.leasing.support import (
    PATIENCE,
    OtherSession,
    events,
    expire,
    just_before_the_update,
    revoke_ahead_of_the_clock,
    stored,
    usurp,
)
from tests.processes import wait_for
from tests.shop.models import Order

pytestmark = pytest.mark.django_db


def orders(number: int, **fields: Any) -> list[Order]:
    return [Order.objects.create(article=f"article {n}", **fields) for n in range(number)]


@pytest.fixture
def order() -> Order:
    (order,) = orders(1)
    return order


def active() -> list[int]:
    return list(Order.objects.active().order_by("pk").values_list("pk", flat=True))


# Acquire


def test_a_row_is_acquired_renewed_and_released(order: Order, sent: Sent) -> None:
    mine = Order.objects.acquire(order, holder="ann", ttl=10)

    assert (mine.pk, mine.holder, mine.ttl) == (order.pk, "ann", timedelta(seconds=10))
    assert mine.article == "article 0"
    Order.objects.renew(mine)
    Order.objects.release(mine)
    assert [name for name, *_ in sent] == ["acquired", "renewed", "released"]
    assert events(f"shop.order:{order.pk}") == ["acquired", "released"]
    assert LeaseEvent.objects.filter(model="shop.order", key=str(order.pk)).count() == 2


def test_a_held_row_is_refused_and_others_are_not(order: Order) -> None:
    (other,) = orders(1)
    Order.objects.acquire(order, holder="ann")

    with pytest.raises(LeaseHeld, match=f"^shop.order:{order.pk} is held by ann until"):
        Order.objects.acquire(order, holder="bob")

    assert Order.objects.acquire(other, holder="bob").holder == "bob"


def test_an_expired_row_is_taken_over(order: Order) -> None:
    expire(Order.objects.acquire(order, holder="ann"))

    assert Order.objects.acquire(order, holder="bob").grants == 2
    assert events(f"shop.order:{order.pk}") == ["acquired", "taken_over"]


def test_a_row_that_is_gone_is_lost(order: Order) -> None:
    Order.objects.all().delete()

    with pytest.raises(LeaseLost, match="its row is gone"):
        Order.objects.acquire(order)


def test_a_row_is_waited_for(
    order: Order, clocks: ManualKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(clocks, monkeypatch)
    held = Order.objects.acquire(order, ttl=60)
    with pytest.raises(LeaseTimeout):
        Order.objects.acquire(order, wait=2)
    waits.after(3, lambda: Order.objects.release(held))

    assert Order.objects.acquire(order, wait=10).grants == 2
    assert 5 <= clocks.passed <= 6


@pytest.mark.parametrize(
    ("terms", "error"), [({"ttl": 0}, InvalidTTL), ({"holder": ""}, InvalidResource)]
)
@pytest.mark.parametrize("verb", ["acquire", "hold", "claim"])
def test_terms_are_checked_first(
    verb: str, terms: dict[str, Any], error: type[Exception], order: Order
) -> None:
    row: Any = 1 if verb == "claim" else order

    with pytest.raises(error):
        getattr(Order.objects, verb)(row, **terms)


@pytest.mark.django_db(transaction=True)
def test_a_row_is_acquired_by_async_code() -> None:
    async def story() -> Order:
        order = await Order.objects.acreate(article="tea")
        mine: Order = await Order.objects.aacquire(order, holder="ann")
        with pytest.raises(LeaseHeld):
            await Order.objects.aacquire(order)
        async with (await Order.objects.acreate(article="rum")).hold() as hold:
            hold.ensure()
        return mine

    assert async_to_sync(story)().holder == "ann"
    assert len(active()) == 1


# Hold


@pytest.mark.parametrize(
    "hold_of",
    [lambda order: order.hold(ttl=10), lambda order: Order.objects.hold(order, ttl=10)],
    ids=["of the row", "of the manager"],
)
def test_a_row_is_held_while_the_block_runs(
    hold_of: Any, order: Order, clocks: ManualKeeper
) -> None:
    hold = hold_of(order)
    assert active() == []

    with hold as term:
        clocks.advance(60)
        term.ensure()
        assert term.resource == f"shop.order:{order.pk}"
        assert active() == [order.pk]
        order.packed = True
        order.save()

    assert active() == []
    assert Order.objects.get().packed


def test_a_revoked_row_is_a_lost_hold(order: Order, clocks: ManualKeeper) -> None:
    reported: list[Term] = []
    with pytest.raises(LeaseLost, match="revoked"), order.hold(on_lost=reported.append) as hold:
        Order.objects.revoke()
        clocks.renew()
        assert not hold.valid

    assert reported == [hold]


# Claim


def test_a_claim_takes_so_many_and_in_the_order_of_the_queryset() -> None:
    first, second, third = orders(3)

    assert [order.pk for order in Order.objects.claim(2)] == [first.pk, second.pk]
    Order.objects.revoke()
    assert [order.pk for order in Order.objects.order_by("-pk").claim(2)] == [
        third.pk,
        second.pk,
    ]


def test_a_claim_keeps_the_order_that_the_model_has(monkeypatch: pytest.MonkeyPatch) -> None:
    _, second, third = orders(3)
    monkeypatch.setattr(Order._meta, "ordering", ["-pk"])

    assert [order.pk for order in Order.objects.claim(2)] == [third.pk, second.pk]


def test_rows_without_an_order_are_claimed_by_key(
    django_assert_max_num_queries: Any,
) -> None:
    first, _ = orders(2)

    with django_assert_max_num_queries(6) as captured:
        claimed = Order.objects.order_by().claim(1)

    assert [order.pk for order in claimed] == [first.pk]
    # What the database gives first without being told is anybody's guess.
    (choice,) = [q["sql"] for q in captured.captured_queries if "LIMIT 1" in q["sql"]]
    assert 'ORDER BY "shop_order"."id" ASC' in choice or 'ORDER BY t."id" LIMIT' in choice


def test_a_claim_takes_one_unless_told() -> None:
    orders(2)

    assert len(Order.objects.claim()) == 1


def test_a_claim_takes_what_there_is() -> None:
    assert Order.objects.claim(5) == []
    orders(2)
    assert len(Order.objects.claim(5)) == 2
    assert Order.objects.claim(5) == []


def test_a_claim_of_none_takes_none() -> None:
    orders(1)

    assert Order.objects.claim(0) == []
    assert active() == []


def test_each_claimed_row_has_a_grant_of_its_own(sent: Sent) -> None:
    orders(3)

    claimed = Order.objects.claim(3, holder="ann", ttl=10)

    assert len({order.grant_id for order in claimed}) == 3
    assert {order.holder for order in claimed} == {"ann"}
    assert [stored(order)["grant_id"] for order in claimed] == [o.grant_id for o in claimed]
    assert [order.article for order in claimed] == ["article 0", "article 1", "article 2"]
    assert [(name, lease.pk) for name, lease, _ in sent] == [
        ("acquired", order.pk) for order in claimed
    ]


def test_a_claim_takes_only_rows_of_the_queryset() -> None:
    orders(1, packed=True)
    (unpacked,) = orders(1)

    # Without the order of the model too.
    assert Order.objects.filter(packed=False).order_by().claim(5) == [unpacked]
    assert Order.objects.filter(packed=False).claim(5) == []
    assert active() == [unpacked.pk]


def test_held_rows_are_passed_over_and_expired_ones_taken() -> None:
    held, expired, released, free = orders(4)
    Order.objects.acquire(held, holder="ann")
    expire(Order.objects.acquire(expired, holder="ann"))
    Order.objects.release(Order.objects.acquire(released, holder="ann"))

    claimed = Order.objects.claim(5, holder="bob")

    assert [order.pk for order in claimed] == [expired.pk, released.pk, free.pk]
    assert stored(held)["holder"] == "ann"
    assert events(f"shop.order:{expired.pk}") == ["acquired", "taken_over"]
    assert events(f"shop.order:{released.pk}") == ["acquired", "released", "acquired"]


def test_rows_given_back_by_a_clock_that_was_set_back_are_claimed() -> None:
    orders(2)
    given_back, held = Order.objects.claim(2, holder="ann")
    revoke_ahead_of_the_clock(given_back)

    assert list(Order.objects.claim(2, holder="bob")) == [given_back]
    assert stored(held)["holder"] == "ann"


def test_held_rows_do_not_count_towards_the_limit() -> None:
    held, free = orders(2)
    Order.objects.acquire(held)

    assert [order.pk for order in Order.objects.claim(1)] == [free.pk]


def test_a_row_taken_at_the_last_moment_is_not_claimed() -> None:
    """As can happen where rows are not locked; here on the same connection."""
    first, second = orders(2)

    with just_before_the_update(lambda: usurp(first)):
        claimed = Order.objects.claim(2, holder="bob")

    assert [order.pk for order in claimed] == [second.pk]
    assert stored(first)["holder"] == "thief"
    assert events(f"shop.order:{first.pk}") == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("on_postgresql")
def test_locked_rows_are_passed_over(other_session: OtherSession) -> None:
    first, second = orders(2)
    other_session.begin()
    other_session.run(lambda: list(Order.objects.filter(pk=first.pk).select_for_update()))

    assert [order.pk for order in Order.objects.claim(2)] == [second.pk]


def test_inside_a_transaction_nothing_is_claimed(order: Order) -> None:
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Order.objects.claim(1)
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        Order.objects.acquire(order)
    assert active() == []


@pytest.mark.django_db(transaction=True)
def test_eight_claimers_never_get_the_same_row() -> None:
    orders(40)
    start = threading.Barrier(8)

    def work(number: int) -> list[int]:
        got: list[int] = []
        try:
            start.wait(PATIENCE)
            while claimed := Order.objects.claim(3, holder=f"packer-{number}", ttl=60):
                got += [order.pk for order in claimed]
            return got
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as crew:
        shares = [done.result(PATIENCE) for done in [crew.submit(work, n) for n in range(8)]]

    # A claimer may find the rest locked and go home; what it got is nobody else's.
    counts = Counter(pk for share in shares for pk in share)
    assert set(counts.values()) == {1}
    assert sorted(counts) == active()
    assert sum(order.grants for order in Order.objects.all()) == len(counts)


# A block in which they are held


def test_claimed_rows_are_renewed_in_the_block_and_released_after_it(
    clocks: ManualKeeper,
) -> None:
    orders(3)
    with Order.objects.claim(3, ttl=10) as claimed:
        clocks.advance(60)
        claimed.ensure()
        assert active() == [order.pk for order in claimed]
        assert [hold.key for hold in claimed.holds] == [order.pk for order in claimed]

    assert active() == []
    assert Order.objects.released().count() == 3


def test_one_row_lost_leaves_the_others_held_and_is_told_at_the_end(
    clocks: ManualKeeper,
) -> None:
    first, second, third = orders(3)
    with (
        pytest.raises(LeaseLost, match=f"shop.order:{second.pk} was lost: it was revoked"),
        Order.objects.claim(3) as claimed,
    ):
        Order.objects.filter(pk=second.pk).revoke()
        clocks.renew()
        assert [hold.valid for hold in claimed.holds] == [True, False, True]
        assert active() == [first.pk, third.pk]

    assert active() == []
    assert events(f"shop.order:{third.pk}") == ["acquired", "released"]


def test_a_row_that_was_given_back_by_hand_is_not_lost(clocks: ManualKeeper) -> None:
    orders(2)
    with Order.objects.claim(2) as claimed:
        claimed.holds[0].release()
        assert active() == [claimed[1].pk]

    assert active() == []


@pytest.mark.parametrize(
    "release",
    [Order.objects.release, lambda order: Order.objects.release_many([order])],
    ids=["one", "many"],
)
def test_a_row_that_was_released_by_a_verb_leaves_the_block(
    release: Callable[[Order], Any], clocks: ManualKeeper
) -> None:
    orders(2)
    with Order.objects.claim(2) as claimed:
        release(claimed[0])
        others = Order.objects.acquire(Order.objects.get(pk=claimed[0].pk), holder="next", ttl=90)
        clocks.advance(60)
        claimed.ensure()
        assert active() == [order.pk for order in claimed]

    assert active() == [others.pk]


def test_a_row_whose_release_is_refused_is_lost_at_the_end(clocks: ManualKeeper) -> None:
    orders(1)
    with pytest.raises(LeaseLost), Order.objects.claim(1) as claimed:
        usurp(claimed[0])
        assert list(Order.objects.release_many(claimed)) == [claimed[0].pk]
        claimed.ensure()


def test_a_block_that_fails_keeps_its_error(clocks: ManualKeeper) -> None:
    orders(2)
    with pytest.raises(KeyError), Order.objects.claim(2) as claimed:
        Order.objects.filter(pk=claimed[0].pk).revoke()
        raise KeyError

    assert active() == []


# In coroutines


in_earnest = pytest.mark.django_db(transaction=True)


@in_earnest
def test_async_code_holds_what_it_claimed() -> None:
    async def story() -> None:
        async with await Order.objects.order_by("-pk").aclaim(2, holder="ann", ttl=30) as rows:
            assert [row.pk for row in rows] == [most, more]
            assert {row.holder for row in rows} == {"ann"}
            rows.ensure()
            await asyncio.sleep(0)

    _, more, most = (order.pk for order in orders(3))
    async_to_sync(story)()
    assert active() == []
    assert Order.objects.released().count() == 2


@in_earnest
def test_async_code_acquires_several_names_or_none() -> None:
    async def story() -> None:
        async with await Lease.objects.aacquire_many(["b", "a"], ttl=30) as leases:
            assert [lease.resource for lease in leases] == ["a", "b"]
            with pytest.raises(LeaseHeld):
                await Lease.objects.aacquire_many(["c", "b"])
        assert await Lease.objects.active().acount() == 0

    async_to_sync(story)()
    assert events("a") == events("b") == ["acquired", "released"]


@in_earnest
def test_the_body_is_cancelled_when_one_of_its_rows_is_lost() -> None:
    async def story() -> None:
        async with await Order.objects.aclaim(3) as rows:
            holds.extend(rows.holds)
            asyncio.get_running_loop().call_soon(rows.holds[1].mark_lost, "for a test")
            asyncio.get_running_loop().call_soon(rows.holds[2].mark_lost, "for a test")
            await asyncio.Event().wait()

    holds: list[Term] = []
    orders(3)
    with pytest.raises(LeaseLost, match="for a test") as loss:
        async_to_sync(story)()
    assert loss.value.resource == holds[1].resource
    assert isinstance(loss.value.__cause__, asyncio.CancelledError)
    assert len(active()) == 2, "what was lost here may be somebody else's"
    assert not any(hold.interrupt for hold in holds)


@in_earnest
def test_a_row_lost_before_the_body_begins_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_and_lose(kept: list[Term]) -> None:
        keep_all(kept)
        for held in kept:
            held.mark_lost("for a test")

    async def story() -> None:
        claimed = await Order.objects.aclaim(1)
        monkeypatch.setattr(claims, "keep_all", keep_and_lose)
        async with claimed:
            await asyncio.Event().wait()

    orders(1)
    with pytest.raises(LeaseLost, match="for a test"):
        async_to_sync(story)()


@in_earnest
def test_a_body_that_fails_or_is_cancelled_by_others_keeps_its_error() -> None:
    async def story() -> None:
        async with asyncio.timeout(0) as timeout, await Order.objects.aclaim(2):
            pytest.fail(f"{timeout} was over")

    async def failing() -> None:
        async with await Order.objects.aclaim(2) as rows:
            rows.holds[0].mark_lost("for a test")
            raise KeyError

    async def cancelled() -> None:
        async with asyncio.timeout(None) as timeout, await Order.objects.aclaim(1):
            timeout.reschedule(0)
            await asyncio.Event().wait()

    orders(3)
    with pytest.raises(KeyError):
        async_to_sync(failing)()
    for late in (story, cancelled):
        with pytest.raises(TimeoutError):
            async_to_sync(late)()
    wait_for(lambda: len(active()) == 1)


@in_earnest
def test_async_code_is_told_of_a_lost_row_at_the_end() -> None:
    async def story() -> None:
        claimed = await Order.objects.aclaim(2)
        with pytest.raises(LeaseLost, match="its row is gone"):
            async with claimed:
                await Order.objects.filter(pk=claimed[0].pk).adelete()

    orders(2)
    async_to_sync(story)()
    assert active() == []


@in_earnest
def test_what_a_cancelled_claim_brings_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be nobody's until its ttl ended."""
    reached, go_on = threading.Event(), threading.Event()
    claim = LeasableQuerySet.claim

    def slow(rows: Any, *args: Any, **options: Any) -> Any:
        claimed = claim(rows, *args, **options)
        reached.set()
        assert go_on.wait(PATIENCE)
        return claimed

    async def story() -> None:
        task = asyncio.create_task(Order.objects.aclaim(2))
        await asyncio.to_thread(reached.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    monkeypatch.setattr(LeasableQuerySet, "claim", slow)
    orders(2)
    async_to_sync(story)()
    wait_for(lambda: Order.objects.released().count() == 2)


@in_earnest
def test_the_verbs_have_async_twins() -> None:
    async def story() -> None:
        row = await Order.objects.aacquire(await Order.objects.aget(), ttl=30)
        assert (await Order.objects.arenew(row)).renewals == 1
        await Order.objects.arelease(row)
        with pytest.raises(LeaseLost):
            await Order.objects.arenew(row)
        await Order.objects.aacquire(row)
        assert await Order.objects.arevoke("stuck", "ann") == 1

    orders(1)
    async_to_sync(story)()
    last = LeaseEvent.objects.order_by("id").last()
    assert last is not None
    assert (last.kind, last.reason, last.actor) == ("revoked", "stuck", "ann")


@pytest.mark.usefixtures("portable")
def test_a_free_row_is_tried_again_where_another_try_met_it(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody has locked it for a moment."""
    grant = portable.grant
    missed: list[list[Any]] = [[]]

    def once_in_vain(*asked: Any, **key: Any) -> Any:
        return missed.pop() if missed else grant(*asked, **key)

    monkeypatch.setattr(portable, "grant", once_in_vain)
    assert Order.objects.acquire(order, holder="bob").grants == 1
