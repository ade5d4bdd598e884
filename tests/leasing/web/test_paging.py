"""Cursors and capped counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import Q

from leasing.models import Lease
from leasing.web.counts import Capped, capped_count
from leasing.web.cursors import Cursor, InvalidCursor, Order
from leasing.web.paging import chunks_of, page_of
from tasks.models import Task
from tests.factories import make_task
from tests.pages import queries

pytestmark = pytest.mark.django_db

#: A part of the leases that ``seven`` makes.
SOME = Q(resource__in=["berth:0", "berth:2", "berth:3"])


@pytest.fixture
def seven() -> list[int]:
    """The keys of seven leases, newest first."""
    return sorted((Lease.objects.create(resource=f"berth:{n}").pk for n in range(7)), reverse=True)


def keys(page: object) -> list[int]:
    return [row.pk for row in page.rows]  # type: ignore[attr-defined]


def test_a_cursor_survives_its_address() -> None:
    cursor = Cursor("leasing.lease", "older", "17")
    assert Cursor.decode(cursor.encode()) == cursor


@pytest.mark.parametrize(
    "text", ["", "x", "é", "W10=", "bnVsbA", "WzEsMiwzXQ", "W1tbW1tb" * 900, "WyJhIiwiYiIsImMiXQ"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        Cursor.decode(text)


def test_pages_go_to_the_oldest_and_back(seven: list[int]) -> None:
    rows = Lease.objects.all()
    first = page_of(rows, None, size=3)
    assert keys(first) == seven[:3] and first.older and not first.newer and not first.moved
    second = page_of(rows, Cursor.decode(first.older), size=3)
    assert keys(second) == seven[3:6] and second.older and second.newer and second.moved
    third = page_of(rows, Cursor.decode(second.older), size=3)
    assert keys(third) == seven[6:] and third.newer and not third.older
    again = page_of(rows, Cursor.decode(third.newer), size=3)
    assert keys(again) == seven[3:6] and again.newer and again.older
    start = page_of(rows, Cursor.decode(again.newer), size=3)
    assert keys(start) == seven[:3] and not start.newer


def test_a_page_that_is_just_full_has_no_older_one(seven: list[int]) -> None:
    assert page_of(Lease.objects.all(), None, size=7).older == ""


@pytest.mark.usefixtures("seven")
def test_a_cursor_of_another_list_leaves_this_one_at_its_newest() -> None:
    page = page_of(Lease.objects.all(), Cursor("leasing_tasks.task", "older", "1"), size=3)
    assert len(page.rows) == 3 and not page.moved


@pytest.mark.parametrize("key", ["x", "1.5", "9" * 5000, "None"])
def test_a_cursor_whose_key_fits_no_row_is_refused(key: str) -> None:
    with pytest.raises(InvalidCursor):
        page_of(Lease.objects.all(), Cursor("leasing.lease", "older", key))


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("search", [None, Q(holder="ann"), Q(resource__in=["berth:1", "berth:5"])])
@pytest.mark.parametrize("parts", [(), (SOME, ~SOME), (~SOME, SOME)])
def test_rows_of_one_moment_are_all_found_and_none_twice(
    seven: list[int],
    search: Q | None,
    parts: tuple[Q, ...],
    *,
    descending: bool,
) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    Lease.objects.update(holder="ann", grants=1, grant_id=uuid4(), acquired_at=noon)
    Lease.objects.filter(pk=seven[0]).update(acquired_at=noon + timedelta(microseconds=1))
    rows = Lease.objects.filter(acquired_at__isnull=False)
    order = Order("acquired_at", descending, parts)
    wanted = list(rows.filter(search or Q()).order_by(*order.by).values_list("pk", flat=True))
    chunks = list(chunks_of(rows, order, search, size=2, reach=3))
    assert [row.pk for chunk in chunks for row in chunk] == wanted
    assert search is None or len(chunks) > 2
    last = following = page_of(rows, None, 2, order, search, reach=3)
    while following.older:
        following = page_of(rows, Cursor.decode(following.older), 2, order, search, reach=3)
        last = following if following.rows else last
    back = keys(last)
    while last.newer and len(back) < 20:
        last = page_of(rows, Cursor.decode(last.newer), 2, order, search, reach=3)
        back = keys(last) + back
    assert back == wanted


@pytest.mark.parametrize("search", [None, Q(resource__startswith="berth")])
def test_a_list_in_parts_may_be_sorted_by_key_alone(seven: list[int], search: Q | None) -> None:
    order = Order(parts=(SOME, ~SOME))
    chunks = chunks_of(Lease.objects.all(), order, search, size=2)
    assert [row.pk for chunk in chunks for row in chunk] == seven


@pytest.mark.parametrize("search", [None, Q(grants=1)])
def test_a_row_that_goes_from_one_part_of_a_list_to_the_next_meanwhile_is_listed_once(
    search: Q | None,
) -> None:
    task = make_task(state="running")
    order = Order("acquired_at", parts=Task.listing.parts)
    running = [task]

    def as_it_ends(execute: Any, *statement: Any) -> Any:
        answer = execute(*statement)
        while running:
            Task.objects.complete(running.pop())
        return answer

    with connection.execute_wrapper(as_it_ends):
        page = page_of(Task.objects.filter(grants__gt=0), None, 1, order, search)
    assert keys(page) == [task.pk] and not page.older


@pytest.mark.usefixtures("seven")
def test_a_count_stops_at_its_cap() -> None:
    with queries() as sent:
        assert str(capped_count(Lease.objects.all(), cap=5)) == "5+"
    assert "LIMIT 6" in sent()[0]
    assert str(capped_count(Lease.objects.all(), cap=7)) == "7"


def test_counts_are_written_for_people() -> None:
    assert str(Capped(1234)) == "1,234"
    assert str(Capped(10_001)) == "10,000+"
    assert not Capped(0)
