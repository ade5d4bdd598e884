"""States that the database itself forbids."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from leasing.fencing import FencedModel
from leasing.functions import EPOCH, DbNow, after
from leasing.models import Leasable, Lease
from tests.factories import make_lease
from tests.press.models import Report
from tests.shop.models import Order

pytestmark = pytest.mark.django_db

LATER = after(timedelta(seconds=60))
BEFORE = after(timedelta(seconds=-60))

IMPOSSIBLE: list[tuple[str, str, str, dict[str, Any]]] = [
    # constraint, what would be wrong, the state to begin with, the update that must fail
    ("granted", "held by nobody", "active", {"holder": ""}),
    ("granted", "granted without a proof", "active", {"grant_id": None}),
    ("granted", "granted at no time", "active", {"acquired_at": None}),
    ("granted", "held but never granted", "active", {"grants": 0}),
    ("granted", "granted once, to nobody", "free", {"grants": 1}),
    ("granted", "a holder who was never granted", "free", {"holder": "ann"}),
    ("granted", "a grant that never was", "free", {"grant_id": uuid.uuid4()}),
    ("granted", "acquired but never granted", "free", {"acquired_at": DbNow()}),
    ("granted", "a deadline of nobody", "free", {"expires_at": LATER}),
    ("granted", "granted less than no times", "free", {"grants": -1}),
    ("renewed", "renewed at no time", "active", {"renewals": 1}),
    ("renewed", "renewed no times", "active", {"renewed_at": DbNow()}),
    (
        "renewed",
        "renewed less than no times",
        "active",
        {"renewals": -1, "renewed_at": DbNow()},
    ),
    ("renewed", "renewed but never granted", "free", {"renewals": 1, "renewed_at": DbNow()}),
    ("released", "released and held", "active", {"released_at": DbNow()}),
    (
        "released",
        "released, then held longer",
        "released",
        {"expires_at": F("released_at") + timedelta(seconds=1)},
    ),
    ("released", "released but never granted", "free", {"released_at": DbNow()}),
    (
        "released",
        "released before it expired",
        "active",
        {"released_at": BEFORE, "expires_at": DbNow()},
    ),
    ("ttl", "no time at all", "active", {"ttl": timedelta(0)}),
    ("ttl", "less than no time", "free", {"ttl": timedelta(seconds=-1)}),
]


@pytest.mark.parametrize(
    ("constraint", "state", "update"),
    [pytest.param(name, *rest, id=what) for name, what, *rest in IMPOSSIBLE],
)
def test_an_impossible_state_cannot_be_written(
    constraint: str, state: str, update: dict[str, Any]
) -> None:
    lease = make_lease(state=state)

    with (
        pytest.raises(IntegrityError, match=rf"leasing_lease_{constraint}\b"),
        transaction.atomic(),
    ):
        Lease.objects.filter(pk=lease.pk).update(**update)


def test_each_constraint_is_put_to_the_test() -> None:
    tested = {f"leasing_lease_{name}" for name, *_ in IMPOSSIBLE}

    assert tested == {constraint.name for constraint in Lease._meta.constraints}


@pytest.mark.parametrize("column", ["grants", "renewals"])
def test_counts_are_never_negative(column: str) -> None:
    lease = make_lease()

    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.filter(pk=lease.pk).update(**{column: -1})


def test_a_resource_has_one_row() -> None:
    make_lease(resource="crane:1")

    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.create(resource="crane:1")


@pytest.mark.parametrize("column", ["expires_at", "holder", "fencing_token", "ttl"])
def test_columns_that_are_never_null(column: str) -> None:
    lease = make_lease()

    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.filter(pk=lease.pk).update(**{column: None})


def test_a_new_row_is_free() -> None:
    lease = Lease.objects.create(resource="crane:1")

    lease.refresh_from_db()
    assert (lease.holder, lease.grant_id, lease.grants) == ("", None, 0)
    assert lease.expires_at == EPOCH
    assert lease.created_at is not None


# Writers that do not know the columns: code of the release before, and other programs


def insert(table: str, **columns: Any) -> None:
    names, values = ", ".join(columns), list(columns.values())
    places = ", ".join(["%s"] * len(values))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", values)


def test_a_row_is_free_that_was_written_by_who_knows_of_no_lease() -> None:
    insert("shop_order", article="tea", packed=False)
    order = Order.objects.get()

    blank = Order(article="tea")
    assert {name: getattr(order, name) for name in Order.verb_columns} == {
        name: getattr(blank, name) for name in Order.verb_columns
    }
    order.full_clean()
    with order.hold() as hold:
        hold.ensure()


def test_a_fence_is_lowest_that_was_written_by_who_knows_of_none() -> None:
    insert("press_report", title="tides", text="high", saved_at=datetime(2030, 1, 1, tzinfo=UTC))

    assert Report.objects.fenced(1).update(text="low") == 1


@pytest.mark.parametrize("model", [Leasable, FencedModel])
def test_every_column_that_a_model_inherits_is_optional(model: Any) -> None:
    fields = model._meta.local_fields

    assert [f.name for f in fields if not (f.null or f.has_db_default())] == []
