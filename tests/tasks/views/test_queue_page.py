"""The page about queues: what waits where, pause and resume."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from leasing.functions import after
from leasing.models import AuditEntry
from leasing.web.counts import COUNT_CAP
from tasks.dashboard import queue_rows
from tasks.dashboard.badges import OPEN, PAUSED, UNSERVED
from tasks.models import Queue, Sample, Task
from tests.factories import make_task, make_worker
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import Page, Row, get, sent_by

pytestmark = pytest.mark.django_db

QUEUES = "/ops/queues/"
PAUSE, RESUME = f"{QUEUES}pause/", f"{QUEUES}resume/"
VIEW = ("leasing_tasks.view_queue", "leasing_tasks.view_task")
MAY_PAUSE = "leasing_tasks.pause_queue"

viewer = client_with(*VIEW)
operator = client_with(*VIEW, MAY_PAUSE, name="olga")


def counts(row: Row) -> list[float]:
    """The number of ready, scheduled and running tasks of a queue, and of its workers."""
    return [number for cell in row.element.all("td.number") for number in cell.numbers]


def in_queue(name: str, **what: Any) -> Task:
    task = make_task(**what)
    Task.objects.filter(pk=task.pk).update(queue=name)
    return task


def test_without_queues_the_page_says_where_they_come_from(viewer: Client) -> None:
    page = get(viewer, QUEUES)
    assert page.is_empty and page.rows == []


def test_each_queue_tells_what_waits_what_runs_and_for_how_long(viewer: Client) -> None:
    make_worker(queues=["default"])
    make_worker(queues=["default", "mail"])
    old = make_task()
    Task.objects.filter(pk=old.pk).update(scheduled_at=after(timedelta(minutes=-3)))
    make_task()
    make_task(state="scheduled")
    in_queue("mail", state="running")
    default, mail = get(viewer, QUEUES).rows
    assert (default.key, mail.key) == ("queue-default", "queue-mail")
    assert default.badges == mail.badges == [OPEN.word]
    assert counts(default) == [2, 1, 0, 2] and counts(mail) == [0, 0, 1, 1]
    waiting = Task.objects.get(pk=old.pk).scheduled_at
    (oldest,) = default.element.one("td.small").all("time")
    assert oldest["datetime"] == waiting.isoformat(timespec="milliseconds")
    assert not mail.element.one("td.small").all("time")


def test_a_queue_that_nobody_serves_says_so_once_something_waits_there(viewer: Client) -> None:
    make_worker(queues=["default"])
    Queue.objects.declare(["idle"])
    in_queue("lost")
    page = get(viewer, QUEUES)
    assert page.badges.count(UNSERVED.word) == 1
    lost = page.row("queue-lost")
    assert lost.badges == [UNSERVED.word]
    assert lost.element.one("code").text == "manage.py run_worker --queue lost"
    (need,) = get(viewer, "/ops/").all(".needs [data-code=unserved]")
    assert "lost" in need.one(".loud").text and need.one(".loud").numbers == [1]


def test_a_pause_shows_who_when_and_why_on_the_queue_and_the_overview(operator: Client) -> None:
    make_worker()
    make_task()
    response = operator.post(PAUSE, {"queue": "default", "reason": "the <mail> is down"})
    assert response.status_code == 302
    for url in (QUEUES, "/ops/"):
        page = get(operator, url)
        (paused,) = [each for each in page.all("[data-key=queue-default]") if each.all(".badge")]
        assert paused.one(".badge").text == PAUSED.word
        assert [each.text for each in paused.all(".aside bdi")] == ["olga", "the <mail> is down"]
        assert "<mail>" not in page.html
    need = page.one(".needs [data-code=paused] .loud")
    assert "default" in need.text and "olga" in need.text and need.numbers == [1]
    entry = AuditEntry.objects.get()
    assert (entry.verb, entry.key, entry.by, entry.changed) == ("pause", "default", "olga", 1)
    assert entry.reason == "the <mail> is down" and entry.via == "page"


def test_a_task_that_waits_there_shows_it_too(operator: Client) -> None:
    make_worker()
    task = make_task()
    operator.post(PAUSE, {"queue": "default", "reason": "too hot"})
    page = get(operator, f"/ops/tasks/{task.pk}/")
    assert page.code == "queue_paused" and "too hot" in page.answers["why"].text
    assert "olga" in page.facts.values()


def test_a_pause_needs_a_reason_and_a_queue_that_there_is(operator: Client) -> None:
    Queue.objects.declare(["default"])
    page = Page(operator.post(PAUSE, {"queue": "default"}))
    assert page.status == 400 and len(page.alerts) == 1
    assert "open" in page.one("details.ask[data-key=pause]").attrs
    page = Page(operator.post(PAUSE, {"queue": "nowhere", "reason": "x"}))
    assert page.status == 400 and "nowhere" in page.alerts[0]
    assert not Queue.objects.paused().exists()
    assert operator.post(RESUME).status_code == 400


def test_too_many_to_count_are_told_by_the_latest_sample(viewer: Client, limits: Limits) -> None:
    limits(count_cap=2)
    make_worker()
    for _ in range(3):
        make_task()
    assert queue_rows.read_queues().ready.value > COUNT_CAP, "nobody samples"
    Sample.objects.create(queue="default", slot=10, ready=99)
    Sample.objects.create(queue="default", slot=20, ready=4_000, scheduled=7)
    Sample.objects.create(queue="", slot=30, renewals=5)  # the one under way
    page = get(viewer, QUEUES)
    assert counts(page.row("queue-default")) == [4_000, 7, 0, 1]
    (counted_at,) = page.all("p.pager time")
    assert counted_at["datetime"].startswith("1970-01-01T00:00:2")


def test_the_page_asks_a_fixed_number_of_questions(viewer: Client) -> None:
    few = sent_by(viewer, QUEUES)
    for number in range(5):
        in_queue(f"queue-{number}")
        make_worker(queues=[f"queue-{number}"])
    assert len(sent_by(viewer, QUEUES)) == len(few) <= 11
