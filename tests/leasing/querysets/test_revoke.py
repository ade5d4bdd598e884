"""Taking leases from their holders."""

from __future__ import annotations

import pytest

from leasing.exceptions import LeaseLost
from leasing.models import Lease, LeaseEvent
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import events, just_before_the_update, stored

pytestmark = pytest.mark.django_db


def test_a_revoked_lease_is_free_at_once_and_its_token_is_raised(
    database_clock: DatabaseClock,
) -> None:
    lease = make_lease(resource="crane:1", ttl=30)

    database_clock.advance(1)
    assert Lease.objects.filter(resource="crane:1").revoke("stuck", "root") == 1

    now = stored(lease)
    assert now["released_at"] == now["expires_at"] == database_clock.now
    assert now["fencing_token"] > lease.fencing_token
    assert (now["holder"], now["grant_id"]) == (lease.holder, lease.grant_id)
    assert Lease.objects.acquire("crane:1").fencing_token > now["fencing_token"]


def test_revoking_raises_the_token_also_while_the_clock_stands(
    database_clock: DatabaseClock,
) -> None:
    lease = make_lease()

    Lease.objects.revoke()

    assert stored(lease)["fencing_token"] == lease.fencing_token + 1


def test_the_ledger_says_who_revoked_and_why() -> None:
    lease = make_lease(resource="crane:1", holder="ann")

    Lease.objects.revoke("the crane is on fire", "root")

    event = LeaseEvent.objects.get(kind="revoked")
    assert (event.holder, event.reason, event.actor) == ("ann", "the crane is on fire", "root")
    assert event.fencing_token > lease.fencing_token


def test_a_long_reason_is_cut_for_the_ledger() -> None:
    make_lease()

    Lease.objects.revoke("x" * 900, "root")

    assert len(LeaseEvent.objects.get(kind="revoked").reason) == 500


def test_only_the_rows_of_the_queryset_are_revoked() -> None:
    mine, yours = make_lease(holder="ann"), make_lease(holder="bob")

    assert Lease.objects.filter(holder="ann").revoke() == 1

    assert stored(mine)["released_at"] is not None
    assert stored(yours)["released_at"] is None


def test_an_expired_lease_is_revoked_without_moving_its_deadline() -> None:
    lease = make_lease(state="expired")

    assert Lease.objects.expired().revoke() == 1

    assert stored(lease)["expires_at"] == lease.expires_at
    assert stored(lease)["fencing_token"] > lease.fencing_token


@pytest.mark.parametrize("state", ["free", "released", "revoked"])
def test_what_nobody_holds_cannot_be_revoked(state: str) -> None:
    lease = make_lease(state=state)
    before, reported = stored(lease), events(lease.resource)

    assert Lease.objects.revoke() == 0

    assert stored(lease) == before
    assert events(lease.resource) == reported


def test_the_count_leaves_out_what_was_over() -> None:
    for state in ("free", "active", "expired", "released"):
        make_lease(state=state)

    assert Lease.objects.revoke() == 2


def test_a_row_that_is_released_just_before_is_not_counted() -> None:
    lease = make_lease(resource="crane:1")

    with just_before_the_update(lambda: Lease.objects.release(lease)):
        assert Lease.objects.revoke() == 0

    assert stored(lease)["fencing_token"] == lease.fencing_token
    assert events("crane:1") == ["acquired", "released"]


def test_the_former_holder_can_neither_renew_nor_release() -> None:
    lease = make_lease()
    Lease.objects.revoke()
    before = stored(lease)

    for verb in (Lease.objects.renew, Lease.objects.release):
        with pytest.raises(LeaseLost, match="it was revoked"):
            verb(lease)

    assert stored(lease) == before


def test_nothing_to_revoke_is_no_error() -> None:
    assert Lease.objects.none().revoke() == 0
    assert Lease.objects.revoke() == 0
