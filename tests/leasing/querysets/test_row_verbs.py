"""``renew`` and ``release`` of the rows themselves: the querysets' verbs, by another road."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from leasing.exceptions import LeaseInTransaction, LeaseLost
from leasing.models import Lease, LeaseState
from leasing.testing import revoke
from leasing.testing.keeper import ManualKeeper
from tests.factories import make_lease
from tests.leasing.support import events
from tests.shop.models import Order

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["named", "row"])
def row(request: pytest.FixtureRequest, clocks: ManualKeeper) -> Any:
    if request.param == "named":
        return Lease.objects.acquire("crane:1", ttl=30)
    return Order.objects.acquire(Order.objects.create(article="ink"), ttl=30)


def test_what_was_acquired_renews_and_releases_itself(row: Any, clocks: ManualKeeper) -> None:
    until = row.expires_at
    clocks.advance(10)

    assert row.renew() is row
    assert (row.expires_at - until).total_seconds() == pytest.approx(10)
    assert row.release() is row
    assert row.lease_state(clocks.now) == LeaseState.RELEASED
    assert events(row.lease_resource) == ["acquired", "released"]
    row.release()  # changes nothing


def test_coroutines_have_twins_of_both(row: Any) -> None:
    async def story() -> tuple[Any, Any]:
        return await row.arenew(), await row.arelease()

    assert async_to_sync(story)() == (row, row)
    row.refresh_from_db()
    assert (row.renewals, row.released_at is None) == (1, False)


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_a_row_whose_term_was_revoked_is_refused(row: Any, verb: str) -> None:
    revoke(row)

    with pytest.raises(LeaseLost, match="revoked"):
        getattr(row, verb)()
    assert events(row.lease_resource)[-1] == "refused"


def test_the_grant_of_a_successor_is_left_alone(row: Any, clocks: ManualKeeper) -> None:
    clocks.advance(31)
    again = type(row).objects.acquire(row.resource if isinstance(row, Lease) else row)

    with pytest.raises(LeaseLost, match="has held it since"):
        row.release()
    assert again.renew().holder == again.holder


def test_a_renewal_inside_a_transaction_is_refused() -> None:
    lease = make_lease(resource="crane:1")
    with transaction.atomic(), pytest.raises(LeaseInTransaction):
        lease.renew()
