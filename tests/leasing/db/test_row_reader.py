"""Rows that are read by a unique column, without a queryset."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import models
from django.db.models.query_utils import DeferredAttribute

from leasing.db.row_reader import Reader, read_by
from leasing.db.sql import alike_in
from leasing.functions import database_now
from leasing.models import Lease

pytestmark = pytest.mark.django_db


def columns_of(row: Any) -> dict[str, Any]:
    names = [field.attname for field in row._meta.concrete_fields]
    return {name: row.__dict__[name] for name in names if name in row.__dict__}


def test_rows_are_as_a_queryset_reads_them_with_the_time_of_the_database() -> None:
    Lease.objects.acquire_many(["crane", 'b"er\\th', "dock"], metadata={"n": [1]})
    before = database_now("default")

    found = read_by(Lease, "default", "resource", ['b"er\\th', "crane", "gone"])

    read = Lease.objects.exclude(resource="dock")
    assert {row.pk: columns_of(row) for row in found} == {row.pk: columns_of(row) for row in read}
    assert all(before <= row.now <= database_now("default") for row in found)
    assert {(row._state.db, row._state.adding) for row in found} == {("default", False)}
    assert read_by(Lease, "default", "pk", []) == []


def test_of_some_columns_no_others_are_read() -> None:
    lease = Lease.objects.acquire("crane", holder="ann")

    (found,) = read_by(Lease, "default", "pk", [lease.pk], frozenset({"holder"}))

    assert columns_of(found) == {"id": lease.pk, "holder": "ann"}
    assert found.resource == "crane"


def test_leases_granted_together_are_as_they_are_stored_and_share_nothing_that_can_change() -> None:
    names = ["crane", "dock", "kiln"]
    leases = Lease.objects.acquire_many(names, metadata={"n": [1]}, holder="ann", ttl=5)

    def are_as_stored() -> bool:
        rows = Lease.objects.order_by("resource")
        return [columns_of(lease) for lease in leases] == [columns_of(row) for row in rows]

    assert are_as_stored()
    leases[0].metadata["n"].append(2)
    assert leases[1].metadata == {"n": [1]}

    leases[0].refresh_from_db()
    leases.give_back()
    assert all(lease.released_at is not None for lease in leases)
    assert are_as_stored()


def test_a_column_is_alike_if_its_sql_is_of_terms_the_clock_and_constants_alone() -> None:
    alike = ["%(holder)s", "{now} + %(ttl)s::interval", "NULL", "'it''s'", "-1"]
    others = [
        *("t.grants + 1", "grants + 1", '"t".grants + 1', "T.grants", "{key}", "random()"),
        *("CASE WHEN size > 3 THEN 1 ELSE size END", "DEFAULT", "current_setting('a')"),
    ]

    assert alike_in({text: text for text in alike + others}) == set(alike)


class Noting(DeferredAttribute):
    """Notes what is set."""

    def __set__(self, row: Any, value: Any) -> None:
        row.__dict__[self.field.attname] = value
        row.notes.append(value)


class NotedField(models.CharField):  # type: ignore[type-arg]
    descriptor_class = Noting


class Parcel(models.Model):
    label = NotedField(max_length=20)
    weight = models.IntegerField(default=0)
    notes: list[str] = []

    class Meta:
        app_label = "parcels"


def test_what_a_field_does_as_it_is_set_is_done_for_rows_that_are_read_again() -> None:
    read = Reader(Parcel, "default", alike=frozenset({"weight"}))
    parcels = {number: Parcel(pk=number, label="old") for number in (1, 2)}
    Parcel.notes.clear()

    found = read.rows([(2, "b", 7), (1, "a", None)], onto=parcels)

    assert found == [parcels[2], parcels[1]]
    assert [(parcel.label, parcel.weight) for parcel in found] == [("b", 7), ("a", 7)]
    assert Parcel.notes == ["b", "a"]
