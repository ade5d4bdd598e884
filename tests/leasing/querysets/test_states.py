"""The states of a lease: each row is in exactly one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import Q

from leasing.functions import EPOCH, database_now
from leasing.models import Lease, LeaseState
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock

pytestmark = pytest.mark.django_db

STATES = ["free", "active", "expired", "released", "revoked"]


@pytest.fixture
def of_each() -> dict[str, Lease]:
    return {state: make_lease(resource=state, state=state) for state in STATES}


@pytest.mark.usefixtures("of_each")
def test_each_queryset_has_the_rows_of_its_state() -> None:
    def names(rows: object) -> set[str]:
        return {lease.resource for lease in rows}  # type: ignore[attr-defined]

    assert names(Lease.objects.active()) == {"active"}
    assert names(Lease.objects.expired()) == {"expired"}
    assert names(Lease.objects.released()) == {"released", "revoked"}
    assert names(Lease.objects.available()) == {"free", "expired", "released", "revoked"}


@pytest.mark.usefixtures("of_each")
def test_states_are_disjoint_and_complete() -> None:
    by_query = [
        Lease.objects.active(),
        Lease.objects.expired(),
        Lease.objects.released(),
        Lease.objects.filter(grants=0),
    ]
    keys = [lease.pk for rows in by_query for lease in rows]

    assert sorted(keys) == sorted(Lease.objects.values_list("pk", flat=True))


def test_with_state_says_the_same_as_the_row_itself(of_each: dict[str, Lease]) -> None:
    expected = {state: state for state in STATES} | {"revoked": "released"}

    for lease in Lease.objects.with_state():
        assert lease.state == expected[lease.resource]
        assert lease.lease_state(lease.now) == lease.state


@pytest.mark.usefixtures("of_each")
def test_the_state_can_be_filtered() -> None:
    held = Lease.objects.with_state().filter(Q(("state", LeaseState.ACTIVE)))

    assert [lease.resource for lease in held] == ["active"]


def test_renewed_is_a_property_beside_the_state() -> None:
    for state in ("active", "expired", "released"):
        make_lease(resource=state, state=state, renewals=1)
    make_lease(resource="never")

    renewed = Lease.objects.renewed().values_list("resource", flat=True)
    assert set(renewed) == {"active", "expired", "released"}


def test_a_new_grant_is_not_renewed_although_the_one_before_was() -> None:
    make_lease(resource="crane:1", renewals=2, state="released")

    Lease.objects.acquire("crane:1")

    assert not Lease.objects.renewed().exists()


def test_exactly_at_the_expiry_a_lease_is_expired_and_available(
    database_clock: DatabaseClock,
) -> None:
    lease = make_lease(ttl=30)

    database_clock.now = lease.expires_at - timedelta(microseconds=1)
    assert _states(lease) == ("active", "active", False)
    database_clock.now = lease.expires_at
    assert _states(lease) == ("expired", "expired", True)


def _states(lease: Lease) -> tuple[str, str, bool]:
    """By the database, by the row, and whether it can be acquired."""
    row = Lease.objects.with_state().get(pk=lease.pk)
    assert Lease.objects.active().exists() != Lease.objects.expired().exists()
    return row.state, row.lease_state(row.now), Lease.objects.available().exists()


def test_a_row_of_a_name_never_leased_expired_long_ago() -> None:
    lease = make_lease(state="free")

    assert lease.expires_at == EPOCH
    assert lease.lease_state(database_now("default")) == LeaseState.FREE


def test_a_released_lease_is_released_also_before_a_clock_that_was_set_back(
    database_clock: DatabaseClock,
) -> None:
    make_lease(state="released")

    database_clock.advance(-3600)

    assert Lease.objects.released().count() == 1
    assert not Lease.objects.active().exists()
    assert Lease.objects.with_state().get().state == "released"


def test_states_can_be_asked_of_a_part_of_the_rows() -> None:
    make_lease(holder="ann")
    make_lease(holder="bob")

    assert Lease.objects.filter(holder="ann").active().get().holder == "ann"


def test_a_lease_shows_its_resource() -> None:
    lease = make_lease(resource="crane:1")

    assert str(lease) == lease.lease_resource == "crane:1"
    assert lease.lease_id == str(lease.pk)
