"""Giving a lease back."""

from __future__ import annotations

import copy
import uuid

import pytest

from leasing.exceptions import LeaseLost
from leasing.models import Lease, LeaseEvent
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import events, expire, stored, usurp

pytestmark = pytest.mark.django_db


def test_a_released_lease_is_free_at_once(database_clock: DatabaseClock) -> None:
    lease = make_lease(resource="crane:1", ttl=30)

    database_clock.advance(1)
    answer = Lease.objects.release(lease)

    assert answer is lease
    assert lease.released_at == lease.expires_at == database_clock.now
    assert Lease.objects.acquire("crane:1").grants == 2


def test_holder_and_grant_stay_on_the_row_until_the_next_grant() -> None:
    lease = make_lease(holder="ann")
    before = stored(lease)

    Lease.objects.release(lease)

    changed = {field for field, value in stored(lease).items() if before[field] != value}
    assert changed == {"expires_at", "released_at"}


def test_a_second_release_changes_nothing() -> None:
    lease = make_lease(resource="crane:1")
    again = copy.copy(lease)
    Lease.objects.release(lease)
    before = stored(lease)

    Lease.objects.release(lease)
    Lease.objects.release(again)

    assert stored(lease) == before
    assert events("crane:1") == ["acquired", "released"]


def test_a_release_never_takes_the_lease_from_the_next_holder() -> None:
    old = make_lease(resource="crane:1", holder="ann", state="released")
    new = Lease.objects.acquire("crane:1", holder="ann")
    before = stored(new)

    with pytest.raises(LeaseLost, match="ann has held it since"):
        Lease.objects.release(old)

    assert stored(new) == before


def test_a_second_release_too_must_prove_its_grant() -> None:
    lease = make_lease(state="released")
    lease.grant_id = uuid.uuid4()

    with pytest.raises(LeaseLost):
        Lease.objects.release(lease)


def test_an_expired_lease_cannot_be_given_back() -> None:
    lease = make_lease(resource="crane:1")
    expire(lease)
    before = stored(lease)

    with pytest.raises(LeaseLost, match="it expired at"):
        Lease.objects.release(lease)

    assert stored(lease) == before


def test_a_lease_can_be_released_up_to_its_expiry_but_not_at_it(
    database_clock: DatabaseClock,
) -> None:
    early, late = make_lease(ttl=30), make_lease(ttl=30)

    database_clock.advance(30 - 0.000001)
    Lease.objects.release(early)
    database_clock.now = late.expires_at
    with pytest.raises(LeaseLost):
        Lease.objects.release(late)


def test_the_holder_of_a_revoked_lease_hears_of_it_at_release() -> None:
    lease = make_lease()
    Lease.objects.revoke()

    with pytest.raises(LeaseLost, match=r"it was revoked\.$"):
        Lease.objects.release(lease)


def test_a_released_lease_stays_released_when_the_clock_is_set_back(
    database_clock: DatabaseClock,
) -> None:
    lease = make_lease(resource="crane:1")
    Lease.objects.release(lease)

    database_clock.advance(-3600)
    before = stored(lease)
    Lease.objects.release(lease)

    assert stored(lease) == before
    assert events("crane:1") == ["acquired", "released"]


def test_a_row_that_is_gone_cannot_be_given_back() -> None:
    lease = make_lease()
    Lease.objects.all().delete()

    with pytest.raises(LeaseLost, match="its row is gone"):
        Lease.objects.release(lease)


def test_a_refused_release_is_noted() -> None:
    lease = make_lease(holder="ann")
    usurp(lease)

    with pytest.raises(LeaseLost):
        Lease.objects.release(lease)

    event = LeaseEvent.objects.get(kind="refused")
    assert event.holder == "ann"
    assert event.reason.startswith("release: thief has held it")


def test_a_copy_of_a_row_is_not_released_with_it() -> None:
    lease, twin = make_lease(), make_lease()
    Lease.objects.filter(pk=twin.pk).update(grant_id=lease.grant_id)

    Lease.objects.release(lease)

    assert stored(twin)["released_at"] is None
