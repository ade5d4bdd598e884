"""The factory makes rows as the verbs leave them."""

from __future__ import annotations

import pytest

from leasing.models import Lease
from tests.factories import make_lease

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", ["free", "active", "expired", "released"])
def test_a_lease_is_in_the_state_that_was_asked_for(state: str) -> None:
    make_lease(state=state)

    assert Lease.objects.with_state().get().state == state


def test_a_revoked_lease_is_released_by_somebody_else() -> None:
    lease = make_lease(state="revoked")

    assert lease.released_at is not None
    assert Lease.objects.with_state().get().state == "released"


def test_what_the_factory_returns_is_what_the_database_has() -> None:
    lease = make_lease(resource="crane:1", holder="ann", ttl=10, renewals=2)

    row = Lease.objects.get()
    assert (row.resource, row.holder, row.renewals) == ("crane:1", "ann", 2)
    assert row.expires_at == lease.expires_at


def test_a_state_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="never 'asleep'"):
        make_lease(state="asleep")
