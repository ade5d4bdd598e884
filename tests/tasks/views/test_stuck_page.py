"""The page of what is stuck, and of what was recovered lately."""

from __future__ import annotations

import csv
import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from leasing.functions import after
from leasing.web import paging
from leasing.web.cursors import NEWEST_FIRST
from tasks.models import Task, TaskAttempt
from tests.factories import make_task, make_tasks
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import Page, assert_cheap, get, sent_by
from tests.tasks.support import grant_to

pytestmark = pytest.mark.django_db

STUCK = "/ops/tasks/stuck/"

viewer = client_with("leasing_tasks.view_task")


def page_for(viewer: Client, **asked: object) -> Page:
    return get(viewer, f"{STUCK}?{urlencode(asked)}" if asked else STUCK)


def stuck(page: Page) -> list[int]:
    """The ids of the tasks that are shown as stuck, in their order."""
    return [int(each["data-key"].removeprefix("stuck")) for each in page.all("article")]


def recovered(page: Page) -> list[int]:
    """The ids of the tasks that are shown as recovered, in their order."""
    links = (each["href"] for each in page.all("#recovered-rows td.name a"))
    return [int(link.rstrip("/").rpartition("/")[2]) for link in links]


def keys(*tasks: Task) -> list[int]:
    return [task.pk for task in tasks]


def test_a_recovered_task_is_told_with_from_whom_why_after_how_long_and_what_became_of_it(
    viewer: Client,
) -> None:
    task = make_task(state="recovered", holder="ann")
    (attempt,) = TaskAttempt.objects.all()
    TaskAttempt.base_objects.update(
        started_at=attempt.ended_at - timedelta(seconds=75),
        refused_at=attempt.ended_at,
        refused_verb="complete",
    )
    grant_to(task, "bob")

    page = page_for(viewer)

    assert (stuck(page), recovered(page)) == ([], [task.pk])
    assert "No stuck tasks." in page.text
    (row,) = page.rows
    assert row["Recovered"].endswith("held for 1 min 15 s")
    assert row["From"].startswith("ann did not renew its lease in time A late result was refused")
    assert (row["State"], row["When"].partition(" attempt ")[2]) == ("running", "2 of 10")


def test_only_what_was_taken_from_its_holder_is_listed_newest_first(viewer: Client) -> None:
    first, second = make_task(state="recovered"), make_task(state="recovered")
    revoked, stalled = make_task(state="running"), make_task(state="running")
    Task.objects.filter(pk=revoked.pk).revoke(reason="host is gone", by="olga")
    Task.objects.filter(pk=stalled.pk).update(
        progress_timeout=timedelta(seconds=9), progressed_at=after(timedelta(seconds=-10))
    )
    Task.objects.recover_stalled()
    for state in ("failed", "retrying", "returned", "cancelled", "running"):
        make_task(state=state)
    now_stuck = make_task(state="stuck")

    page = page_for(viewer)

    assert stuck(page) == [now_stuck.pk]
    assert recovered(page) == keys(stalled, revoked, second, first)
    reasons = [row["From"] for row in page.rows]
    assert "no progress for 9 s" in reasons[0] and "revoked by olga: host is gone" in reasons[1]


def test_both_lists_take_the_filters_of_the_list_of_tasks(viewer: Client) -> None:
    tasks = {state: make_task(state=state, holder="dora") for state in ("stuck", "recovered")}
    for state in ("stuck", "recovered"):
        other = make_task(state=state, holder="emil")
        Task.objects.filter(pk=other.pk).update(
            name="reports.build", queue="reports", created_at=after(timedelta(hours=-2))
        )
    hour_ago = after(timedelta(hours=-1))
    since = Task.objects.values_list(hour_ago, flat=True)[0].strftime("%Y-%m-%dT%H:%M")
    for asked in (
        {"q": "sample."},
        {"name": "sample.sleep"},
        {"queue": "default"},
        {"holder": "dora"},
        {"since": since},
    ):
        page = page_for(viewer, **asked)
        shown = stuck(page), recovered(page)
        assert shown == ([tasks["stuck"].pk], [tasks["recovered"].pk]), asked
        assert f"/ops/tasks/?state=stuck&{urlencode(asked)}" in page.links
    for state, found in (("stuck", stuck), ("recovered", recovered)):
        page = page_for(viewer, q=f"task:{tasks[state].pk}")
        assert found(page) == [tasks[state].pk]
        assert len(stuck(page) + recovered(page)) == 1
    assert stuck(page_for(viewer, until=since)) != [tasks["stuck"].pk]


