"""Filters in the address of a list in Django's admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.db.models import JSONField, Model
from django.test import Client, RequestFactory
from django.urls import reverse

from leasing.admin.base import ReadOnlyAdmin
from leasing.models import Lease
from tasks.models import Task
from tests.factories import make_task
from tests.fixtures import client_with
from tests.pages import admins, get, sent_by

pytestmark = pytest.mark.django_db

TASKS = "/admin/leasing_tasks/task/"
OURS = list(admins())
EACH = pytest.mark.parametrize("model", OURS, ids=[model.__name__ for model in OURS])

viewer = client_with("leasing_tasks.view_task", is_staff=True)


def list_of(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def test_a_masked_secret_is_not_found_letter_by_letter(viewer: Client) -> None:
    make_task(name="jobs.echo", data={"password": "hunter2"})
    for lookup in ("password", "password__startswith", "regex", "has_key", "contains"):
        for letter in ("h", "x"):
            response = viewer.get(TASKS, {f"task_data__{lookup}": letter})
            assert response.status_code == 400, lookup


@EACH
def test_no_column_is_looked_into(model: type[Model], admin_client: Client) -> None:
    site, request = admins()[model], RequestFactory().get("/")
    assert isinstance(site, ReadOnlyAdmin)
    # What a query adds to its rows can be looked into as columns can.
    names = {*(field.name for field in model._meta.get_fields()), "pk", "now", "state"}
    for name in names:
        for lookup in ("regex", "iregex", "startswith", "contains", "gt", "in", "a__startswith"):
            assert not site.lookup_allowed(f"{name}__{lookup}", "x", request), (name, lookup)
    for json in (each.name for each in model._meta.concrete_fields if isinstance(each, JSONField)):
        for lookup in (json, f"{json}__exact", f"{json}__isnull"):
            assert not site.lookup_allowed(lookup, "x", request), lookup
    address = f"{list_of(model)}?{model._meta.pk.name}__regex=(a%2B)%2B$"
    assert admin_client.get(address).status_code == 400


@EACH
def test_every_filter_that_a_list_offers_works(model: type[Model], admin_client: Client) -> None:
    filters = get(admin_client, list_of(model)).all("#changelist-filter a[href]")
    for link in filters:
        assert sent_by(admin_client, list_of(model) + link["href"])


def test_a_foreign_key_with_limited_choices_shows_them(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task()
    limits: list[Any] = [{"priority__gte": 0}, lambda: {"attempts": 0}]
    monkeypatch.setattr(Task._meta, "related_fkey_lookups", limits)
    assert len(get(viewer, f"{TASKS}?priority__gte=0&attempts=0").rows) == 1
    for other in ("priority__gte=1", "attempts__gte=0", "attempts=1"):
        assert viewer.get(f"{TASKS}?{other}").status_code == 400


def test_a_list_is_sorted_by_what_it_offers_alone(viewer: Client) -> None:
    make_task()
    for number in range(1, len(admins()[Task].list_display) + 1):
        sorted_by = [
            sql.partition(" ORDER BY ")[2] for sql in sent_by(viewer, f"{TASKS}?o={number}")
        ]
        assert not [by for by in sorted_by if '"id"' not in by.split(",")[0] and by], number


def test_what_a_project_offers_in_its_own_admin_works() -> None:
    class Project(ReadOnlyAdmin):
        list_filter = ("created_at", ("holder", admin.AllValuesFieldListFilter))

    site, request = Project(Lease, admin.site), RequestFactory().get("/")
    for lookup in ("created_at__gte", "created_at__lt", "created_at__isnull", "holder"):
        assert site.lookup_allowed(lookup, "x", request)
    assert not site.lookup_allowed("holder__regex", "x", request)
    assert not site.lookup_allowed("resource", "x", request)
