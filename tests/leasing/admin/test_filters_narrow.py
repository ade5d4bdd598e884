"""The filters of lists in the admin: a choice shows some of the rows, and no others."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.pages import admins, get
from tests.surface import reading

pytestmark = pytest.mark.django_db


def shown(client: Client, url: str) -> set[str]:
    """Return the keys of the rows of the list at ``url``."""
    return {each["value"] for each in get(client, url).all("input[name=_selected_action]")} or {
        link["href"].partition("?")[0] for link in get(client, url).all("#result_list th a[href]")
    }


@pytest.mark.slow
def test_a_choice_of_a_filter_shows_some_of_the_rows_and_no_others(admin_client: Client) -> None:
    reading.make_rows()
    narrowing = set()
    for model, site in admins().items():
        url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        page = get(admin_client, url)
        rows = shown(admin_client, url)
        for box in page.all("#changelist-filter [data-filter-title]"):
            choices = [each["href"] for each in box.all("a[href]") if "=" in each["href"]]
            found = [shown(admin_client, url + each) for each in choices]
            name = (model.__name__, box["data-filter-title"])
            if len(rows) >= site.list_per_page:  # the other rows stand on further pages
                continue
            assert all(each <= rows for each in found), name
            if any(each < rows for each in found):
                narrowing.add(name)

    assert {("Lease", "state"), ("Task", "state"), ("Worker", "state")} <= narrowing
    assert len(narrowing) > 3, narrowing
