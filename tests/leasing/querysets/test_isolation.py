"""Sessions that get in each other's way, on PostgreSQL: schedules of two and three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from leasing.db.dialects import lock
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import after
from leasing.models import Leasable, Lease
from tests.factories import make_lease, make_leases
from tests.leasing.locks import someone_waits
from tests.leasing.support import OtherSession, events, expire, grants, stored, usurp
from tests.processes import wait_for
from tests.shop.models import Order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_postgresql")]


@pytest.fixture
def third_session() -> Iterator[OtherSession]:
    session = OtherSession()
    yield session
    session.close()


@pytest.fixture(autouse=True)
def impatience(on_postgresql: None, transactional_db: None) -> Iterator[None]:
    """The session of the test waits for no lock for long: it would wait for itself."""
    _execute("SET lock_timeout = '5s'")
    yield
    _execute("RESET lock_timeout")


def deadline_in(row: Leasable, seconds: float) -> None:
    rows = type(row)._default_manager.filter(pk=row.pk)
    rows.update(expires_at=after(timedelta(seconds=seconds)))


def an_order() -> Order:
    return Order.objects.acquire(Order.objects.create(article="crane"), holder="ann")


#: What holds a row, and the verb by which it is kept or ended.
HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "renew": (make_lease, Lease.objects.renew),
    "release": (make_lease, Lease.objects.release),
    "release of a row that nobody waits for": (an_order, Order.objects.release),
}


@pytest.mark.parametrize("verb", HELD)
def test_a_verb_that_waited_past_the_deadline_is_refused(
    verb: str, other_session: OtherSession, third_session: OtherSession
) -> None:
    """A statement that judged before it waited would revive the lease, or end it twice."""
    make, act = HELD[verb]
    row = make()
    deadline_in(row, 2)  # the verb is to wait by then
    other_session.lock(row)

    waiting = third_session.start(act, row)
    wait_for(someone_waits)
    wait_for(type(row)._default_manager.all().expired().exists)
    before = stored(row)
    other_session.commit()

    with pytest.raises(LeaseLost, match="it expired at"):
        waiting.result(20)
    assert stored(row) == before


def test_a_renewal_that_waited_behind_a_takeover_is_refused(
    other_session: OtherSession, third_session: OtherSession
) -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    other_session.begin()
    other_session.run(usurp, lease)

    waiting = third_session.start(Lease.objects.renew, lease)
    wait_for(someone_waits)
    other_session.commit()

    with pytest.raises(LeaseLost, match="thief has held it"):
        waiting.result(20)


def test_a_locked_row_is_skipped_by_a_renewal_of_many_and_reported_as_neither(
    other_session: OtherSession,
) -> None:
    fine, busy = make_leases(2)
    before = stored(busy)
    other_session.lock(busy)

    answer = Lease.objects.renew_many(grants(fine, busy), 5)

    assert (set(answer.renewed), answer.lost) == ({fine.pk}, {})
    assert stored(busy) == before


def test_an_acquisition_does_not_wait_for_a_locked_row(other_session: OtherSession) -> None:
    lease = make_lease(resource="crane:1", state="expired")
    other_session.lock(lease)

    with pytest.raises(LeaseHeld, match="being acquired by someone else"):
        Lease.objects.acquire("crane:1")


def test_an_acquisition_behind_an_uncommitted_first_row_of_that_name_waits_and_wins_or_is_told(
    other_session: OtherSession, third_session: OtherSession
) -> None:
    other_session.begin()
    other_session.run(lambda: Lease.objects.create(resource="crane:1"))

    waiting = third_session.start(lambda: Lease.objects.acquire("crane:1"))
    wait_for(someone_waits)
    other_session.commit()

    assert waiting.result(20).grants == 1
    assert Lease.objects.count() == 1


def test_a_revocation_waits_for_the_row_and_then_judges_anew(
    other_session: OtherSession, third_session: OtherSession
) -> None:
    lease = make_lease(resource="crane:1")
    other_session.begin()
    other_session.run(Lease.objects.release, lease)

    waiting = third_session.start(Lease.objects.all().revoke)
    wait_for(someone_waits)
    other_session.commit()

    assert waiting.result(20) == 0
    assert events("crane:1") == ["acquired", "released"]


def test_two_revocations_count_each_row_once(
    other_session: OtherSession, third_session: OtherSession
) -> None:
    make_leases(3)
    other_session.begin()
    first = other_session.run(Lease.objects.all().revoke)

    waiting = third_session.start(Lease.objects.all().revoke)
    wait_for(someone_waits)
    other_session.commit()

    assert (first, waiting.result(20)) == (3, 0)


def test_the_time_of_a_grant_is_the_statements_and_not_the_transactions() -> None:
    """Two seconds into a transaction, a lease by its start would be two seconds short."""
    lease = make_lease(state="free")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            (begun,) = cursor.fetchone()
        wait_for(lambda: _clock() - begun > timedelta(milliseconds=50))
        usurp(lease)
        row = Lease.objects.get()
        assert row.acquired_at is not None
        assert row.acquired_at - begun > timedelta(milliseconds=50)
        assert row.expires_at - row.acquired_at == row.ttl


def _clock() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def test_the_holder_of_an_expired_lease_and_its_successor_are_never_both_served(
    other_session: OtherSession,
) -> None:
    """The old holder renews while the new one's grant is not yet committed."""
    lease = make_lease(resource="crane:1", holder="ann")
    expire(lease)
    other_session.lock(lease)

    with pytest.raises(LeaseHeld):
        Lease.objects.acquire("crane:1", holder="bob")
    other_session.commit()
    taken = Lease.objects.acquire("crane:1", holder="bob")
    with pytest.raises(LeaseLost, match="bob has held it"):
        Lease.objects.renew(lease)

    assert stored(taken)["holder"] == "bob"


def test_a_row_may_be_referred_to_while_its_holder_renews_it(
    other_session: OtherSession,
) -> None:
    """The lock is no stronger than an update's: a foreign key to the row need not wait."""
    lease = make_lease()
    with transaction.atomic():
        list(lock(Lease.objects.filter(pk=lease.pk)))
        other_session.run(
            _execute, "SELECT 1 FROM leasing_lease WHERE id = %s FOR KEY SHARE", lease.pk
        )


def _execute(sql: str, *params: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
