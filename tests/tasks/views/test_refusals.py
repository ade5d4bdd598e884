"""A task, or a worker, that is gone: its page says so, and for how long they are kept."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pytest_django import Settings

from tests.pages import Page, get, signed_in

pytestmark = pytest.mark.django_db

GONE = "There is no task:4711. It ended and was deleted, or it never existed."


def test_a_task_that_is_gone_says_how_long_ended_tasks_are_kept() -> None:
    page = get(signed_in("leasing_tasks.view_task"), "/ops/tasks/4711/")

    assert page.status == 404
    kept = (
        "Succeeded and cancelled tasks are kept for 7 d, failed and keyed tasks are kept for 90 d."
    )
    assert f"{GONE} {kept}" in page.text
    assert [link["href"] for link in page.all("main a")] == ["/ops/tasks/"]


def test_the_retention_of_the_project_is_told(settings: Settings) -> None:
    keep = timedelta(hours=1)
    settings.TASK_QUEUE = {"RETENTION": {"succeeded": keep, "cancelled": keep, "failed": None}}

    page = get(signed_in("leasing_tasks.view_task"), "/ops/tasks/4711/")

    kept = (
        "Succeeded and cancelled tasks are kept for 1 h, "
        "failed and keyed tasks are kept without limit."
    )
    assert f"{GONE} {kept}" in page.text


def test_an_action_on_a_task_that_is_gone_says_the_same() -> None:
    client = signed_in("leasing_tasks.view_task", "leasing_tasks.retry_task")

    page = Page(client.post("/ops/tasks/4711/retry/"))

    assert page.status == 404
    assert GONE in page.text


def test_a_worker_that_is_gone_has_a_page_with_the_way_back() -> None:
    page = get(signed_in("leasing_tasks.view_worker"), "/ops/workers/4711/")

    assert page.status == 404
    assert "deleted a day after its last heartbeat" in page.text
    assert [link["href"] for link in page.all("main a")] == ["/ops/workers/"]
