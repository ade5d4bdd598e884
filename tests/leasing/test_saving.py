"""Saving a row changes no lease: only the verbs do (S9)."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import FieldError
from django.db import DatabaseError, IntegrityError, transaction

from leasing.models import Lease, LeaseState
from leasing.querysets import LEASE_FIELDS
from tests.factories import make_lease
from tests.leasing.support import far_away, stored, usurp

pytestmark = pytest.mark.django_db


@pytest.fixture
def stale() -> Lease:
    """A lease as its former holder remembers it."""
    lease = make_lease(resource="crane:1", holder="ann")
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
        pytest.param(lambda row: row.save(update_fields=["resource"]), id="some"),
        pytest.param(lambda row: row.save(update_fields=sorted(Lease.verb_columns)), id="named"),
        pytest.param(lambda row: row.save(force_update=True), id="forced"),
        pytest.param(lambda row: row.save_base(), id="save_base"),
        pytest.param(save_as_new_with_the_same_key, id="as new with the same key"),
        pytest.param(
            lambda row: Lease.objects.update_or_create(
                pk=row.pk, defaults={"resource": row.resource, "holder": row.holder}
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
    lease = make_lease()
    before = stored(lease)
    lease.fencing_token = 1
    lease.expires_at += timedelta(days=1)

    lease.save()

    assert stored(lease) == before


@pytest.mark.parametrize(
    "fields", [["holder"], ["resource", "expires_at"], sorted(Lease.verb_columns)]
)
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda row, fields: Lease.objects.bulk_update([row], fields), id="bulk"),
        pytest.param(
            lambda row, fields: Lease.objects.bulk_create(
                [row], update_conflicts=True, unique_fields=["resource"], update_fields=fields
            ),
            id="bulk_create",
        ),
    ],
)
def test_writing_lease_columns_in_bulk_is_refused(
    stale: Lease, write: Any, fields: list[str]
) -> None:
    before = stored(stale)

    with pytest.raises(FieldError, match="Only lease methods write .* of a stored lease"):
        write(stale, fields)

    assert stored(stale) == before


def test_the_refusal_names_the_columns(stale: Lease) -> None:
    with pytest.raises(FieldError, match="write expires_at, holder of"):
        Lease.objects.bulk_update([stale], ["resource", "holder", "expires_at"])


def test_a_row_is_created_or_updated_with_what_no_verb_writes() -> None:
    lease, is_new = Lease.objects.update_or_create(
        resource="crane:1", defaults={}, create_defaults={"metadata": {"by": "ann"}}
    )
    assert (is_new, Lease.objects.get().metadata) == (True, {"by": "ann"})

    renamed: Any = {"resource": lambda: "crane:2"}
    again, is_new = Lease.objects.update_or_create(pk=lease.pk, defaults=renamed)
    assert (is_new, again, Lease.objects.get().resource) == (False, lease, "crane:2")

    other, is_new = Lease.objects.update_or_create(resource="crane:3")
    assert (is_new, other.resource) == (True, "crane:3")


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


# Copies


def save(row: Lease) -> None:
    row.save()


def save_in_bulk(row: Lease) -> None:
    Lease.objects.bulk_create([row])


@pytest.mark.parametrize("store", [save, save_in_bulk])
def test_a_copy_of_a_held_row_is_free(store: Any) -> None:
    lease = Lease.objects.acquire("crane:1", metadata={"by": "ann"}, grace=60)
    before = stored(lease)

    twin = copy.copy(lease)
    twin.pk, twin.resource = None, "crane:2"
    twin._state.adding = True
    store(twin)

    assert stored(twin) == {name: getattr(Lease(), name) for name in Lease.verb_columns}
    assert (twin.holder, twin.lease_state(far_away())) == ("", LeaseState.FREE)
    assert Lease.objects.acquire("crane:2").fencing_token > lease.fencing_token
    assert stored(lease) == before


def test_a_held_row_that_was_deleted_is_saved_back_free(stale: Lease) -> None:
    Lease.objects.all().delete()

    stale.save()

    assert Lease.objects.with_state().get().state == LeaseState.FREE


def test_a_row_that_is_made_by_hand_is_as_it_is_made(stale: Lease) -> None:
    columns = {name: getattr(stale, name) for name in Lease.verb_columns}

    Lease.objects.create(resource="crane:2", **columns)

    assert stored(Lease.objects.get(resource="crane:2")) == columns


@pytest.mark.parametrize("is_there", [True, False])
def test_a_fixture_is_written_as_it_is(is_there: bool) -> None:
    lease = make_lease(resource="crane:1", holder="ann")
    (held,) = serializers.deserialize("python", serializers.serialize("python", [lease]))
    before = stored(lease)
    if is_there:
        usurp(lease, "bob")
    else:
        Lease.objects.all().delete()

    held.save()

    assert stored(lease) == before


def test_every_column_of_the_lease_is_kept_from_saving() -> None:
    others = {field.name for field in Lease._meta.concrete_fields} - Lease.verb_columns

    assert Lease.verb_columns > LEASE_FIELDS
    assert others == {"id", "resource", "created_at"}
