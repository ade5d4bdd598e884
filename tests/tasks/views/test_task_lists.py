"""The lists of tasks: their order, what narrows them, how far a search looks, what they cost."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from leasing.functions import after, database_now
from leasing.web import paging
from leasing.web.cursors import NEWEST_FIRST, Cursor
from tasks.dashboard import listing
from tasks.models import Task
from tests.factories import make_task
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import Page, assert_cheap, get, sent_by
from tests.tasks.support import Handlers

pytestmark = pytest.mark.django_db

LIST = "/ops/tasks/"

viewer = client_with("leasing_tasks.view_task")
reader = client_with(
    *("leasing_tasks.view_task", "leasing_tasks.view_payload", "leasing_tasks.cancel_task"),
    name="rita",
)


def found(page: Page) -> list[int]:
    """The ids of the tasks that the list shows, in its order."""
    keys = (re.fullmatch(rf"{LIST}(\d+)/", link) for link in page.links)
    return [int(key[1]) for key in keys if key]


def keys(*tasks: Task) -> list[int]:
    return [task.pk for task in tasks]


def address(**asked: object) -> str:
    return f"{LIST}?{urlencode(asked)}"


# Order


def test_what_waits_is_listed_by_when_it_may_start(viewer: Client) -> None:
    late, soon = make_task(state="scheduled"), make_task(state="retrying")
    assert found(get(viewer, address(state="scheduled"))) == keys(soon, late)
    second, first = make_task(), make_task()
    Task.objects.filter(pk=first.pk).update(scheduled_at=after(timedelta(minutes=-5)))
    assert found(get(viewer, address(state="ready"))) == keys(first, second)


@pytest.mark.parametrize("state", ["failed", "succeeded", "cancelled"])
def test_what_ended_is_listed_by_when_it_did(viewer: Client, state: str) -> None:
    made = state
    first, second, third = (make_task(state=made) for _ in range(3))
    for age, task in ((1, second), (2, third), (3, first)):
        Task.objects.filter(pk=task.pk).update(processed_at=after(timedelta(seconds=-age)))
    assert found(get(viewer, address(state=state))) == keys(second, third, first)


def test_a_retrying_task_is_one_whose_attempt_was_spent(viewer: Client) -> None:
    retrying, recovered = make_task(state="retrying"), make_task(state="recovered")
    make_task(state="returned")
    assert set(found(get(viewer, address(state="retrying")))) == set(keys(retrying, recovered))


@pytest.mark.parametrize("state", ["ready", "failed"])
def test_pages_by_a_moment_show_every_task_once_though_many_have_the_same(
    viewer: Client, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = database_now("default").replace(microsecond=0)
    for number in range(7):
        task = make_task(state=state)
        column = "scheduled_at" if state == "ready" else "processed_at"
        Task.objects.filter(pk=task.pk).update(**{column: moment - timedelta(seconds=number // 3)})
    everything = found(get(viewer, address(state=state)))
    monkeypatch.setattr(paging.page_of, "__defaults__", (2, NEWEST_FIRST, None))
    page = get(viewer, address(state=state))
    forth = [found(page)]
    while page.next:
        page = get(viewer, page.next)
        forth.append(found(page))
    assert sum(forth, []) == everything and len(everything) == 7
    back = [found(page)]
    while page.previous:
        page = get(viewer, page.previous)
        back.append(found(page))
    assert back[-1] == forth[0] and sum(reversed(back), []) == everything


def test_a_place_in_a_list_of_another_order_is_refused(viewer: Client) -> None:
    cursor = Cursor("leasing_tasks.task", "older", "9").encode()
    assert get(viewer, address(at=cursor)).status == 200
    assert get(viewer, address(at=cursor, state="failed")).status == 400


@pytest.mark.parametrize("moment", ["", "yesterday", "2030-01-01", "9999-12-31T23:59:59.999999Z"])
def test_a_place_at_no_moment_is_refused(viewer: Client, moment: str) -> None:
    cursor = Cursor("leasing_tasks.task", "older", "9", "processed_at", moment).encode()
    assert get(viewer, address(at=cursor, state="failed")).status == 400


# What narrows


def test_filters_narrow_together_and_live_in_the_address(
    viewer: Client, handlers: Handlers
) -> None:
    handlers["mail.send"] = handlers["mail.sort"] = lambda ctx: None
    wanted = make_task(name="mail.send", data={}, state="running", holder="dora")
    make_task(name="mail.send", data={}, state="running", holder="emil")
    make_task(name="mail.sort", data={}, state="running", holder="dora")
    make_task(name="mail.send", data={}, state="succeeded", holder="dora")
    page = get(viewer, address(state="running", q="mail.", name="mail.send", holder="dora"))
    assert found(page) == keys(wanted)
    tabs = page.tabs
    assert (tabs["state=running"], tabs["state=succeeded"], tabs[""]) == ("1", "1", "2")
    (ended,) = [each["href"] for each in page.all("a.tab") if "state=succeeded" in each["href"]]
    assert found(get(viewer, ended)) not in (keys(wanted), [])
    without = next(link for link in page.links if "holder" not in link and "name=" in link)
    assert len(found(get(viewer, without))) == 2


@pytest.mark.parametrize("name", ["sort", "file"])
def test_an_alias_filters_as_the_name_does(viewer: Client, renamed: list[int], name: str) -> None:
    assert sorted(found(get(viewer, address(name=name)))) == renamed


@pytest.mark.usefixtures("queues")
def test_a_queue_is_a_filter(viewer: Client) -> None:
    mail = make_task(queue="mail")
    make_task()
    assert found(get(viewer, address(queue="mail"))) == keys(mail)
    assert found(get(viewer, address(queue="mai"))) == []


def test_the_time_of_enqueueing_is_a_filter(viewer: Client) -> None:
    old, new = make_task(), make_task()
    Task.objects.filter(pk=old.pk).update(created_at=after(timedelta(hours=-2)))
    hour_ago = (database_now("default") - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    assert found(get(viewer, address(since=hour_ago))) == keys(new)
    assert found(get(viewer, address(until=hour_ago))) == keys(old)


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "yesterday"},
        {"until": "2030-13-01T00:00"},
        {"since": "2030-01-01T00:00+99:99"},
        {"name": "x" * 201},
        {"queue": "a\0b"},
        {"holder": "\0"},
    ],
)
def test_nonsense_in_a_filter_is_refused(viewer: Client, asked: dict[str, str]) -> None:
    page = get(viewer, address(**asked))
    assert page.status == 400 and LIST in page.links


# How far a search looks


def test_a_search_looks_at_so_many_rows_and_goes_on(
    viewer: Client, handlers: Handlers, limits: Limits
) -> None:
    limits(reach=4)
    handlers["rare"] = lambda ctx: None
    first, second = (make_task(name="rare", data={}) for _ in range(2))
    for _ in range(6):
        make_task()
    page = get(viewer, address(name="rare"))
    assert found(page) == [] and page.one("p.empty").numbers == [4]
    page = get(viewer, page.next)
    assert found(page) == keys(second, first)
    page = get(viewer, page.next)
    assert found(page) == [] and page.one("p.empty").numbers == [] and not page.next


@pytest.mark.parametrize("state", ["ready", "failed"])
def test_a_search_by_a_moment_misses_nothing(
    viewer: Client, state: str, handlers: Handlers, limits: Limits
) -> None:
    limits(reach=2)
    handlers["rare"] = handlers["other"] = lambda ctx: None
    rare = [
        task
        for number in range(9)
        for task in [make_task(name="rare" if number % 3 else "other", data={}, state=state)]
        if task.name == "rare"
    ]
    moment = database_now("default").replace(microsecond=0)
    column = "scheduled_at" if state == "ready" else "processed_at"
    for number, task in enumerate(Task.objects.order_by("pk")):
        Task.objects.filter(pk=task.pk).update(**{column: moment - timedelta(seconds=number // 3)})
    page = get(viewer, address(state=state, name="rare"))
    seen = found(page)
    while page.next:
        page = get(viewer, page.next)
        seen += found(page)
    assert sorted(seen) == sorted(keys(*rare))


def test_the_tasks_of_a_concurrency_key_are_found_from_each_of_them(viewer: Client) -> None:
    key: dict[str, Any] = {"concurrency_key": "customer:7&7", "concurrency_limit": 2}
    running, ready = make_task(state="running", **key), make_task(**key)
    make_task(concurrency_key="customer:77", concurrency_limit=2)
    link = address(key="customer:7&7")
    assert link in get(viewer, f"{LIST}{ready.pk}/").links
    assert found(get(viewer, link)) == keys(ready, running)


def test_a_search_shows_no_count_that_it_does_not_know(viewer: Client, limits: Limits) -> None:
    for _ in range(4):
        make_task()
    page = get(viewer, address(q="sample"))
    assert (page.tabs[""], page.tabs["state=stuck"]) == ("4", "0")
    limits(search_cap=3)
    page = get(viewer, address(q="sample"))
    assert (page.tabs[""], page.tabs["state=stuck"]) == ("", "0")


# Arguments


def test_arguments_are_shown_and_searched_by_those_who_may_see_them(
    reader: Client, handlers: Handlers
) -> None:
    handlers["order"] = lambda ctx, **data: None
    # PostgreSQL has short names first.
    shop = {"lines": [1, {"sku": "q7"}], "customer": "Hooli & Müller"}
    task = make_task(name="order", data=shop)
    make_task(state="failed")
    page = get(reader, LIST)
    shown = [each.text for each in page.all(".payload bdi")]
    assert shown == [
        "sleep_duration_seconds=1",
        'lines=[1, {"sku": "q7"}], customer=Hooli & Müller',
    ]
    for text in ("hooli", "MÜLLER", "customer=hooli", '"sku": "q7"'):
        page = get(reader, address(q=text))
        assert found(page) == keys(task), text
        assert (page.tabs[""], page.tabs["state=ready"]) == ("1", "1")
    assert found(get(reader, address(q="hooli", state="failed"))) == []
    exported = reader.get("/ops/tasks.json", {"q": "hooli"})
    assert [each["id"] for each in json.loads(exported.getvalue())] == keys(task)
    asked = get(reader, f"/ops/tasks/bulk/cancel/?{urlencode({'q': 'hooli', 'scope': 'all'})}")
    assert f"task:{task.pk}" in asked.text


@pytest.mark.parametrize(
    ("data", "sought", "who"),
    [
        ({"customer": "hooli"}, "hooli", "viewer"),
        ({"customer": "hooli"}, "customer", "viewer"),
        ({"password": "hunter2"}, "hunter2", "reader"),
        ({"to": ["Authorization", "hunter2"]}, "hunter2", "reader"),
        # A text that was cut off cannot be masked.
        ({"note": "x" * listing.PAYLOAD_READ, "city": "hooli"}, "hooli", "reader"),
    ],
)
def test_a_search_tells_nothing_of_arguments_that_the_user_may_not_see(
    data: dict[str, object],
    sought: str,
    who: str,
    request: pytest.FixtureRequest,
    handlers: Handlers,
) -> None:
    handlers["order"] = lambda ctx, **data: None
    client, reader = (request.getfixturevalue(each) for each in (who, "reader"))
    make_task(name="order", data=data)
    get(reader, address(q=sought))  # which another user's poll may share
    page = get(client, address(q=sought))
    assert found(page) == [] and page.tabs[""] == "0"
    assert json.loads(client.get("/ops/tasks.json", {"q": sought}).getvalue()) == []
    assert sought not in get(client, LIST).one("section.card").text
    assert found(get(client, f"/ops/tasks/stuck/?q={sought}")) == []


@pytest.mark.usefixtures("shared_readings")
def test_polls_of_users_who_see_different_columns_are_not_shared(
    viewer: Client, reader: Client
) -> None:
    task = make_task()
    for client, ids in ((reader, keys(task)), (viewer, []), (reader, keys(task))):
        page = Page(client.get(address(q="seconds=1"), headers={"X-Live": "1"}))
        assert found(page) == ids


def test_a_search_in_arguments_reads_so_many_rows_and_goes_on(
    reader: Client, limits: Limits
) -> None:
    limits(reading_reach=4)
    task = make_task(data={"sleep_duration_seconds": 77})
    for _ in range(5):
        make_task()
    page = get(reader, address(q="=77"))
    assert found(page) == [] and page.one("p.empty").numbers == [4]
    assert found(get(reader, page.next)) == keys(task)


# What it costs


@pytest.mark.parametrize("asked", [{}, {"q": "sample", "queue": "default", "holder": "dora"}])
def test_every_list_sends_the_same_few_statements(viewer: Client, asked: dict[str, str]) -> None:
    urls = [address(state=state, **asked) for state in listing.STATES]
    few = {url: len(sent_by(viewer, url)) for url in urls}
    for made in ("ready", "running", "stuck", "failed", "succeeded", "cancelled", "retrying"):
        make_task(state=made)
    large = ('"task_data"', '"task_output"', '"traceback"', '"checkpoint"')
    for url in urls:
        many = sent_by(viewer, url)
        assert few[url] == len(many) <= 15, url
        assert_cheap(many)
        assert not any(column in sql for sql in many for column in large), url
