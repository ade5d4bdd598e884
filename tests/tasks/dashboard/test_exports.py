"""The lists as files, by the same filter as on the page."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from django.test import Client

from leasing.web import paging
from leasing.web.cursors import NEWEST_FIRST
from tests.factories import make_lease, make_task
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import signed_in, user_with
from tests.tasks.support import Handlers

pytestmark = pytest.mark.django_db

TASKS, LEASES = "/ops/tasks", "/ops/leases"

viewer = client_with("leasing_tasks.view_task", "leasing.view_lease")


def read(client: Client, url: str) -> str:
    response: Any = client.get(url)
    assert response.status_code == 200, response.status_code
    return b"".join(response.streaming_content).decode()


def ids(client: Client, url: str) -> list[Any]:
    """The ids in the file at ``url``, which says the same as the other format."""
    rows = json.loads(read(client, url))
    table = list(csv.DictReader(read(client, url.replace(".json", ".csv")).splitlines()))
    assert [str(row["id"]) for row in rows] == [row["id"] for row in table]
    return [row["id"] for row in rows]


def test_an_export_has_what_the_filter_lets_by_in_its_order(
    viewer: Client, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(paging.chunks_of, "__defaults__", (NEWEST_FIRST, None, 2))
    limits(reach=3)
    failed = [make_task(state="failed", holder="dora").pk for _ in range(5)]
    make_task(state="failed", holder="emil")
    make_task()
    assert ids(viewer, f"{TASKS}.json?state=failed&holder=dora") == failed[::-1]
    assert len(ids(viewer, f"{TASKS}.json")) == 7


def test_leases_of_all_sections_are_exported_by_their_filter(viewer: Client) -> None:
    lease, task = make_lease(renewals=1), make_task(state="running")
    make_lease(state="expired")
    assert ids(viewer, f"{LEASES}.json?state=active") == [str(lease.pk), f"task:{task.pk}"]
    assert ids(viewer, f"{LEASES}.json?renewed=1") == [str(lease.pk)]
    assert len(ids(viewer, f"{LEASES}.json")) == 3


def test_what_happened_to_a_lease_is_exported(viewer: Client) -> None:
    lease = make_lease(state="released")
    rows = json.loads(read(viewer, f"{LEASES}/{lease.pk}/events.json"))
    assert [row["kind"] for row in rows] == ["released", "acquired"]
    assert viewer.get(f"{LEASES}/{lease.pk}/events.pdf").status_code == 404


def test_the_page_links_to_the_export_of_what_it_shows(viewer: Client) -> None:
    for url, ending in (
        (f"{TASKS}/?state=failed&q=mail", ""),
        (f"{LEASES}/?state=active&q=be", ""),
    ):
        page = viewer.get(url + ending).content.decode().replace("&amp;", "&")
        query = url.partition("?")[2]
        assert f'.csv?{query}" download' in page and f'.json?{query}" download' in page


def test_formulas_are_neutralised(viewer: Client, handlers: Handlers) -> None:
    handlers["=1+1"] = lambda ctx: None
    make_task(name="=1+1", data={})
    make_lease(resource="@sum")
    assert "'=1+1" in read(viewer, f"{TASKS}.csv") and "'@sum" in read(viewer, f"{LEASES}.csv")


def test_payload_is_exported_to_those_who_may_see_it_and_secrets_to_nobody(viewer: Client) -> None:
    make_task(name="jobs.echo", data={"sleep_duration_seconds": 1, "password": "hunter2"})
    assert "sleep_duration" not in read(viewer, f"{TASKS}.json")
    trusted = signed_in("leasing_tasks.view_task", "leasing_tasks.view_payload", name="trusted")
    text = read(trusted, f"{TASKS}.json")
    assert "sleep_duration" in text and "hunter2" not in text


@pytest.mark.parametrize("url", [f"{TASKS}.csv", f"{LEASES}.json", f"{LEASES}/1/events.csv"])
def test_exports_are_closed_by_default(client: Client, url: str) -> None:
    make_lease()
    assert client.get(url).status_code == 302
    client.force_login(user_with())
    assert client.get(url).status_code == 403


def test_a_nonsensical_filter_exports_nothing(viewer: Client) -> None:
    assert viewer.get(f"{TASKS}.csv?state=bogus").status_code == 400
    assert viewer.get(f"{LEASES}.csv?state=bogus").status_code == 400
    assert viewer.get(f"{TASKS}.pdf").status_code == 404
