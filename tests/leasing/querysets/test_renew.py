"""Renewing a lease by hand."""

from __future__ import annotations

import copy
import uuid
from datetime import timedelta

import pytest

from leasing.db import sql
from leasing.exceptions import LeaseLost
from leasing.models import Lease, LeaseEvent
from leasing.stores import portable
from tests.factories import make_lease
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import (
    events,
    expire,
    just_after_the_commit,
    just_before_the_update,
    stored,
    usurp,
)

pytestmark = pytest.mark.django_db


def test_renewing_moves_the_deadline_to_the_ttl_from_now(database_clock: DatabaseClock) -> None:
    lease = make_lease(ttl=30)
    before = stored(lease)

    database_clock.advance(10)
    answer = Lease.objects.renew(lease)

    assert answer is lease
    assert lease.expires_at == before["expires_at"] + timedelta(seconds=10)
    assert lease.renewed_at == database_clock.now
    assert lease.renewals == 1
    changed = {field for field, value in stored(lease).items() if before[field] != value}
    assert changed == {"expires_at", "renewed_at", "renewals"}


def test_a_renewal_that_met_a_change_of_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without row locks: by the time the reason is looked for, the grant holds again."""
    lease = make_lease()
    monkeypatch.setattr(sql, "serves", lambda using: False)
    monkeypatch.setattr(portable, "renew", lambda rows, row: False)

    with pytest.raises(LeaseLost, match="it was being changed"):
        Lease.objects.renew(lease)


def test_each_renewal_is_counted() -> None:
    assert make_lease(renewals=3).renewals == 3


def test_a_renewal_never_brings_the_deadline_nearer(database_clock: DatabaseClock) -> None:
    lease = make_lease(ttl=30)
    deadline = lease.expires_at

    database_clock.advance(-5)
    Lease.objects.renew(lease)

    assert lease.expires_at == deadline
    assert lease.renewals == 1


def test_a_lease_can_be_renewed_up_to_its_expiry_but_not_at_it(
    database_clock: DatabaseClock,
) -> None:
    lease = make_lease(ttl=30)

    database_clock.advance(30 - 0.000001)
    Lease.objects.renew(lease)
    database_clock.now = lease.expires_at
    with pytest.raises(LeaseLost, match="it expired at"):
        Lease.objects.renew(lease)


def test_a_renewal_of_an_expired_lease_is_refused_though_nobody_took_it() -> None:
    lease = make_lease(resource="crane:1")
    expire(lease)
    before = stored(lease)

    with pytest.raises(LeaseLost) as refusal:
        Lease.objects.renew(lease)

    expiry = before["expires_at"].isoformat(timespec="milliseconds")
    assert str(refusal.value) == f"crane:1 was lost: it expired at {expiry}."
    assert stored(lease) == before


def test_the_old_holder_cannot_renew_the_lease_of_the_new_one() -> None:
    old = make_lease(resource="crane:1", holder="ann", state="expired")
    new = Lease.objects.acquire("crane:1", holder="bob")
    before = stored(new)

    with pytest.raises(LeaseLost, match="bob has held it since"):
        Lease.objects.renew(old)

    assert stored(new) == before


def test_the_name_of_the_holder_proves_nothing() -> None:
    old = make_lease(resource="crane:1", holder="ann", state="expired")
    new = Lease.objects.acquire("crane:1", holder="ann")
    before = stored(new)

    with pytest.raises(LeaseLost):
        Lease.objects.renew(old)

    assert stored(new) == before


def test_a_grant_made_up_by_someone_is_refused() -> None:
    lease = make_lease()
    forged = copy.copy(lease)
    forged.grant_id = uuid.uuid4()

    with pytest.raises(LeaseLost):
        Lease.objects.renew(forged)


def test_a_released_lease_is_not_renewed() -> None:
    lease = make_lease(resource="crane:1", state="released")

    with pytest.raises(LeaseLost, match="it was revoked or released at"):
        Lease.objects.renew(lease)

    assert stored(lease)["renewals"] == 0


def test_a_revoked_lease_is_not_renewed() -> None:
    lease = make_lease()
    Lease.objects.revoke()

    with pytest.raises(LeaseLost, match=r"it was revoked\.$"):
        Lease.objects.renew(lease)


def test_a_row_that_is_gone_is_lost() -> None:
    lease = make_lease()
    Lease.objects.filter(pk=lease.pk).delete()

    with pytest.raises(LeaseLost, match="its row is gone"):
        Lease.objects.renew(lease)


def test_a_lease_that_was_never_held_cannot_be_renewed() -> None:
    with pytest.raises(LeaseLost):
        Lease.objects.renew(make_lease(state="free"))


def test_a_refused_renewal_is_noted_with_who_tried_and_why() -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    usurp(lease)

    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)

    event = LeaseEvent.objects.get(kind="refused")
    assert (event.holder, event.grant_id) == ("ann", lease.grant_id)
    assert event.fencing_token == lease.fencing_token
    assert event.reason.startswith("renew: thief has held it since")


def test_a_refused_renewal_changes_nothing_in_the_hand_of_the_caller() -> None:
    lease = make_lease()
    mine = copy.copy(lease.__dict__)
    usurp(lease)

    with pytest.raises(LeaseLost):
        Lease.objects.renew(lease)

    assert lease.__dict__ == mine


def test_renewals_are_counted_on_the_row_and_not_in_the_ledger() -> None:
    make_lease(resource="crane:1", renewals=5)

    assert events("crane:1") == ["acquired"]


def test_a_copy_of_a_row_is_not_renewed_with_it() -> None:
    """Rows may be copied with all their columns; the key says which one is meant."""
    lease = make_lease()
    twin = make_lease()
    Lease.objects.filter(pk=twin.pk).update(grant_id=lease.grant_id)

    Lease.objects.renew(lease)

    assert stored(twin)["renewals"] == 0


def test_what_happened_between_lock_and_update_is_told_as_the_reason() -> None:
    lease = make_lease()

    with just_before_the_update(lambda: usurp(lease)), pytest.raises(LeaseLost, match="thief"):
        Lease.objects.renew(lease)


@pytest.mark.usefixtures("form")
def test_a_grant_won_by_another_right_after_the_renewal_is_not_handed_to_us() -> None:
    """Renew returns the renewed row, however long the process then was paused."""
    lease = make_lease()
    ours = lease.grant_id

    with just_after_the_commit(lambda: usurp(lease)):
        Lease.objects.renew(lease)

    assert lease.grant_id == ours
    with pytest.raises(LeaseLost, match="thief has held it"):
        Lease.objects.renew(lease)
