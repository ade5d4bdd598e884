"""The page about queues: what waits where, pause and resume."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from leasing import paging
from leasing.functions import after
from leasing.models import AuditEntry
from tasks import queues
from tasks.models import Queue, Sample, Task
from tests.factories import TaskFactory, WorkerFactory
from tests.fixtures import client_with
from tests.pages import Page, get, sent_by, user_with

pytestmark = pytest.mark.django_db

QUEUES = "/ops/queues/"
PAUSE, RESUME = f"{QUEUES}pause/", f"{QUEUES}resume/"
VIEW = ("tasks.view_queue", "tasks.view_task")
MAY_PAUSE = "tasks.pause_queue"

viewer = client_with(*VIEW)
operator = client_with(*VIEW, MAY_PAUSE, name="olga")


def in_queue(name: str, **what: Any) -> Task:
    task: Task = TaskFactory(**what)
    Task.objects.filter(pk=task.pk).update(queue=name)
    return task


@pytest.mark.once
def test_without_queues_the_page_says_where_they_come_from(viewer: Client) -> None:
    assert "There are no queues yet." in get(viewer, QUEUES).text


def test_each_queue_tells_what_waits_what_runs_and_for_how_long(viewer: Client) -> None:
    WorkerFactory(queues=["default"])
    WorkerFactory(queues=["default", "mail"])
    old = TaskFactory()
    Task.objects.filter(pk=old.pk).update(scheduled_at=after(timedelta(minutes=-3)))
    TaskFactory()
    TaskFactory(state="scheduled")
    in_queue("mail", state="running")
    text = get(viewer, QUEUES).text
    assert re.search(r"default open 2 1 0 3 min (\d+ s )?ago 2 mail open 0 0 1 – 1", text)


def test_a_queue_that_nobody_serves_says_so_once_something_waits_there(viewer: Client) -> None:
    WorkerFactory(queues=["default"])
    Queue.objects.declare(["idle"])
    in_queue("lost")
    text = get(viewer, QUEUES).text
    assert text.count("nobody serves it") == 1
    assert "manage.py run_worker --queue lost" in text
    assert "Nobody serves the queue lost, and 1 task waits there." in get(viewer, "/ops/").text


@pytest.mark.once
def test_a_pause_shows_who_when_and_why_on_the_queue_and_the_overview(operator: Client) -> None:
    WorkerFactory()
    TaskFactory()
    response = operator.post(PAUSE, {"queue": "default", "reason": "the <mail> is down"})
    assert response.status_code == 302
    for url in (QUEUES, "/ops/"):
        page = get(operator, url)
        said = r"Paused by olga (just now|\d+ s ago): “the <mail> is down”"
        assert re.search(said, page.text)
        assert "<mail>" not in page.html
    assert "The queue default is paused by olga, and 1 task waits there." in page.text
    entry = AuditEntry.objects.get()
    assert (entry.verb, entry.key, entry.by, entry.changed) == ("pause", "default", "olga", 1)
    assert entry.reason == "the <mail> is down" and entry.via == "page"


@pytest.mark.once
def test_a_task_that_waits_there_shows_it_too(operator: Client) -> None:
    WorkerFactory()
    task = TaskFactory()
    operator.post(PAUSE, {"queue": "default", "reason": "too hot"})
    text = get(operator, f"/ops/tasks/{task.pk}/").text
    assert "The queue default is paused: too hot" in text and "olga" in text


@pytest.mark.once
def test_resumed_it_is_open_again(operator: Client) -> None:
    Queue.objects.pause("default", by="emil", reason="x")
    text = Page(operator.post(RESUME, {"queue": "default"}, follow=True)).text
    assert "The queue default goes on." in text and "default open" in text
    again = Page(operator.post(RESUME, {"queue": "default"}, follow=True)).text
    assert "Nothing changed: the queue default was not paused." in again
    assert [entry.changed for entry in AuditEntry.objects.filter(verb="resume")] == [0, 1]


@pytest.mark.once
def test_who_paused_first_stays(operator: Client) -> None:
    Queue.objects.pause("default", by="emil", reason="first")
    text = Page(operator.post(PAUSE, {"queue": "default", "reason": "second"}, follow=True)).text
    assert "was paused already" in text and "“first”" in text


@pytest.mark.once
def test_a_pause_needs_a_reason_and_a_queue_that_there_is(operator: Client) -> None:
    Queue.objects.declare(["default"])
    page = Page(operator.post(PAUSE, {"queue": "default"}))
    assert page.status == 400 and "Say why" in page.text and '<details class="ask"' in page.html
    assert 'data-key="pause" open' in page.html
    page = Page(operator.post(PAUSE, {"queue": "nowhere", "reason": "x"}))
    assert page.status == 400 and "There is no queue" in page.text
    assert not Queue.objects.paused().exists()
    assert operator.post(RESUME).status_code == 400


@pytest.mark.once
def test_who_may_not_pause_sees_no_control_and_is_refused(viewer: Client) -> None:
    Queue.objects.declare(["default"])
    assert not {PAUSE, RESUME} & set(get(viewer, QUEUES).forms)
    assert viewer.post(PAUSE, {"queue": "default", "reason": "x"}).status_code == 403
    assert viewer.post(RESUME, {"queue": "default"}).status_code == 403
    assert not Queue.objects.paused().exists() and not AuditEntry.objects.exists()


@pytest.mark.once
def test_while_the_site_is_read_only_nobody_pauses(operator: Client, settings: Any) -> None:
    Queue.objects.declare(["default"])
    settings.LEASING = {**settings.LEASING, "READ_ONLY": True}
    assert PAUSE not in get(operator, QUEUES).forms
    assert operator.post(PAUSE, {"queue": "default", "reason": "x"}).status_code == 403
    assert not Queue.objects.paused().exists()


@pytest.mark.once
def test_pausing_needs_a_post_with_a_csrf_token() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user_with(*VIEW, MAY_PAUSE))
    for url in (PAUSE, RESUME):
        assert client.get(url).status_code == 405
        assert client.post(url, {"queue": "default", "reason": "x"}).status_code == 403


def test_too_many_to_count_are_told_by_the_latest_sample(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "COUNT_CAP", 2)
    WorkerFactory()
    for _ in range(3):
        TaskFactory()
    assert queues.read_queues().ready.value > paging.COUNT_CAP, "nobody samples"
    Sample.objects.create(queue="default", slot=10, ready=99)
    Sample.objects.create(queue="default", slot=20, ready=4_000, scheduled=7)
    Sample.objects.create(queue="", slot=20, renewals=5)
    page = get(viewer, QUEUES)
    assert re.search(r"default open 4,000 7 0 (just now|\d+ s ago) 1", page.text)
    assert "There are too many tasks to count at each look" in page.text


def test_the_page_asks_a_fixed_number_of_questions(viewer: Client) -> None:
    few = sent_by(viewer, QUEUES)
    for number in range(5):
        in_queue(f"queue-{number}")
        WorkerFactory(queues=[f"queue-{number}"])
    assert len(sent_by(viewer, QUEUES)) == len(few) <= 10
