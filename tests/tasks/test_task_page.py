"""The page of one task, and what can be done about it there."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client
from django.urls import reverse

from leasing.exceptions import LeaseLost
from leasing.models import AuditEntry
from tasks.models import Task, TaskAttempt
from tests.factories import TaskFactory, claimed
from tests.fixtures import client_with
from tests.pages import Page, get, sent_by, signed_in
from tests.tasks.support import row_of

pytestmark = pytest.mark.django_db

LIST = "/ops/tasks/"
VIEW, RETRY, REVOKE = "tasks.view_task", "tasks.retry_task", "leasing.revoke_lease"
SEE_PAYLOAD = "tasks.view_payload"

viewer = client_with(VIEW)
operator = client_with(VIEW, RETRY, REVOKE, "leasing.view_lease", name="olga")


def url_of(task: Task, verb: str = "detail") -> str:
    if verb == "detail":
        return reverse("tasks:detail", args=[task.pk])
    return reverse("tasks:act", args=[task.pk, verb])


STATES = (
    "ready",
    "scheduled",
    "running",
    "stuck",
    "succeeded",
    "dead",
    "given_up",
    "cancelled",
    "retrying",
    "recovered",
    "returned",
)
ANSWERS = ("Why", "Who holds it", "Until when", "What happens next", "What you can do")


@pytest.mark.once
@pytest.mark.parametrize("state", STATES)
def test_every_task_answers_the_five_questions_in_their_order(viewer: Client, state: str) -> None:
    text = get(viewer, url_of(TaskFactory(state=state))).text
    places = [text.index(answer) for answer in ANSWERS]
    assert places == sorted(places)


@pytest.mark.once
@pytest.mark.usefixtures("database_clock")  # or what is "just now" could be a second ago
def test_a_running_task_counts_down(viewer: Client) -> None:
    task = TaskFactory(state="running", holder="dora", ttl=3600)
    text = get(viewer, url_of(task)).text
    assert "Who holds it dora" in text and "Until when in 1 h of its 1 h" in text


@pytest.mark.once
def test_attempts_tell_their_errors_and_the_late_write_that_was_refused(
    viewer: Client,
) -> None:
    task = TaskFactory(state="recovered", holder="dora")
    mine = TaskAttempt.objects.get(task=task)
    late = claimed_as(task, mine)
    again = claimed(task, "emil")
    with pytest.raises(LeaseLost):
        Task.objects.complete(late, {"late": True})
    Task.objects.fail(again, ValueError("no luck"))
    text = get(viewer, url_of(task)).text
    assert text.index("Attempt 2 failed") < text.index("Attempt 1 was lost")
    assert "dora did not renew its lease in time" in text
    assert "Its late “complete” was refused" in text
    assert "ValueError: no luck" in text and "Traceback (most recent call last)" not in text
    assert f"token {mine.fencing_token}" in text


def claimed_as(task: Task, attempt: TaskAttempt) -> Task:
    """The instance that the holder of ``attempt`` still has."""
    late = Task.objects.get(pk=task.pk)
    late.grant_id, late.fencing_token = attempt.grant_id, attempt.fencing_token
    return late


@pytest.mark.once
def test_a_traceback_is_shown_on_demand(viewer: Client) -> None:
    task = TaskFactory(state="running")
    try:
        raise ValueError("no luck")
    except ValueError as error:
        Task.objects.fail(task, error)
    assert "Traceback (most recent call last)" in get(viewer, url_of(task)).text


@pytest.mark.once
def test_payload_and_result_are_shown_as_json() -> None:
    viewer = signed_in(VIEW, SEE_PAYLOAD)
    task = TaskFactory(state="running", data={"sleep_duration_seconds": 7})
    Task.objects.complete(task, {"grüße": [1, None]})
    text = get(viewer, url_of(task)).text
    assert '{ "sleep_duration_seconds": 7 }' in text
    assert '{ "grüße": [ 1, null ] }' in text


@pytest.mark.once
def test_a_huge_payload_is_cut() -> None:
    viewer = signed_in(VIEW, SEE_PAYLOAD)
    task = TaskFactory(data={"text": "x" * 80_000})
    page = get(viewer, url_of(task))
    assert "more characters" in page.text
    assert len(page.html) < 100_000


@pytest.mark.once
def test_a_task_that_does_not_exist_answers_404(viewer: Client) -> None:
    for key in ("1", "9" * 30, "9" * 5000, "x", "-1"):
        assert viewer.get(f"{LIST}{key}/").status_code == 404


def test_its_cost_does_not_grow_with_its_attempts(viewer: Client) -> None:
    task = TaskFactory(state="retrying")
    few = sent_by(viewer, url_of(task))
    for number in range(10):
        attempt = TaskAttempt.objects.order_by("-pk")[0]
        attempt.pk, attempt.number, attempt.grant_id = None, number, uuid.uuid4()
        attempt.save()
    assert len(sent_by(viewer, url_of(task))) == len(few) <= 11


# Verbs


@pytest.mark.once
@pytest.mark.parametrize("state", ["dead", "given_up", "cancelled"])
def test_a_retry_sets_the_task_ready(operator: Client, state: str) -> None:
    task = TaskFactory(state=state)
    page = Page(operator.post(url_of(task, "retry"), follow=True))
    assert "Set ready again." in page.text
    assert row_of(task)["status"] == "ready"


@pytest.mark.once
def test_a_second_retry_makes_no_second_attempt(operator: Client) -> None:
    task = TaskFactory(state="dead")
    operator.post(url_of(task, "retry"))
    before = row_of(task)
    assert "Nothing changed" in Page(operator.post(url_of(task, "retry"), follow=True)).text
    assert row_of(task) == before


@pytest.mark.once
def test_a_running_task_is_taken_from_its_holder_by_its_page(operator: Client) -> None:
    task = TaskFactory(state="running", holder="dora")
    revoke = f"/ops/leases/task:{task.pk}/revoke/"
    assert revoke in get(operator, url_of(task)).forms
    said = {"reason": "she hangs", "typed": f"/api/tasks/{task.pk}"}
    response = operator.post(revoke, said | {"next": url_of(task)}, follow=True)
    page = Page(response)
    assert response.redirect_chain == [(url_of(task), 302)]
    assert "Taken from dora." in page.text and "revoked by olga: she hangs" in page.text
    with pytest.raises(LeaseLost):
        Task.objects.complete(task, {})


@pytest.mark.once
def test_the_lease_page_of_a_task_leads_to_the_task_and_revokes_only_while_it_runs(
    operator: Client,
) -> None:
    running, over = TaskFactory(state="running"), TaskFactory(state="recovered")
    assert url_of(running) in get(operator, f"/ops/leases/task:{running.pk}/").links
    assert (
        f"/ops/leases/task:{over.pk}/revoke/"
        not in get(operator, f"/ops/leases/task:{over.pk}/").forms
    )


# What is shown to whom, and drawn


def test_payload_needs_a_permission_and_is_not_even_read_without(viewer: Client) -> None:
    task = TaskFactory(state="running", data={"sleep_duration_seconds": 4711})
    Task.objects.checkpoint(task, {"seen": 4712})
    Task.objects.complete(task, {"slept": 4713})
    sent = sent_by(viewer, url_of(task))
    assert not any(f'"{name}"' in sql for sql in sent for name in ("task_data", "task_output"))
    text = get(viewer, url_of(task)).text
    assert "needs a permission" in text
    assert not any(number in text for number in ("4711", "4712", "4713"))
    text = get(signed_in(VIEW, SEE_PAYLOAD, name="trusted"), url_of(task)).text
    assert all(number in text for number in ("4711", "4712", "4713"))


@pytest.mark.once
def test_secrets_are_masked_for_everybody() -> None:
    task = TaskFactory(data={"user": "ann", "login": {"password": "hunter2"}})
    text = get(signed_in(VIEW, SEE_PAYLOAD), url_of(task)).text
    assert "ann" in text and "hunter2" not in text and "••••" in text


@pytest.mark.once
def test_attempts_are_drawn_on_an_axis_and_told_in_a_table(viewer: Client) -> None:
    task = TaskFactory(state="recovered", holder="dora")
    late = claimed_as(task, TaskAttempt.objects.get(task=task))
    claimed(task, "emil")
    with pytest.raises(LeaseLost):
        Task.objects.complete(late, {"late": True})
    page = get(viewer, url_of(task))
    drawing = page.html[page.html.index('<ol class="lanes">') : page.html.index('id="attempts"')]
    first, second = drawing.split('<li data-key="lane')[1:]
    assert "dora" in first and "<rect" in first and "late “complete” refused" in first
    assert '<circle class="tone-crit"' in first and "<circle" not in second
    assert "emil" in second and '<line class="now"' in second
    assert "style=" not in page.html
    table = page.text[page.text.index("As a table") :]
    assert table.index("Attempt 1 dora") < table.index("Attempt 2 emil")


@pytest.mark.once
def test_a_task_that_nobody_claimed_has_no_drawing(viewer: Client) -> None:
    assert '<ol class="lanes">' not in get(viewer, url_of(TaskFactory())).html


@pytest.mark.once
def test_force_release_shows_the_late_write_of_the_old_holder_as_refused(
    operator: Client,
) -> None:
    task = TaskFactory(state="running", holder="dora")
    said = {"reason": "she hangs", "typed": f"/api/tasks/{task.pk}"}
    operator.post(f"/ops/leases/task:{task.pk}/revoke/", said)
    with pytest.raises(LeaseLost):
        Task.objects.complete(task, {"late": True})
    assert "Its late “complete” was refused" in get(operator, url_of(task)).text
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.verb, entry.model) == ("olga", "revoke", "tasks.task")
    assert (entry.reason, entry.changed) == ("she hangs", 1)
