"""Fencing tokens rise with every grant, for all time (S1, S2)."""

from __future__ import annotations

import pytest

from leasing.models import Lease
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import expire

pytestmark = pytest.mark.django_db


def test_tokens_rise_with_every_grant_also_while_the_clock_stands(
    database_clock: DatabaseClock,
) -> None:
    tokens = []
    for _ in range(3):
        lease = Lease.objects.acquire("crane:1")
        tokens.append(lease.fencing_token)
        Lease.objects.release(lease)

    assert tokens == [tokens[0], tokens[0] + 1, tokens[0] + 2]


def test_tokens_rise_although_the_clock_is_set_back(database_clock: DatabaseClock) -> None:
    first = make_lease(resource="crane:1", state="released")
    expire(first)

    database_clock.advance(-3600)
    expire(first)
    Lease.objects.update(released_at=None)
    second = Lease.objects.acquire("crane:1")

    assert second.fencing_token == first.fencing_token + 1


def test_the_first_token_is_the_clock_in_microseconds(database_clock: DatabaseClock) -> None:
    lease = Lease.objects.acquire("crane:1")

    assert lease.fencing_token == int(database_clock.now.timestamp()) * 1_000_000


def test_tokens_rise_across_pruning_and_making_the_row_anew(
    database_clock: DatabaseClock,
) -> None:
    first = make_lease(resource="crane:1", state="revoked")
    Lease.objects.all().delete()

    database_clock.advance(1)
    second = Lease.objects.acquire("crane:1")

    assert second.pk != first.pk
    assert second.fencing_token > first.fencing_token


def test_each_resource_has_its_own_tokens_but_never_the_same_grant() -> None:
    leases = [Lease.objects.acquire(f"crane:{n}") for n in range(5)]

    assert len({lease.grant_id for lease in leases}) == 5
