"""The history of holders in the ledger."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from leasing.models import Leasable, Lease, LeaseEvent
from tests.leasing.conftest import DatabaseClock
from tests.shop.models import Order

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
TICK = timedelta(milliseconds=1)


@pytest.fixture
def begin(database_clock: DatabaseClock) -> datetime:
    return database_clock.now


def take(holder: str, ttl: float = 10, resource: str = "crane:1") -> Lease:
    return Lease.objects.acquire(resource, holder=holder, ttl=ttl)


def revoke() -> None:
    assert Lease.objects.filter(resource="crane:1").revoke("by a test", "a test")


def holders(what: str | Leasable, *moments: datetime) -> list[str]:
    """Return the holder of ``what`` at each of ``moments``; "" for nobody."""
    found = [LeaseEvent.objects.held_at(what, moment) for moment in moments]
    assert all(len(events) <= 1 for events in found)
    assert {event.kind for events in found for event in events} <= {"acquired", "taken_over"}
    return [events[0].holder if events else "" for events in found]


def around(*moments: datetime) -> list[datetime]:
    """The last moment before each, and it itself."""
    return [each for moment in moments for each in (moment - TICK, moment)]


def test_nobody_held_what_was_never_held(begin: datetime) -> None:
    Lease.objects.create(resource="crane:1")

    assert holders("crane:1", begin) == [""]
    assert holders("crane:2", begin) == [""]


def test_a_term_lasts_from_its_grant_to_its_release(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    lease = take("ann")
    database_clock.advance(3)
    Lease.objects.release(lease)
    database_clock.advance(60)

    assert holders("crane:1", *around(begin, begin + 3 * SECOND)) == ["", "ann", "ann", ""]
    (event,) = LeaseEvent.objects.held_at("crane:1", begin)
    assert event.kind == "acquired"
    assert event.held_until == begin + 3 * SECOND


def test_or_to_its_revocation(database_clock: DatabaseClock, begin: datetime) -> None:
    take("ann")
    database_clock.advance(3)
    revoke()

    assert holders("crane:1", *around(begin + 3 * SECOND)) == ["ann", ""]


def test_or_to_its_expiry_though_nobody_noticed_that(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    take("ann", ttl=10)
    database_clock.advance(60)

    assert holders("crane:1", *around(begin + 10 * SECOND)) == ["ann", ""]


def test_or_to_its_expiry_long_before_it_was_taken_over(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    take("ann", ttl=10)
    database_clock.advance(60)
    take("bob", ttl=10)
    database_clock.advance(60)

    expected = ["ann", "", "", "bob", "bob", ""]
    turns = (begin + 10 * SECOND, begin + 60 * SECOND, begin + 70 * SECOND)
    assert holders("crane:1", *around(*turns)) == expected
    assert LeaseEvent.objects.held_at("crane:1", turns[1]).get().kind == "taken_over"


def test_or_to_its_expiry_long_before_it_was_revoked(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    take("ann", ttl=10)
    database_clock.advance(60)
    revoke()
    database_clock.advance(60)
    take("bob", ttl=10)

    expired, revoked = begin + 10 * SECOND, begin + 60 * SECOND
    assert holders("crane:1", *around(expired, revoked)) == ["ann", "", "", ""]
    assert holders("crane:1", *around(begin + 120 * SECOND)) == ["", "bob"]


def test_renewals_prolong_a_term(database_clock: DatabaseClock, begin: datetime) -> None:
    lease = take("ann", ttl=10)
    for _ in range(3):
        database_clock.advance(8)
        Lease.objects.renew(lease)

    assert holders("crane:1", begin + 20 * SECOND) == ["ann"]
    database_clock.advance(60)
    take("bob")
    assert holders("crane:1", *around(begin + 34 * SECOND)) == ["ann", ""]


def test_who_holds_now_held_until_now_and_will_until_the_deadline(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    take("ann", ttl=10)
    database_clock.advance(5)

    assert holders("crane:1", database_clock.now) == ["ann"]
    assert LeaseEvent.objects.held_at("crane:1", begin).get().held_until == begin + 10 * SECOND


def test_every_moment_of_a_long_history_has_its_holder(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    for holder in ("ann", "bob", "ann"):
        lease = take(holder)
        database_clock.advance(1)
        Lease.objects.release(lease)
        database_clock.advance(1)

    moments = [begin + number * SECOND for number in range(6)]
    assert holders("crane:1", *moments) == ["ann", "", "bob", "", "ann", ""]


def test_terms_within_one_moment_of_the_clock_are_told_apart(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    Lease.objects.release(take("ann"))
    revoke_after = take("bob")
    revoke()
    take("cyd")
    database_clock.advance(1)

    assert revoke_after.holder == "bob"
    assert holders("crane:1", begin, begin + SECOND) == ["cyd", "cyd"]


def test_what_does_not_end_a_term_is_passed_over(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    lease = take("ann", ttl=10)
    for kind in ("refused", "lost", "preempted"):
        database_clock.advance(1)
        Lease.objects.record(kind, lease)

    assert holders("crane:1", *around(begin + 10 * SECOND)) == ["ann", ""]


def test_a_term_whose_row_was_deleted_before_it_ended_is_not_guessed_at(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    take("ann", ttl=10)
    Lease.objects.get().delete()
    assert holders("crane:1", begin + SECOND) == [""]

    database_clock.advance(60)
    take("bob")
    assert holders("crane:1", begin + SECOND, database_clock.now) == ["", "bob"]


def test_a_deleted_row_leaves_the_terms_that_had_ended(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    lease = take("ann")
    database_clock.advance(1)
    Lease.objects.release(lease)
    Lease.objects.get().delete()

    assert holders("crane:1", begin) == ["ann"]


def test_other_leases_are_other_histories(database_clock: DatabaseClock, begin: datetime) -> None:
    take("ann", resource="crane:1")
    take("bob", resource="crane:2")

    assert holders("crane:1", begin) == ["ann"]
    assert holders("crane:2", begin) == ["bob"]


def test_rows_of_any_leasable_model_have_a_history(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    order, other = Order.objects.create(), Order.objects.create()
    held = Order.objects.acquire(order, holder="ann", ttl=10)
    Order.objects.acquire(other, holder="cyd", ttl=10)
    # A named lease that is called as the row is.
    take("eve", resource=order.lease_resource)
    database_clock.advance(60)
    Order.objects.acquire(order, holder="bob", ttl=10)

    assert held.holder == "ann"
    turns = around(begin + 10 * SECOND, begin + 60 * SECOND)
    assert holders(order, *turns) == ["ann", "", "", "bob"]
    assert holders(other, begin) == ["cyd"]
    assert holders(order.lease_resource, begin) == ["eve"]


def test_a_lease_can_be_asked_for_by_its_row(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    lease = take("ann")

    assert holders(lease, begin) == ["ann"]


def test_a_revocation_notes_when_the_term_ended(
    database_clock: DatabaseClock, begin: datetime
) -> None:
    take("ann", ttl=10)
    database_clock.advance(3)
    revoke()
    take("bob", ttl=10)
    database_clock.advance(60)
    revoke()

    noted = LeaseEvent.objects.filter(kind="revoked").order_by("id")
    ends = list(noted.values_list("previous_expired_at", flat=True))
    assert ends == [begin + 3 * SECOND, begin + 13 * SECOND]


def test_the_answer_is_a_queryset(database_clock: DatabaseClock, begin: datetime) -> None:
    take("ann")
    held = LeaseEvent.objects.held_at("crane:1", begin)

    assert held.filter(holder="ann").exists()
    assert not held.exclude(holder="ann").exists()
    assert held.values_list("fencing_token", "held_until").get()[1] == begin + 10 * SECOND


@pytest.mark.usefixtures("on_postgresql")
def test_the_history_of_one_resource_is_found_by_index() -> None:
    """Not by looking at everybody's, nor at all of its own."""
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    LeaseEvent.objects.bulk_create(
        LeaseEvent(
            model="leasing.lease",
            key="1",
            resource=f"crane:{number % 2_500}",
            kind="released" if number // 2_500 % 2 else "acquired",
            at=begin + number * SECOND,
        )
        for number in range(10_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE leasing_leaseevent")

    for name in ("crane:7", "crane:2499"):
        plan = LeaseEvent.objects.held_at(name, begin + 9_000 * SECOND).explain(analyze=True)

        assert "Seq Scan on leasing_leaseevent" not in plan
        assert "leasing_event_of_resource" in plan
        removed = re.findall(r"Rows Removed by Filter: (\d+)", plan)
        assert sum(map(int, removed)) < 10
