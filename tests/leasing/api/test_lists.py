"""Pages of lists: cursors, and tags of what a client has seen."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from leasing.models import Lease
from leasing.web.cursors import Cursor
from tests.api_calls import call
from tests.factories import make_lease, make_leases, make_task
from tests.leasing.conftest import DatabaseClock
from tests.limits import Limits

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

STATES = ("", "/active", "/expired", "/renewed", "/released")


def pages(client: Client, path: str, limit: int, cursor: str = "") -> list[list[Any]]:
    """The ids on each page, from ``cursor`` on."""
    found: list[list[Any]] = []
    while True:
        answer = call(client, "GET", f"{path}?limit={limit}&cursor={cursor}")
        assert answer.status == 200
        found.append([lease["id"] for lease in answer.body["leases"]])
        assert len(found) < 50
        if "next" not in answer.body:
            return found
        cursor = answer.body["next"]


def everything() -> None:
    for state in ("free", "active", "expired", "released", "active"):
        make_lease(state=state)
    for state in ("running", "succeeded", "running", "running", "recovered", "running"):
        make_task(state=state)
    make_task()
    Lease.objects.renew(Lease.objects.active()[0])


@pytest.mark.parametrize("state", STATES)
def test_the_pages_of_a_list_are_the_whole_list_once(client: Client, state: str) -> None:
    everything()
    (whole,) = pages(client, f"/leases{state}", 1000)
    assert len(whole) == {"": 11, "/active": 6, "/expired": 2, "/renewed": 1, "/released": 2}[state]

    for limit in (1, 2, 3, 4, 9, 10):
        found = pages(client, f"/leases{state}", limit)
        assert [each for page in found for each in page] == whole, limit
        assert all(len(page) == limit for page in found[:-1]), limit


def test_rows_that_come_meanwhile_repeat_no_row_and_hide_none(client: Client) -> None:
    everything()
    (whole,) = pages(client, "/leases", 100)
    first = call(client, "GET", "/leases?limit=3").body
    make_lease(state="active")
    make_task(state="running")
    rest = [each for page in pages(client, "/leases", 3, first["next"]) for each in page]
    assert [each for each in rest if each in whole] == whole[3:]


def test_a_search_looks_through_some_rows_a_page(client: Client, limits: Limits) -> None:
    held = make_lease(state="active")
    make_leases(5, state="released")
    limits(reach=2)
    found = pages(client, "/leases/active", 100)
    assert [page for page in found if page] == [[held.pk]]
    assert len(found) > 2


@pytest.mark.parametrize(
    "cursor",
    [
        *("x", ".", "é", "%00", "a" * 5000, "bnVsbA", "W10", "." * 500),
        Cursor("leasing.lease", "newer", "1").encode(),
        Cursor("leasing.lease", "older", "x").encode(),
        Cursor("leasing.lease", "older", "9" * 30).encode(),
        *(Cursor("leasing.lease", "older", key).encode() for key in ("1_0", "+1", " 1", "01", "١")),
        Cursor("leasing.auditentry", "older", "1").encode(),
        Cursor("leasing.lease", "older", "1", "acquired_at", "2020-01-01T00:00:00Z").encode(),
        Cursor("leasing_tasks.task", "older", "1").encode(),
        Cursor("leasing_tasks.task", "older", "1", "acquired_at", "yesterday").encode(),
        ".".join([Cursor("leasing.lease", "older", "1").encode()] * 2),
    ],
)
def test_a_cursor_of_no_page_is_refused(client: Client, cursor: str) -> None:
    answer = call(client, "GET", f"/leases?cursor={cursor}")
    assert (answer.status, "cursor" in answer.body["error"]) == (400, True)


@pytest.mark.parametrize(
    "limit", ["1_0", "%2B5", "%205", "5%20", "5.0", "1e1", "٥", "", "0x5", "-5"]
)
def test_a_limit_is_written_in_digits(client: Client, limit: str) -> None:
    answer = call(client, "GET", f"/leases?limit={limit}")
    assert (answer.status, answer.body["error"][:6]) == (400, "limit:")


def test_a_client_that_has_seen_the_list_gets_no_second_copy(client: Client) -> None:
    make_lease(state="active")
    tag = call(client, "GET", "/leases").headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        seen = client.get("/api/leases", headers={"If-None-Match": known})
        assert (seen.status_code, seen.content, seen.headers["ETag"]) == (304, b"", tag)
    Lease.objects.renew(Lease.objects.get())
    changed = client.get("/api/leases", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.headers["ETag"] == tag) == (200, False)


def test_a_refusal_has_no_tag(client: Client) -> None:
    assert "ETag" not in call(client, "GET", "/leases/17").headers


def test_a_conflict_says_when_the_lease_ends(client: Client, database_clock: DatabaseClock) -> None:
    term = {"resource": "crane:1", "holder": "me"}
    Lease.objects.acquire("crane:1", holder="you", ttl=20, grace=0)
    assert call(client, "POST", "/leases", term).headers["Retry-After"] == "20"