def test_each_list_is_paged_by_key_while_the_other_stays_at_its_first_page(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = make_tasks(5, state="recovered")
    one = make_task(state="stuck")
    monkeypatch.setattr(paging.page_of, "__defaults__", (2, NEWEST_FIRST, None))

    page = page_for(viewer)
    forth = [recovered(page)]
    while page.next:
        make_task(state="recovered")
        page = get(viewer, page.next)
        assert stuck(page) == [one.pk]
        forth.append(recovered(page))

    assert sum(forth, []) == keys(*reversed(tasks))
    assert recovered(get(viewer, page.previous)) == forth[-2]


def test_a_search_among_recoveries_looks_at_so_many_and_goes_on(
    viewer: Client, limits: Limits
) -> None:
    limits(reach=2)
    rare = make_task(state="recovered", holder="rare")
    make_tasks(3, state="recovered", holder="ann")

    page = page_for(viewer, holder="rare")
    assert recovered(page) == [] and "No match among the first 2 recoveries." in page.text
    assert recovered(get(viewer, page.next)) == [rare.pk]


@pytest.mark.parametrize("asked", [{"since": "yesterday"}, {"at": "nowhere"}, {"holder": "\0"}])
def test_nonsense_in_its_filter_is_refused(viewer: Client, asked: dict[str, str]) -> None:
    page = page_for(viewer, **asked)
    assert page.status == 400 and STUCK in page.links
    if "at" not in asked:
        answer = viewer.get(f"/ops/tasks/recovered.csv?{urlencode(asked)}")
        assert answer.status_code == 400


def test_a_poll_hears_what_becomes_of_a_recovered_task(viewer: Client) -> None:
    task = make_task(state="recovered")
    live: dict[str, Any] = {"X-Live": "1"}
    tag = viewer.get(STUCK, headers=live)["ETag"]
    assert viewer.get(STUCK, headers=live | {"If-None-Match": tag}).status_code == 304
    grant_to(task, "bob")
    assert viewer.get(STUCK, headers=live | {"If-None-Match": tag}).status_code == 200


def test_the_page_sends_the_same_few_statements_for_many_rows(viewer: Client) -> None:
    few = len(sent_by(viewer, STUCK))
    make_tasks(3, state="recovered")
    make_tasks(2, state="stuck")
    many = sent_by(viewer, STUCK)
    # A diagnosis looks around once, however many are stuck.
    assert len(many) <= few + 4
    make_tasks(2, state="recovered")
    make_tasks(2, state="stuck")
    assert len(sent_by(viewer, STUCK)) == len(many)
    assert_cheap(many)
    assert not any(column in sql for sql in many for column in ('"task_data"', '"traceback"'))


def test_recoveries_are_exported_by_their_filter(viewer: Client) -> None:
    wanted, _ = (make_task(state="recovered", holder=name) for name in ("dora", "emil"))

    def read(form: str) -> str:
        response: Any = viewer.get(f"/ops/tasks/recovered.{form}?holder=dora")
        return b"".join(response.streaming_content).decode()

    (row,) = json.loads(read("json"))
    assert (row["task_id"], row["holder"], row["status"]) == (wanted.pk, "dora", "ready")
    (line,) = csv.DictReader(read("csv").splitlines())
    assert (line["name"], line["error"]) == (wanted.name, row["error"])
