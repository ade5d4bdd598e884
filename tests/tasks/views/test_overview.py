"""The pages about tasks and workers: who may see and do what, and lists."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from leasing.functions import DbNow, after, database_now
from leasing.web.access import READ_ONLY, why_not
from tasks.dashboard.badges import WORKER_BADGES
from tasks.diagnosis import diagnose
from tasks.exceptions import GiveUp
from tasks.models import Task, Worker, WorkerState
from tests.factories import make_task, make_worker
from tests.fixtures import client_with
from tests.pages import Page, assert_cheap, get, sent_by, signed_in, user_with
from tests.tasks.support import Handlers

pytestmark = pytest.mark.django_db

LIST, STUCK, WORKERS = "/ops/tasks/", "/ops/tasks/stuck/", "/ops/workers/"
VIEW, VIEW_WORKERS = "leasing_tasks.view_task", "leasing_tasks.view_worker"
STATES = ("ready", "scheduled", "retrying", "running", "stuck", "succeeded", "failed", "cancelled")
#: What each list has, where that is more than the tasks of its own state.
PARTS = {"running": {"running", "stuck"}, "scheduled": {"scheduled", "retrying"}}
TABS = ("stuck", "running", "ready", "scheduled", "retrying", "failed", "succeeded", "cancelled")

viewer = client_with(VIEW, VIEW_WORKERS)


def url_of(task: Task) -> str:
    return reverse("leasing_tasks:detail", args=[task.pk])


def in_state(state: str) -> Task:
    task = make_task(state=state)
    return task


def found(page: Page) -> set[str]:
    return {link for link in page.links if re.fullmatch(rf"{LIST}\d+/", link)}


# Who may see and do what


@pytest.mark.parametrize("url", ["/ops/", LIST, STUCK, WORKERS, f"{LIST}1/", "/ops/generator/"])
def test_pages_are_closed_by_default(client: Client, url: str) -> None:
    assert client.get(url)["Location"] == f"/ops/login/?next={url}"
    client.force_login(user_with())
    assert client.get(url).status_code == 403


def test_workers_have_a_permission_of_their_own() -> None:
    client = signed_in(VIEW)
    assert client.get(WORKERS).status_code == 403
    page = get(client, LIST)
    assert WORKERS not in page.links and STUCK in page.links


def test_a_task_says_that_its_viewer_lacks_a_permission(viewer: Client) -> None:
    page = get(viewer, url_of(make_task(state="failed")))
    assert why_not("") in page.one("[data-forbidden]").text


def test_while_a_site_is_read_only_no_permission_is_said_to_lack(
    viewer: Client, settings: Settings
) -> None:
    task = make_task(state="failed")
    settings.LEASING = {**settings.LEASING, "READ_ONLY": True}
    for url in (url_of(task), reverse("leasing_tasks:generator")):
        assert get(viewer, url).one("[data-forbidden]").text == why_not("any thing")
    refused = get(
        signed_in("leasing_tasks.retry_task", name="rita"),
        f"{reverse('leasing_tasks:bulk', args=['retry'])}?task={task.pk}",
    )
    assert refused.status == 403 and READ_ONLY in refused.text


# Lists


def test_a_list_has_the_tasks_of_its_state(viewer: Client) -> None:
    tasks = {each: in_state(each) for each in STATES}
    for state in (*TABS, "ready", "scheduled"):
        page = get(viewer, f"{LIST}?state={state}")
        expected = PARTS.get(state, {state})
        assert found(page) == {url_of(tasks[each]) for each in expected}, state
        if state in TABS:
            assert page.tabs[f"state={state}"] == str(len(expected))


def test_all_tasks_are_listed_newest_first(viewer: Client) -> None:
    tasks = [in_state(each) for each in STATES]
    page = get(viewer, LIST)
    links = [link for link in page.links if link in found(page)]
    assert links == [url_of(task) for task in reversed(tasks)]


def test_a_task_is_found_by_id_name_and_prefix(viewer: Client, handlers: Handlers) -> None:
    handlers["mail.send"] = handlers["mail.sort"] = lambda ctx: None
    send, sort, other = (
        make_task(name="mail.send", data={}),
        make_task(name="mail.sort", data={}),
        make_task(),
    )
    for text, expected in (
        (f"{other.pk}", [other]),
        (f"%23{other.pk}", [other]),
        ("mail.send", [send]),
        ("mail.", [send, sort]),
        ("end", []),
        ("9" * 25, []),
    ):
        assert found(get(viewer, f"{LIST}?q={text}")) == {url_of(task) for task in expected}, text


def test_a_failed_task_shows_how_its_error_begins(viewer: Client) -> None:
    task = make_task(state="running")
    Task.objects.fail(task, GiveUp("x" * 142 + "y" * 300))  # after "GiveUp: "
    sql = " ".join(sent_by(viewer, f"{LIST}?state=failed"))
    whole, begun = r'"last_error"', r'(SUBSTR|LEFT)\("leasing_tasks_task"."last_error", '
    assert len(re.findall(whole, sql)) == len(re.findall(begun, sql)) == 1
    page = get(viewer, f"{LIST}?state=failed")
    assert "x" * 142 + "y" * 50 in page.text and "y" * 51 not in page.text


def test_an_unknown_state_and_a_bad_cursor_are_refused(viewer: Client) -> None:
    page = get(viewer, f"{LIST}?state=bogus")
    assert page.status == 400 and "bogus" in page.alerts[0]
    for url in (LIST, STUCK, WORKERS):
        assert get(viewer, f"{url}?at=nonsense").status == 400


def test_paging_shows_every_task_once(viewer: Client) -> None:
    tasks = Task.objects.enqueue_many("sample.sleep", [{"sleep_duration_seconds": 1}] * 101)
    assert len({task.pk for task in Task.objects.all()}) == len(tasks)
    page = get(viewer, f"{LIST}?state=ready")
    seen = [*found(page)]
    for _ in range(2):
        make_task()
        page = get(viewer, page.next)
        seen += found(page)
    assert sorted(seen) == sorted(map(url_of, Task.objects.all()))


@pytest.mark.parametrize("holder", ["ann", "a remote worker"])
def test_a_running_task_is_listed_with_the_time_for_which_it_has_run(
    viewer: Client, holder: str
) -> None:
    make_worker(name="ann")
    Worker.objects.update(started_at=after(timedelta(hours=-1)))
    task = make_task(state="running", holder=holder)
    Task.objects.filter(pk=task.pk).update(acquired_at=after(timedelta(seconds=-90)))

    for url in (LIST, WORKERS):
        (row,) = [each for each in get(viewer, url).rows if url_of(task) in each.links]
        assert re.search(
            r"running for 1 min 3\d s", row["When" if url == LIST else "Current tasks"]
        )


@pytest.mark.usefixtures("database_clock")  # or a task is late, or long due, by the second visit
def test_a_page_costs_the_same_however_much_it_shows(viewer: Client) -> None:
    urls = (LIST, f"{LIST}?state=failed", STUCK, WORKERS, "/ops/")

    def add() -> None:
        worker = make_worker()
        for state in ("ready", "running", "stuck", "failed", "succeeded"):
            make_task(state=state, holder=worker.name)
        Worker.objects.update(last_seen_at=DbNow())

    add()
    few = {url: len(sent_by(viewer, url)) for url in urls}
    for _ in range(3):
        add()
    for url in urls:
        many = sent_by(viewer, url)
        assert few[url] == len(many) <= 25, url
        assert not any('"task_data"' in sql or '"task_output"' in sql for sql in many), url
        if url.startswith(LIST):
            assert_cheap(
                [sql for sql in many if '"leasing_tasks_task"' in sql and "GROUP BY" not in sql]
            )


def test_hostile_text_is_inert(viewer: Client, handlers: Handlers) -> None:
    hostile = "<script>alert(1)</script>\"><img src=x onerror='alert(1)'>"
    handlers[hostile] = lambda ctx, **data: None
    task = make_task(name=hostile, data={hostile: hostile}, state="running", holder=hostile)
    Task.objects.fail(task, ValueError(hostile))
    make_worker(name=hostile, queues=[hostile])
    for url in (LIST, url_of(task), WORKERS, "/ops/"):
        page = get(viewer, url)
        assert hostile in page.text, url
        assert page.handlers == [] and all(script.get("src") for script in page.scripts), url


# Stuck


def test_a_stuck_task_says_who_held_it_until_when_and_what_happens_next(viewer: Client) -> None:
    make_task(state="running")
    task = make_task(state="stuck", holder="dora")
    page = get(viewer, STUCK)
    assert found(page) == {url_of(task)}
    assert "dora" in page.facts.values()
    (article,) = page.all("article")
    assert article["data-code"] == "no_recoverer" and article.all("time")
    for reported in (diagnose(task).headline, diagnose(task).next):
        assert re.sub(r"\d+ s", "", reported) in re.sub(r"\d+ s", "", article.text)
    make_worker(name="emil")
    (article,) = get(viewer, STUCK).all("article")
    assert article["data-code"] == "expired_unclaimed" and "dora" in article.text
    assert diagnose(task).next in article.text


def test_when_nothing_is_stuck_the_page_says_so(viewer: Client) -> None:
    page = get(viewer, STUCK)
    assert page.is_empty and not page.all("article")


# Workers


def test_workers_show_their_state_and_what_they_do(viewer: Client) -> None:
    make_worker(name="dora")
    make_worker(name="late", state="late")
    make_worker(name="gone", state="gone")
    make_worker(name="over", state="stopped")
    task = make_task(state="running", holder="dora")
    page = get(viewer, WORKERS)
    assert page.tabs == {"": "2", "state=gone": "1", "state=stopped": "1"}
    late, dora = page.rows
    assert page.names[0] == "late" and late.badges == [WORKER_BADGES[WorkerState.LATE].word]
    assert dora.badges == [WORKER_BADGES[WorkerState.LIVE].word]
    assert dora.element.one("td.number").numbers == [1, 4] and url_of(task) in dora.links
    assert get(viewer, f"{WORKERS}?state=gone").names == ["gone"]
    assert get(viewer, f"{WORKERS}?state=stopped").names == ["over"]


def test_a_gone_worker_still_shows_what_it_held(viewer: Client) -> None:
    make_worker(name="gone", state="gone")
    task = make_task(state="stuck", holder="gone")
    (row,) = get(viewer, f"{WORKERS}?state=gone").rows
    assert url_of(task) in row.links
    held = row.element.one("td.who li")
    assert datetime.fromisoformat(held.one("time")["datetime"]) < database_now("default")


def test_without_workers_the_page_says_how_to_start_one(viewer: Client) -> None:
    assert "manage.py run_worker" in get(viewer, WORKERS).text


def test_a_poll_gets_a_page_without_its_frame(viewer: Client) -> None:
    task = make_task()
    page = get(viewer, LIST, x_live="1")
    assert found(page) == {url_of(task)} and page.scripts == []
