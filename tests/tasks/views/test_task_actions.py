"""Actions of operators on tasks from their pages: on one, and on many in two steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from leasing.functions import database_now
from leasing.models import AuditEntry
from tasks.dashboard.operator_actions import ACTIONS
from tasks.models import Task
from tests.factories import make_task
from tests.fixtures import client_with
from tests.limits import Limits
from tests.pages import Page, get, signed_in
from tests.press.models import Receipt
from tests.tasks.support import row_of

pytestmark = pytest.mark.django_db

LIST = "/ops/tasks/"
PERMISSIONS = tuple(verb.permission for verb in ACTIONS.values())
REASON = {"reason": "spring cleaning"}


operator = client_with("leasing_tasks.view_task", *PERMISSIONS, name="olga")


def bulk(verb: str, **asked: Any) -> str:
    return f"{LIST}bulk/{verb}/?{urlencode(asked, doseq=True)}"


def confirm(client: Client, url: str, **said: str) -> Page:
    """Ask at ``url``, and say yes."""
    page = get(client, url)
    sent = page.hidden | said
    return Page(client.post(url.partition("?")[0], sent, follow=True))


def bulk_actions(page: Page) -> list[str]:
    """The addresses of the bulk buttons of a list."""
    return [each["formaction"] for each in page.all("button[formaction]")]


def preview(page: Page) -> list[float]:
    """The number of rows that would change, of how many, that would stay, and by reason."""
    return page.one("[data-preview]").numbers


def act(client: Client, task: Task, verb: str, **said: str) -> Page:
    url = f"{LIST}{task.pk}/{verb}/"
    return Page(client.post(url, {"seen": task.grants} | said, follow=True))


# Who may


def test_who_may_only_look_sees_no_boxes_to_tick() -> None:
    make_task()
    page = get(signed_in("leasing_tasks.view_task"), LIST)
    assert not page.all("input[name=task]") and not bulk_actions(page)


def test_what_nobody_can_do_answers_404(operator: Client) -> None:
    task = make_task()
    assert operator.get(f"{LIST}bulk/complete/").status_code == 404
    assert operator.post(f"{LIST}{task.pk}/complete/").status_code == 404


# Many


def test_a_selection_is_asked_about_and_the_outcome_is_reported(operator: Client) -> None:
    failed, cancelled = make_task(state="failed"), make_task(state="cancelled")
    running, done = make_task(state="running"), make_task(state="succeeded")
    ticked = [failed.pk, cancelled.pk, running.pk, done.pk]
    url = bulk("retry", task=ticked, state="all")
    asked = get(operator, url)
    assert asked.one("h1").numbers == [2] and preview(asked) == [2, 4, 2, 1, 1]
    assert ACTIONS["retry"].consequence in asked.text
    assert (
        ACTIONS["retry"].consequence_of_one in get(operator, bulk("retry", task=[failed.pk])).text
    )
    reported = confirm(operator, url).notice
    assert (reported.tone, reported.numbers) == ("warn", [2, 4, 1, 1])
    assert [row_of(task)["status"] for task in (failed, cancelled)] == ["ready", "ready"]
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.via) == ("olga", "retry", "page")
    assert (entry.asked, entry.changed, entry.skipped) == (4, 2, {"running": 1, "succeeded": 1})


def test_all_that_match_the_filter_are_taken(operator: Client) -> None:
    wanted = [make_task(state="failed") for _ in range(3)]
    other = make_task(state="given_up", holder="dora")
    url = bulk("retry", scope="all", state="failed", q="sample", task=other.pk)
    Task.objects.filter(pk=other.pk).update(name="something.else")
    page = confirm(operator, url)
    assert (page.notice.tone, page.notice.numbers) == ("ok", [3, 3])
    assert {row_of(task)["status"] for task in wanted} == {"ready"}
    assert row_of(other)["status"] == "failed"
    assert AuditEntry.objects.get().target["filter"] == {"state": "failed", "q": "sample"}


def test_a_bulk_action_takes_so_many_and_says_so(operator: Client, limits: Limits) -> None:
    limits(max_selected=2)
    for _ in range(3):
        make_task(state="failed")
    url = bulk("discard", scope="all", state="failed")
    assert get(operator, url).one("[data-more]").numbers == [2]
    confirm(operator, url)
    assert Task.objects.count() == 1
    assert not get(operator, url).all("[data-more]")


def test_what_was_asked_about_is_what_is_done(operator: Client) -> None:
    asked = make_task(state="failed")
    url = bulk("discard", scope="all", state="failed")
    page = get(operator, url)
    later = make_task(state="failed")
    operator.post(bulk("discard"), page.hidden)
    assert list(Task.objects.values_list("pk", flat=True)) == [later.pk]
    assert asked.pk != later.pk


def test_cancelling_many_wants_a_reason_and_keeps_what_was_picked(operator: Client) -> None:
    task = make_task()
    url = bulk("cancel", task=task.pk)
    sent = get(operator, url).hidden
    page = Page(operator.post(bulk("cancel"), sent | {"reason": " "}))
    assert page.status == 400 and page.invalid == {"reason"}
    assert page.hidden["picked"] == sent["picked"]
    assert row_of(task)["status"] == "ready"


def test_the_way_back_leads_to_the_list_it_came_from(operator: Client) -> None:
    task = make_task(state="failed")
    url = bulk("retry", task=task.pk, state="failed", q="sample")
    response = operator.post(bulk("retry"), get(operator, url).hidden)
    assert response["Location"] == f"{LIST}?state=failed&q=sample"


def test_a_made_up_selection_changes_nothing(operator: Client) -> None:
    task = make_task(state="failed")
    before = row_of(task)
    huge = f"[[{'9' * 40}, 0]]"
    for picked in ("", "x", "1", "[1]", '[["x", 1]]', '[[1, "x"]]', "[[-1, 0]]", "{}", huge):
        response = operator.post(bulk("discard"), {"picked": picked})
        assert response.status_code == 302, picked
        assert row_of(task) == before, picked


def test_nothing_ticked_is_told(operator: Client) -> None:
    for asked in ({}, {"task": "x"}, {"scope": "all", "state": "bogus"}):
        page = get(operator, bulk("retry", **asked))
        assert page.status == 200 and not page.all("[data-preview]")
        assert page.forms == ["/ops/logout/"]


# One


def test_a_deletion_says_that_a_row_protects_the_task(operator: Client) -> None:
    task = make_task(state="failed")
    Receipt.objects.create(task=task)

    assert act(operator, task, "discard", **REASON).notice.tone == "warn"

    assert AuditEntry.objects.get().skipped == {"protected by a row that refers to it": 1}
    assert preview(get(operator, bulk("discard", task=task.pk))) == [0, 1, 1, 1]


def test_a_retry_says_that_another_task_has_the_key(operator: Client) -> None:
    task = make_task(state="failed", unique_key="k")
    make_task(unique_key="k")
    why = "unique key taken by another task"

    assert act(operator, task, "retry").notice.tone == "warn"

    assert row_of(task)["status"] == "failed"
    assert AuditEntry.objects.get().skipped == {why: 1}
    assert preview(get(operator, bulk("retry", task=task.pk))) == [0, 1, 1, 1]


def test_a_waiting_task_is_cancelled_and_a_running_one_is_asked(operator: Client) -> None:
    waiting, running = make_task(), make_task(state="running", holder="dora")
    page = act(operator, waiting, "cancel", **REASON)
    assert page.notice.tone == "ok" and page.code == "cancelled"
    assert row_of(waiting)["status"] == "cancelled"
    page = act(operator, running, "cancel", **REASON)
    assert page.code == "cancel_pending" and "olga" in page.answers["why"].text
    assert f"{LIST}{running.pk}/cancel/" not in page.forms
    Task.objects.fail(Task.objects.get(pk=running.pk), ValueError("stopped"))
    page = get(operator, f"{LIST}{running.pk}/")
    assert page.code == "cancelled" and "olga" in page.answers["why"].text


@pytest.mark.usefixtures("queues")
def test_a_task_is_moved_to_another_queue_and_time(operator: Client) -> None:
    task = make_task()
    tomorrow = (database_now("default") + timedelta(days=1)).replace(microsecond=0)
    said = {"queue": "mail", "scheduled_at": tomorrow.strftime("%Y-%m-%dT%H:%M:%S")}
    assert act(operator, task, "reschedule", **said).notice.tone == "ok"
    assert (row_of(task)["queue"], row_of(task)["scheduled_at"]) == ("mail", tomorrow)
    assert act(operator, task, "reschedule", **said).notice.tone == "warn"
    assert act(operator, task, "reschedule", at_once="on").notice.tone == "ok"
    assert row_of(task)["scheduled_at"] <= database_now("default")
    assert act(operator, task, "reschedule", priority="7").notice.tone == "ok"
    assert row_of(task)["priority"] == 7


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"queue": "nowhere"},
        {"priority": "40000"},
        {"scheduled_at": "soon"},
        {"scheduled_at": "2030-01-01T00:00", "at_once": "on"},
    ],
)
def test_a_move_to_nowhere_is_refused(operator: Client, said: dict[str, str]) -> None:
    task = make_task()
    before = row_of(task)
    assert Page(operator.post(f"{LIST}{task.pk}/reschedule/", said)).status == 400
    assert row_of(task) == before


def test_a_verb_that_no_longer_fits_says_why_it_changed_nothing(operator: Client) -> None:
    task = make_task(state="running")
    for verb in ("retry", "discard"):
        notice = act(operator, task, verb).notice
        (why,) = AuditEntry.objects.latest("pk").skipped
        assert notice.tone == "warn" and why in notice.text


@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        ("ready", {"reschedule", "cancel"}),
        ("running", {"cancel"}),
        ("succeeded", {"discard"}),
        ("failed", {"retry", "discard"}),
        ("cancelled", {"retry", "discard"}),
    ],
)
def test_the_page_of_a_task_offers_what_fits(operator: Client, state: str, verbs: set[str]) -> None:
    task = make_task(state=state)
    forms = get(operator, f"{LIST}{task.pk}/").forms
    offered = {form.split("/")[-2] for form in forms if form.startswith(f"{LIST}{task.pk}/")}
    assert offered == verbs
