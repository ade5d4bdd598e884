"""The page about handlers: what takes long, what fails."""

from __future__ import annotations

import pytest
from django.test import Client

from leasing.functions import database_now
from tests.fixtures import client_with
from tests.pages import Page, get
from tests.tasks.support import sample_handlers

pytestmark = pytest.mark.django_db

HANDLERS = "/ops/handlers/"

viewer = client_with("leasing_tasks.view_task")


def test_those_that_fail_and_take_longest_come_first(viewer: Client) -> None:
    now = database_now("default")
    fast, slow = (0, {0.3: 90, 0.6: 10}), (0, {6.0: 5})
    sample_handlers(now, 30, sync=fast, export=slow, capture=(9, {0.3: 1}), broken=(2, {}))
    page = get(viewer, HANDLERS)

    cells = [[each.text for each in row.element.all("td")] for row in page.rows]
    assert cells == [
        ["capture", "10", "9", "0.3 s", "0.3 s", "0.3 s", "0.3 s"],
        ["broken", "2", "2", "–", "–", "–", "–"],
        ["export", "5", "0", "6.2 s", "6.2 s", "6.2 s", "6.2 s"],
        ["sync", "100", "0", "0.3 s", "0.6 s", "0.3 s", "0.6 s"],
    ]
    assert "/ops/tasks/?name=capture" in page.links


def test_the_time_range_is_chosen_in_the_address(viewer: Client) -> None:
    sample_handlers(database_now("default"), 3_000, sync=(0, {0.3: 1}))

    assert get(viewer, HANDLERS).is_empty
    page = get(viewer, f"{HANDLERS}?span=1h")
    assert len(page.rows) == 1 and not page.is_empty
    assert page.one(".tabs a[aria-current=true]")["href"] == f"{HANDLERS}?span=1h"
    assert Page(viewer.get(HANDLERS, {"span": "9y"})).status == 400
