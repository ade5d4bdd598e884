"""The page of one worker: whether it lives, what it does, what it did."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from leasing.functions import after
from tasks.models import Task, Worker
from tests.factories import TaskFactory, WorkerFactory
from tests.fixtures import client_with
from tests.pages import get, sent_by, signed_in

pytestmark = pytest.mark.django_db


viewer = client_with("tasks.view_worker", "tasks.view_task")


def url_of(worker: Worker) -> str:
    return f"/ops/workers/{worker.pk}/"


@pytest.mark.once
@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("live", "It lives, and has nothing to do."),
        ("late", r"Its sign of life is missing: it was last seen \d+ s ago."),
        ("gone", r"It vanished without signing off: it was last seen \d+ s ago."),
        ("stopped", r"It has stopped in good order (just now|\d+ s ago)\."),
    ],
)
def test_a_worker_tells_how_it_is(viewer: Client, state: str, says: str) -> None:
    worker = WorkerFactory(name="dora", state=state)
    text = get(viewer, url_of(worker)).text
    assert f"dora {state}" in text and re.search(says, text)


def test_it_shows_what_it_works_on_and_what_it_did(viewer: Client) -> None:
    worker = WorkerFactory(name="dora")
    now, done, other = (
        TaskFactory(state="running", holder="dora"),
        TaskFactory(state="succeeded", holder="dora"),
        TaskFactory(state="succeeded", holder="emil"),
    )
    failed = TaskFactory(state="dead", holder="dora")
    page = get(viewer, url_of(worker))
    assert "It lives, and works on 1 task." in page.text
    linked = {link for link in page.links if link.startswith("/ops/tasks/")}
    assert {f"/ops/tasks/{task.pk}/" for task in (now, done, failed)} <= linked
    assert f"/ops/tasks/{other.pk}/" not in linked
    assert "attempt 1" in page.text and "no luck" in page.text


@pytest.mark.once
def test_what_a_process_of_its_name_left_is_told_apart(viewer: Client) -> None:
    worker = WorkerFactory(name="dora")
    TaskFactory(state="running", holder="dora")
    Worker.objects.update(started_at=after(timedelta(seconds=5)))
    for url in (url_of(worker), "/ops/workers/"):
        text = get(viewer, url).text
        assert "left by the process" in text
    assert "0 of 4" in text, "none of its threads is at it"


def test_a_list_names_some_of_the_tasks_of_each_worker(viewer: Client) -> None:
    WorkerFactory(name="dora")
    Task.objects.enqueue_many("sample.sleep", [{"sleep_duration_seconds": 1}] * 5)
    Task.objects.claim("dora", limit=5)
    text = get(viewer, "/ops/workers/").text
    assert "and 2 more" in text and "4 of 4, 1 ahead" in text


@pytest.mark.once
def test_one_that_generates_has_no_tasks_to_show(viewer: Client) -> None:
    worker = WorkerFactory(name="emil", role="generator", concurrency=0, queues=[])
    text = get(viewer, url_of(worker)).text
    assert "It generates sample tasks, or stands by to." in text
    assert "What it does now" not in text


@pytest.mark.once
def test_without_permission_for_tasks_none_are_shown() -> None:
    worker = WorkerFactory(name="dora")
    TaskFactory(state="succeeded", holder="dora")
    page = get(signed_in("tasks.view_worker"), url_of(worker))
    assert "What it did lately" not in page.text
    assert signed_in("tasks.view_task", name="olga").get(url_of(worker)).status_code == 403
    assert signed_in("tasks.view_worker", name="nina").get("/ops/workers/999/").status_code == 404


def test_the_page_asks_a_fixed_number_of_questions(viewer: Client) -> None:
    worker = WorkerFactory(name="dora")

    def work() -> None:
        for state in ("running", "succeeded", "dead"):
            TaskFactory(state=state, holder="dora")

    work()
    few = sent_by(viewer, url_of(worker))
    work()
    statements = sent_by(viewer, url_of(worker))
    assert len(statements) == len(few) <= 12
    assert not any("OFFSET" in sql for sql in statements)
