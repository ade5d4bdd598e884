"""Refusals of the pages: they are pages too, also in a project that has no templates."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import Settings

from tests.factories import make_lease
from tests.pages import Page, get, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_templates_of_the_project(settings: Settings) -> None:
    (engine,) = settings.TEMPLATES
    options = engine["OPTIONS"]
    settings.TEMPLATES = [{**engine, "DIRS": [], "OPTIONS": dict(options)}]


def test_a_missing_permission_is_named_as_in_the_admin_with_the_pages_that_are_open() -> None:
    page = get(signed_in("leasing_tasks.view_worker"), "/ops/tasks/")

    assert page.status == 403
    assert "Tasks | task | Can view task" in page.text
    assert page.one("main code").text == "leasing_tasks.view_task"
    assert page.text.count("alice") >= 1
    assert [link["href"] for link in page.all("nav.menu a")] == ["/ops/workers/"]
    assert [link["href"] for link in page.all("main a")] == ["/ops/workers/"]


def test_an_action_names_its_permission_and_the_way_back() -> None:
    lease = make_lease()
    client = signed_in("leasing.view_lease")

    page = get_posted(client, f"/ops/leases/{lease.lease_id}/revoke/")

    assert page.status == 403
    assert page.one("main code").text == "leasing.revoke_lease"
    assert "/ops/leases/" in [link["href"] for link in page.all("main a")]


def test_a_read_only_site_says_so_on_a_page(settings: Settings) -> None:
    settings.LEASING = {"READ_ONLY": True}
    lease = make_lease()
    client = signed_in("leasing.view_lease", "leasing.revoke_lease")

    page = get_posted(client, f"/ops/leases/{lease.lease_id}/revoke/")

    assert page.status == 403
    assert "READ_ONLY" in page.one("main").text
    assert not page.all("main code")
    assert "/ops/leases/" in [link["href"] for link in page.all("main a")]


def test_who_may_open_nothing_can_sign_in_as_someone_else() -> None:
    page = get(signed_in(), "/ops/leases/")

    assert page.status == 403
    assert page.all("nav.menu a") == []
    assert page.forms == ["/ops/logout/", "/ops/logout/"]  # the user's menu has one too


@pytest.mark.parametrize("lease_id", ["4711", "task:4711", "nothing:1"])
def test_a_lease_that_is_gone_has_a_page_with_the_way_back(lease_id: str) -> None:
    page = get(signed_in("leasing.view_lease"), f"/ops/leases/{lease_id}/")

    assert page.status == 404
    assert f"There is no lease {lease_id}." in page.text
    assert [link["href"] for link in page.all("main a")] == ["/ops/leases/"]


def get_posted(client: Client, path: str) -> Page:
    return Page(client.post(path))
