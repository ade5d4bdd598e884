"""Models whose default manager hides rows: those of other tenants, those that were deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import models

from leasing.checks import settings as checks
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.functions import database_now
from leasing.management.commands import leases
from leasing.models import Lease, LeaseEvent
from leasing.models import kinds as leasable_kinds
from leasing.testing import expire as let_expire
from leasing.testing import in_memory
from leasing.testing.keeper import ManualKeeper
from tests.keys import models as keys

Letter: Any = keys.Letter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("letters", "form")]


@pytest.fixture(scope="module")
def letters(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), keys.tables(made=[keys.Letter]):
        yield


@contextmanager
def request_of(owner: str) -> Iterator[None]:
    token = keys.tenant.set(owner)
    try:
        yield
    finally:
        keys.tenant.reset(token)


def letter(owner: str) -> Any:
    with request_of(owner):
        return Letter.objects.create(owner=owner)


def every() -> Any:
    """All letters, whosever they are."""
    return models.QuerySet(Letter)


def held() -> list[str]:
    return sorted(row.owner for row in every() if row.released_at is None and row.grants)


def test_holds_of_all_tenants_are_renewed_together(clocks: ManualKeeper) -> None:
    ann, bob, cid = letter("ann"), letter("bob"), letter("cid")
    with request_of("ann"):
        first = ann.hold(ttl=10).__enter__()
        clocks.advance(15)
    with request_of("bob"):
        second = Letter.objects.hold(bob, ttl=10).__enter__()
    with request_of("cid"):
        third = Letter.objects.claim(9, ttl=10).__enter__()
    assert list(third) == [cid]
    clocks.advance(15)

    for each in (first, second, third):
        each.ensure()
    first.release()
    second.release()
    third.__exit__(None, None, None)
    assert held() == []


def test_a_row_of_ones_own_is_held_whatever_the_manager_shows(clocks: ManualKeeper) -> None:
    ann = letter("ann")

    with ann.hold(ttl=10) as hold:
        clocks.advance(15)
        with hold.still_mine():
            pass
        hold.renew()
        with request_of("bob"), pytest.raises(LeaseHeld):
            ann.hold().__enter__()
    assert held() == []


def test_a_tenants_queryset_acquires_and_claims_no_others_row() -> None:
    ann, _ = letter("ann"), letter("bob")

    with request_of("bob"):
        with pytest.raises(LeaseHeld):
            Letter.objects.acquire(ann)
        assert [row.owner for row in Letter.objects.claim(9)] == ["bob"]


def test_the_querysets_own_state_ends_a_hold(clocks: ManualKeeper) -> None:
    ann = letter("ann")

    with pytest.raises(LeaseLost), ann.hold(ttl=10) as hold:
        every().update(is_open=False)
        clocks.advance(15)
        assert not hold.valid


def test_the_keeper_tells_a_loss_outside_of_requests(clocks: ManualKeeper) -> None:
    ann = letter("ann")

    with pytest.raises(LeaseLost), ann.hold(ttl=10) as hold:
        let_expire(hold)
        clocks.renew()
    assert LeaseEvent.objects.filter(key=str(ann.pk), kind="lost").exists()


def test_the_ledger_tells_of_rows_that_the_manager_hides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    get = apps.get_model
    known = {"keys.letter": Letter}
    monkeypatch.setattr(apps, "get_model", lambda *of: known.get(of[0]) or get(*of))
    ann = letter("ann")
    hold = ann.hold(ttl=1000).__enter__()
    begun = LeaseEvent.objects.held_at(ann, database_now("default"))

    assert begun.get().held_until == hold.expires_at
    assert LeaseEvent.objects.prune(database_now("default") + timedelta(seconds=100)) == 0


def test_pages_and_operators_find_rows_that_the_manager_hides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ann = letter("ann")
    ann.hold().__enter__()
    monkeypatch.setattr(leasable_kinds, "lease_kinds", lambda: {Letter: "letter"})
    monkeypatch.setattr(leases, "leasable_models", lambda: [Lease, Letter])

    assert leasable_kinds.find_row(f"letter:{ann.pk}") == ann
    assert list(leasable_kinds.listed(Letter)) == [ann]
    call_command("leases", "raise-tokens", "--yes", verbosity=0)
    assert held() == []


def test_holds_in_memory_are_renewed_too(clocks: ManualKeeper) -> None:
    ann = letter("ann")

    with in_memory(), ann.hold(ttl=10) as hold:
        clocks.advance(15)
        hold.ensure()


def test_a_manager_that_shows_some_rows_alone_is_none_that_lacks_the_verbs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apps, "get_models", lambda: [Lease, Letter])

    assert checks.check_leasable_models() == []
