"""Rows that are read by a unique column, without a queryset."""

from __future__ import annotations

from typing import Any

import pytest

from leasing.db.row_reader import read_by
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
