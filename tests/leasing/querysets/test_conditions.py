"""Every condition of every update, each tried alone.

Row locks hide most of these conditions: what was true when the row was locked is true when it
is updated. They are what carries a database without row locks, and they are tried as if on
one: something happens between lock and update that violates just one of them.

    update      conditions
    acquire     key, available
    renew       key, grant, not released, deadline ahead
    release     key, grant, not released, deadline ahead
    renew many  key, grant, not released, deadline ahead, locked by us
    revoke      key, granted, not released
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasing import querysets as leasable_rows
from leasing.db.dialects import lock as lock_rows
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.models import Lease
from leasing.stores import portable
from tests.factories import make_lease, make_leases
from tests.leasing.support import (
    expire,
    grants,
    just_before_the_update,
    revoke_ahead_of_the_clock,
    stored,
    usurp,
)

pytestmark = pytest.mark.django_db


def renew(lease: Lease) -> None:
    Lease.objects.renew(lease)


def release(lease: Lease) -> None:
    Lease.objects.release(lease)


def renew_many(lease: Lease) -> None:
    answer = Lease.objects.renew_many(grants(lease))
    assert answer.renewed == {}
    raise LeaseLost(lease.resource, answer.lost[lease.pk])


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("verb", [renew, release, renew_many])
@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        pytest.param(usurp, "thief has held it since", id="grant"),
        pytest.param(revoke_ahead_of_the_clock, "it was revoked", id="released"),
        pytest.param(expire, "it expired at", id="deadline"),
        pytest.param(lambda lease: lease.delete(), "its row is gone", id="key"),
    ],
)
def test_a_holders_update_is_refused_by_each_condition_alone(
    verb: Callable[[Lease], None], meanwhile: Callable[[Lease], object], reason: str
) -> None:
    lease = make_lease()
    key = lease.pk
    left: list[Any] = []

    def happens() -> None:
        meanwhile(Lease.objects.get(pk=key))
        left.extend(Lease.objects.values())

    with just_before_the_update(happens), pytest.raises(LeaseLost, match=reason):
        verb(lease)

    assert list(Lease.objects.values()) == left


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("verb", [renew, release])
def test_a_holders_update_is_of_one_row(verb: Callable[[Lease], None]) -> None:
    """A copy of the row has its grant too; the key tells them apart."""
    lease, twin = make_leases(2)
    Lease.objects.filter(pk=twin.pk).update(grant_id=lease.grant_id)
    before = stored(twin)

    verb(lease)

    assert stored(twin) == before


@pytest.mark.usefixtures("form")
def test_a_renewal_of_many_is_of_the_rows_with_the_keys() -> None:
    lease, twin = make_leases(2)
    Lease.objects.filter(pk=twin.pk).update(grant_id=lease.grant_id)
    before = stored(twin)

    Lease.objects.renew_many(grants(lease))

    assert stored(twin) == before
    assert stored(lease)["renewals"] == 1


@pytest.mark.usefixtures("portable")
def test_a_renewal_of_many_is_of_the_rows_that_it_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To update a row that someone else has locked would be to wait for it."""
    fine, busy = make_leases(2)
    before = stored(busy)
    monkeypatch.setattr(portable, "lock", lambda rows, **how: rows.exclude(pk=busy.pk))

    Lease.objects.renew_many(grants(fine, busy))

    assert stored(busy) == before
    assert stored(fine)["renewals"] == 1


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("state", ["free", "expired", "released"])
def test_an_acquisition_is_refused_when_the_row_is_no_longer_available(state: str) -> None:
    lease = make_lease(resource="crane:1", state=state)

    with (
        just_before_the_update(lambda: usurp(lease)),
        pytest.raises(LeaseHeld, match="held by thief"),
    ):
        Lease.objects.acquire("crane:1")

    assert stored(lease)["grants"] == lease.grants + 1


@pytest.mark.usefixtures("form")
def test_an_acquisition_is_of_one_row() -> None:
    others = [make_lease(state=state) for state in ("free", "expired", "released")]
    before = [stored(lease) for lease in others]

    Lease.objects.acquire("crane:1")

    assert [stored(lease) for lease in others] == before


@pytest.mark.usefixtures("form")
def test_a_revocation_is_refused_when_the_row_was_released() -> None:
    lease = make_lease()

    with just_before_the_update(lambda: Lease.objects.release(lease)):
        assert Lease.objects.revoke() == 0

    assert stored(lease)["fencing_token"] == lease.fencing_token


def test_a_revocation_is_refused_when_the_row_was_never_granted() -> None:
    lease = make_lease(state="free")

    assert Lease.objects.revoke() == 0

    assert stored(lease)["fencing_token"] == 0


def test_a_revocation_is_of_the_rows_that_were_asked_for() -> None:
    mine, other = make_leases(2)

    assert Lease.objects.filter(pk=mine.pk).revoke() == 1

    assert stored(other)["released_at"] is None


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize(
    "verb",
    [
        renew,
        release,
        lambda lease: Lease.objects.renew_many(grants(lease)),
        lambda lease: Lease.objects.filter(pk=lease.pk).revoke(),
    ],
    ids=["renew", "release", "renew_many", "revoke"],
)
def test_a_row_is_locked_before_it_is_judged(
    verb: Callable[[Lease], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that judges and then waits for the lock has judged by a time that is over."""
    lease = make_lease()
    steps: list[str] = []

    def lock(rows: Any, **how: Any) -> Any:
        steps.append("lock")
        return lock_rows(rows, **how)

    for module in (portable, leasable_rows):
        monkeypatch.setattr(module, "lock", lock)
    with just_before_the_update(lambda: steps.append("update")):
        verb(lease)

    assert steps == ["lock", "update"]
