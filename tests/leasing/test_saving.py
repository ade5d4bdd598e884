"""Saving a row changes no lease: only the verbs do (S9)."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import FieldError
from django.db import DatabaseError, IntegrityError, transaction

from leasing.models import Lease
from leasing.querysets.leasable import LEASE_FIELDS
from tests.factories import LeaseFactory
from tests.leasing.support import far_away, stored, usurp

pytestmark = pytest.mark.django_db


@pytest.fixture
def stale() -> Lease:
    """A lease as its former holder remembers it."""
    lease = LeaseFactory(resource="crane:1", holder="ann")
    remembered = copy.copy(lease)
    usurp(lease, "bob")
    return remembered


def save_as_new_with_the_same_key(stale: Lease) -> None:
    Lease(
        **{field: getattr(stale, field) for field in Lease.verb_columns},
        pk=stale.pk,
        resource=stale.resource,
        created_at=stale.created_at,
    ).save()


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(lambda row: row.save(), id="save"),
        pytest.param(lambda row: row.save(update_fields=["holder", "resource"]), id="some"),
        pytest.param(
            lambda row: row.save(update_fields=sorted(Lease.verb_columns)), id="lease only"
        ),
        pytest.param(lambda row: row.save(force_update=True), id="forced"),
        pytest.param(lambda row: row.save_base(), id="save_base"),
        pytest.param(save_as_new_with_the_same_key, id="as new with the same key"),
        pytest.param(
            lambda row: Lease.objects.update_or_create(
                pk=row.pk, defaults={"holder": "ann", "expires_at": far_away()}
            ),
            id="update_or_create",
        ),
    ],
)
def test_saving_a_stale_row_changes_no_lease(stale: Lease, save: Any) -> None:
    before = stored(stale)

    save(stale)

    assert stored(stale) == before


def test_columns_beside_the_lease_are_saved(stale: Lease) -> None:
    stale.resource = "crane:2"
    stale.save()

    row = Lease.objects.get()
    assert (row.resource, row.holder) == ("crane:2", "bob")


def test_a_change_of_a_lease_column_in_memory_is_not_saved() -> None:
    lease = LeaseFactory()
    before = stored(lease)
    lease.fencing_token = 1
    lease.expires_at += timedelta(days=1)

    lease.save()

    assert stored(lease) == before


@pytest.mark.parametrize(
    "fields", [["holder"], ["resource", "expires_at"], sorted(Lease.verb_columns)]
)
def test_a_bulk_update_of_lease_columns_is_refused(stale: Lease, fields: list[str]) -> None:
    before = stored(stale)

    with pytest.raises(FieldError, match="Only the verbs of a lease write"):
        Lease.objects.bulk_update([stale], fields)

    assert stored(stale) == before


def test_a_bulk_update_names_the_columns_that_it_refuses(stale: Lease) -> None:
    with pytest.raises(FieldError, match="write expires_at, holder"):
        Lease.objects.bulk_update([stale], ["resource", "holder", "expires_at"])


def test_a_bulk_update_of_other_columns_changes_no_lease(stale: Lease) -> None:
    before = stored(stale)
    stale.resource = "crane:2"

    assert Lease.objects.bulk_update([stale], ["resource"], batch_size=10) == 1

    assert stored(stale) == before
    assert Lease.objects.get().resource == "crane:2"


def test_a_row_that_is_gone_cannot_be_saved_back_as_an_update(stale: Lease) -> None:
    Lease.objects.all().delete()

    with pytest.raises(DatabaseError):
        stale.save(force_update=True)


def test_a_stale_row_cannot_be_inserted_beside_the_real_one(stale: Lease) -> None:
    stale.pk = None
    stale._state.adding = True

    with pytest.raises(IntegrityError), transaction.atomic():
        stale.save()


def test_every_column_of_the_lease_is_kept_from_saving() -> None:
    others = {field.name for field in Lease._meta.concrete_fields} - Lease.verb_columns

    assert Lease.verb_columns > LEASE_FIELDS
    assert others == {"id", "resource", "created_at"}
