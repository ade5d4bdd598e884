"""Several questions in one statement."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Exists, Min, Subquery
from django.test.utils import CaptureQueriesContext

from leasing.db.compiled_queries import query_instances, query_rows, query_scalars
from leasing.functions import DbNow, database_now, remaining
from leasing.models import Lease

pytestmark = pytest.mark.django_db


def questions() -> dict[str, Any]:
    rows = Lease.objects.home()
    active = rows.active().order_by()
    return {
        "now": DbNow(),
        "held": Exists(active),
        "gone": Exists(rows.none()),
        "first": Subquery(rows.order_by("pk").values("resource")[:1]),
        "left": Subquery(active.values("holder").annotate(left=Min(remaining())).values("left")),
    }


def test_each_is_answered_as_a_row_would_give_it_and_all_by_one_statement() -> None:
    before = database_now("default")
    with CaptureQueriesContext(connection) as captured:
        nothing = query_scalars(Lease, "default", "test", questions)
    Lease.objects.acquire("crane", ttl=30, holder="ann")

    found = query_scalars(Lease, "default", "test", questions)

    assert len(captured) == 1
    assert before <= nothing.pop("now") <= found["now"]
    assert nothing == {"held": False, "gone": False, "first": None, "left": None}
    assert (found["held"], found["gone"], found["first"]) == (True, False, "crane")
    assert timedelta(seconds=20) < found["left"] <= timedelta(seconds=30)


def test_what_is_about_the_same_is_compiled_once() -> None:
    made: list[int] = []

    def counted() -> dict[str, Any]:
        made.append(1)
        return questions()

    for about, times in (("one", 1), ("one", 1), ("another", 2)):
        query_scalars(Lease, "default", about, counted)
        assert len(made) == times


def test_rows_are_as_their_queryset_brings_them_and_compiled_once() -> None:
    made: list[int] = []

    def rows() -> Any:
        made.append(1)
        return (
            Lease.objects.home().order_by("resource").values_list("resource", "ttl", "expires_at")
        )

    assert query_rows("test rows", rows) == []
    Lease.objects.acquire_many(["crane", "berth"], ttl=30)
    assert query_rows("test rows", rows) == list(rows())
    assert len(made) == 2


def test_an_instance_is_as_its_queryset_brings_it_and_compiled_once() -> None:
    made: list[int] = []

    def row() -> Any:
        made.append(1)
        rows = Lease.objects.home().filter(resource__contains="%").order_by("-pk")
        return rows.only("pk", "holder", "expires_at").with_state()[:1]

    assert query_instances("test row", row) == []
    for name in ("100 % crane", "100 % berth"):
        Lease.objects.acquire(name, holder=f"{name} driver", ttl=30)
        (found,) = query_instances("test row", row)
        read = Lease.objects.with_state().get(resource=name)
        assert (found.holder, found.expires_at, found.state) == (
            (read.holder, read.expires_at, read.state)
        )
        assert found.now <= read.now and found.resource == name
    assert len(made) == 1
