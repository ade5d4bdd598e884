"""The recorded renewals of leases, of which a ttl is computed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from leasing.models import Lease
from tests.leasing.conftest import DatabaseClock

pytestmark = pytest.mark.django_db

TTL = timedelta(seconds=10)


def renewed(database_clock: DatabaseClock, resource: str) -> Lease:
    """Return a lease of that name that was granted, and renewed a second later."""
    lease = Lease.objects.acquire(resource, holder="ann", ttl=TTL)
    database_clock.advance(1)
    return Lease.objects.renew(lease)


def test_only_terms_that_were_renewed_have_heartbeats(database_clock: DatabaseClock) -> None:
    Lease.objects.acquire("crane:1", holder="ann", ttl=TTL)
    granted = database_clock.now
    renewed(database_clock, "crane:2")

    ((acquired_at, renewed_at, count, ttl, _),) = Lease.objects.heartbeats(10)

    assert (acquired_at, renewed_at) == (granted, granted + timedelta(seconds=1))
    assert (count, ttl) == (1, TTL)


def test_a_holder_is_known_until_its_release_or_now_and_not_after_it_expired(
    database_clock: DatabaseClock,
) -> None:
    def known_until() -> object:
        ((*_, until),) = Lease.objects.heartbeats(10)
        return until

    lease = renewed(database_clock, "crane:1")
    database_clock.advance(9.999)
    assert known_until() == database_clock.now
    database_clock.advance(0.001)
    assert known_until() is None
    lease = renewed(database_clock, "crane:1")
    released = database_clock.now
    Lease.objects.release(lease)
    database_clock.advance(60)
    assert known_until() == released


def test_the_newest_leases_come_first(database_clock: DatabaseClock) -> None:
    for number in range(3):
        renewed(database_clock, f"crane:{number}")

    moments = [acquired_at for acquired_at, *_ in Lease.objects.heartbeats(2)]

    assert moments == sorted(moments, reverse=True)
    assert len(moments) == 2
