"""The page of one task, and what can be done about it there."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from leasing.exceptions import LeaseLost
from leasing.functions import after
from leasing.models import AuditEntry
from tasks.dashboard.badges import ATTEMPT_BADGES
from tasks.models import AttemptOutcome, Task, TaskAttempt
from tests.factories import claimed, make_lease, make_task
from tests.fixtures import client_with
from tests.pages import Page, get, sent_by, signed_in

pytestmark = pytest.mark.django_db

LIST = "/ops/tasks/"
VIEW, RETRY, REVOKE = "leasing_tasks.view_task", "leasing_tasks.retry_task", "leasing.revoke_lease"
SEE_PAYLOAD = "leasing_tasks.view_payload"

viewer = client_with(VIEW)
operator = client_with(VIEW, RETRY, REVOKE, "leasing.view_lease", name="olga")


def url_of(task: Task) -> str:
    return reverse("leasing_tasks:detail", args=[task.pk])


STATES = (
    "ready",
    "scheduled",
    "running",
    "stuck",
    "succeeded",
    "failed",
    "given_up",
    "cancelled",
    "retrying",
    "recovered",
    "returned",
)


@pytest.mark.parametrize("state", STATES)
def test_every_task_answers_the_five_questions_in_their_order(viewer: Client, state: str) -> None:
    answers = get(viewer, url_of(make_task(state=state))).answers
    assert list(answers) == ["why", "who", "until", "next", "do"]
    assert all(answer.text for answer in answers.values())


@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_a_running_task_counts_down(viewer: Client) -> None:
    task = make_task(state="running", holder="dora", ttl=3600)
    answers = get(viewer, url_of(task)).answers
    assert answers["who"].one("bdi").text == "dora"
    until = answers["until"]
    assert until.one("time")["datetime"].startswith("2030-01-01T01:00:00")
    assert until.numbers == [1, 1] and until.one("svg rect")["data-ttl"] == "3600.000"


def test_attempts_tell_their_errors_and_the_late_write_that_was_refused(
    viewer: Client,
) -> None:
    task = make_task(state="recovered", holder="dora")
    mine = TaskAttempt.objects.get(task=task)
    late = claimed_as(task, mine)
    again = claimed(task, "emil")
    with pytest.raises(LeaseLost):
        Task.objects.complete(late, {"late": True})
    Task.objects.fail(again, ValueError("no luck"))
    page = get(viewer, url_of(task))
    failed, lost = page.all("[data-live=attempts] li")
    assert failed["data-key"] == f"a{TaskAttempt.objects.get(number=2, task=task).pk}"
    assert failed.one(".dot").tone == ATTEMPT_BADGES[AttemptOutcome.FAILED].tone
    assert failed.one(".error").text == "ValueError: no luck"
    assert "Traceback (most recent call last)" not in page.text
    assert lost["data-key"] == f"a{mine.pk}" and lost.one(".what .loud").numbers == [1]
    assert lost.one(".dot").tone == ATTEMPT_BADGES[AttemptOutcome.LOST].tone
    assert "dora" in lost.one(".error").text
    assert lost.one("[data-refused]")["data-refused"] == "complete"
    assert lost.one(".token .mono").text == str(mine.fencing_token)


def claimed_as(task: Task, attempt: TaskAttempt) -> Task:
    """The instance that the holder of ``attempt`` still has."""
    late = Task.objects.get(pk=task.pk)
    late.grant_id, late.fencing_token = attempt.grant_id, attempt.fencing_token
    return late


def test_a_traceback_is_shown_on_demand(viewer: Client) -> None:
    task = make_task(state="running")
    try:
        raise ValueError("no luck")
    except ValueError as error:
        Task.objects.fail(task, error)
    assert "Traceback (most recent call last)" in get(viewer, url_of(task)).text


def test_payload_and_result_are_shown_as_json() -> None:
    viewer = signed_in(VIEW, SEE_PAYLOAD)
    task = make_task(state="running", data={"sleep_duration_seconds": 7})
    Task.objects.complete(task, {"grüße": [1, None]})
    page = get(viewer, url_of(task))
    assert json.loads(page.one("[data-live=payload]").text) == {"sleep_duration_seconds": 7}
    assert json.loads(page.one("[data-live=result] pre").text) == {"grüße": [1, None]}


def test_a_huge_payload_is_cut() -> None:
    viewer = signed_in(VIEW, SEE_PAYLOAD)
    task = make_task(name="jobs.echo", data={"text": "x" * 80_000})
    page = get(viewer, url_of(task))
    assert page.one("[data-live=payload]").numbers[-1] > 30_000  # so many are left out
    assert len(page.html) < 100_000


def test_a_task_that_does_not_exist_answers_404(viewer: Client) -> None:
    for key in ("1", "9" * 30, "9" * 5000, "x", "-1"):
        assert viewer.get(f"{LIST}{key}/").status_code == 404


def test_its_cost_does_not_grow_with_its_attempts(viewer: Client) -> None:
    task = make_task(state="retrying")
    few = sent_by(viewer, url_of(task))
    for number in range(10):
        attempt = TaskAttempt.objects.order_by("-pk")[0]
        attempt.pk, attempt.number, attempt.grant_id = None, number, uuid.uuid4()
        attempt._state.adding = True
        attempt.save()
    assert len(sent_by(viewer, url_of(task))) == len(few) <= 13


# Verbs


def test_a_running_task_is_taken_from_its_holder_by_its_page(operator: Client) -> None:
    task = make_task(state="running", holder="dora")
    revoke = f"/ops/leases/task:{task.pk}/revoke/"
    assert revoke in get(operator, url_of(task)).forms
    said = {"reason": "she hangs", "typed": f"task:{task.pk}"}
    response = operator.post(revoke, said | {"next": url_of(task)}, follow=True)
    page = Page(response)
    assert response.redirect_chain == [(url_of(task), 302)]
    assert page.notice.tone == "ok" and "dora" in page.notice.text
    (attempt,) = page.all(".timeline li .error")
    assert "olga" in attempt.text and "she hangs" in attempt.text
    with pytest.raises(LeaseLost):
        Task.objects.complete(task, {})


def test_the_lease_page_of_a_task_leads_to_the_task_and_revokes_only_while_it_runs(
    operator: Client,
) -> None:
    running, over = make_task(state="running"), make_task(state="recovered")
    assert url_of(running) in get(operator, f"/ops/leases/task:{running.pk}/").links
    assert (
        f"/ops/leases/task:{over.pk}/revoke/"
        not in get(operator, f"/ops/leases/task:{over.pk}/").forms
    )


# What is shown to whom, and drawn


def test_payload_needs_a_permission_and_is_not_even_read_without(viewer: Client) -> None:
    # No fencing token has these, whatever its digits are.
    values = ("4711.5", "4712.5", "4713.5")
    data, seen, slept = map(float, values)
    task = make_task(state="running", data={"sleep_duration_seconds": data})
    Task.objects.checkpoint(task, {"seen": seen})
    Task.objects.complete(task, {"slept": slept})
    sent = sent_by(viewer, url_of(task))
    assert not any(f'"{name}"' in sql for sql in sent for name in ("task_data", "task_output"))
    page = get(viewer, url_of(task))
    assert page.all("#payload") and not page.all("pre.json")
    text = page.text
    assert not any(value in text for value in values)
    text = get(signed_in(VIEW, SEE_PAYLOAD, name="trusted"), url_of(task)).text
    assert all(value in text for value in values)


def test_secrets_are_masked_for_everybody() -> None:
    task = make_task(name="jobs.echo", data={"user": "ann", "login": {"password": "hunter2"}})
    text = get(signed_in(VIEW, SEE_PAYLOAD), url_of(task)).text
    assert "ann" in text and "hunter2" not in text and "••••" in text


def test_attempts_are_drawn_on_an_axis_and_told_in_a_table(viewer: Client) -> None:
    task = make_task(state="recovered", holder="dora")
    late = claimed_as(task, TaskAttempt.objects.get(task=task))
    claimed(task, "emil")
    with pytest.raises(LeaseLost):
        Task.objects.complete(late, {"late": True})
    page = get(viewer, url_of(task))
    first, second = page.all(".lanes li")
    assert first.one("bdi").text == "dora" and first.all("rect")
    assert first.one(".lane-note").text == "a late result was refused"
    assert first.all("circle.tone-crit") and not second.all("circle")
    assert second.one("bdi").text == "emil" and second.all("line.now")
    assert "style=" not in page.html
    rows = page.all(".drawing-table tbody tr")
    assert [row.one("bdi").text for row in rows] == ["dora", "emil"]


def test_a_task_that_nobody_claimed_has_no_drawing(viewer: Client) -> None:
    assert not get(viewer, url_of(make_task())).all("ol.lanes")


def test_force_release_shows_the_late_write_of_the_old_holder_as_refused(
    operator: Client,
) -> None:
    task = make_task(state="running", holder="dora")
    said = {"reason": "she hangs", "typed": f"task:{task.pk}"}
    operator.post(f"/ops/leases/task:{task.pk}/revoke/", said)
    with pytest.raises(LeaseLost):
        Task.objects.complete(task, {"late": True})
    assert get(operator, url_of(task)).one("[data-refused]")["data-refused"] == "complete"
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.model) == ("olga", "revoke", "leasing_tasks.task")
    assert (entry.reason, entry.changed) == ("she hangs", 1)


@pytest.mark.parametrize(
    ("state", "ahead", "part"),
    [("running", 5, "next"), ("running", -5, "why"), ("retrying", 5, "why"), ("ready", 60, "why")],
    ids=["late", "expired", "retried", "scheduled"],
)
def test_a_sentence_counts_from_the_moment_of_the_countdown_beside_it(
    operator: Client, state: str, ahead: int, part: str
) -> None:
    task = make_task(state=state, holder="gone")
    column = "expires_at" if state == "running" else "scheduled_at"
    columns = {"acquired_at": after(timedelta(minutes=-1))} if state == "running" else {}
    Task.objects.filter(pk=task.pk).update(**{column: after(timedelta(seconds=ahead))}, **columns)
    task.refresh_from_db()

    answers = get(operator, f"/ops/tasks/{task.pk}/").answers

    said = [each["datetime"] for each in answers[part].all("time")]
    assert answers["until"].all("time")[0]["datetime"] in said


def test_the_words_beside_a_countdown_end_with_it(operator: Client) -> None:
    task, lease = make_task(state="running"), make_lease()
    for row, url in ((task, f"/ops/tasks/{task.pk}/"), (lease, f"/ops/leases/{lease.pk}/")):
        words = get(operator, url).answers["until"].one("span[data-until]")
        assert words.text.startswith("unless renewed")
        assert datetime.fromisoformat(words["data-until"]) == row.expires_at


def test_parent_and_children_lead_to_each_other(viewer: Client) -> None:
    parent = make_task()
    children = [make_task(parent=parent) for _ in range(12)]

    page = get(viewer, url_of(parent))

    shown = [row["data-key"] for row in page.all("[data-live=children] [data-key]")]
    assert shown == [f"c{child.pk}" for child in children[:1:-1]]
    assert url_of(children[-1]) in page.links
    address = url_of(parent)
    assert address in get(viewer, url_of(children[0])).links
    rows = Task.objects.filter(pk=children[0].pk)
    for compensation, word in ((None, "Parent"), ("", "Compensates")):
        rows.update(compensation=compensation)
        assert word in [term.text for term in get(viewer, url_of(children[0])).all("dt")]
    parent.delete()
    assert address not in get(viewer, url_of(children[0])).links
