"""Tasks, attempts, workers and the generator's wish in Django's admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tasks.generator import start_generator
from tasks.models import GeneratorWish, Task, TaskAttempt
from tests.factories import TaskFactory, WorkerFactory
from tests.pages import Page, assert_cheap, get, sent_by, signed_in
from tests.tasks.support import Handlers, row_of

pytestmark = pytest.mark.django_db

TASKS, ATTEMPTS = "/admin/tasks/task/", "/admin/tasks/taskattempt/"
WORKERS, WISH = "/admin/tasks/worker/", "/admin/tasks/generatorwish/"
VIEW = tuple(f"tasks.view_{name}" for name in ("task", "taskattempt", "worker", "generatorwish"))
RETRY, REVOKE = "tasks.retry_task", "leasing.revoke_lease"
CANCEL = "tasks.cancel_task"


@pytest.fixture
def viewer() -> Client:
    return signed_in(*VIEW, is_staff=True)


@pytest.fixture
def operator() -> Client:
    return signed_in(*VIEW, RETRY, REVOKE, CANCEL, name="olga", is_staff=True)


def act(client: Client, action: str, tasks: list[Task], **more: Any) -> Page:
    data = {"action": action, "_selected_action": [task.pk for task in tasks], **more}
    return Page(client.post(TASKS, data, follow=True))


def rows(page: Page) -> set[str]:
    """The pages that a list leads to, without how it was filtered."""
    return {link.split("?")[0] for link in page.links}


def test_every_model_is_read_only_even_for_a_superuser(admin_client: Client) -> None:
    start_generator()
    task = TaskFactory(state="retrying")
    for row in (task, TaskAttempt.objects.get(), WorkerFactory(), GeneratorWish.objects.get()):
        name = f"admin:tasks_{row._meta.model_name}"
        assert admin_client.get(reverse(f"{name}_add")).status_code == 403
        assert admin_client.post(reverse(f"{name}_delete", args=[row.pk])).status_code == 403
        url = reverse(f"{name}_change", args=[row.pk])
        assert admin_client.post(url, {"name": "x"}).status_code == 403
        assert get(admin_client, url).status == 200


def test_task_attempts_and_worker_lead_to_each_other(viewer: Client) -> None:
    worker = WorkerFactory(name="dora & son")
    task = TaskFactory(state="recovered", holder="dora & son")
    running = TaskFactory(state="running", holder="dora & son")

    page = get(viewer, f"{TASKS}{task.pk}/change/")
    assert f"/ops/tasks/{task.pk}/" in page.links
    attempts = get(viewer, next(link for link in page.links if link.startswith(ATTEMPTS + "?")))
    assert "1 task attempt" in attempts.text and "▲ lost" in attempts.text
    assert f"{TASKS}{task.pk}/change/" in attempts.links

    found = get(viewer, next(link for link in page.links if link.startswith(WORKERS + "?")))
    assert f"{WORKERS}{worker.pk}/change/" in rows(found)
    does = get(viewer, next(link for link in found.links if link.startswith(TASKS + "?")))
    assert f"{TASKS}{running.pk}/change/" in rows(does) and "1 task" in does.text


@pytest.mark.parametrize(
    ("state", "sign"),
    [
        ("ready", "○ ready"),
        ("scheduled", "◷ scheduled"),
        ("running", "▶ running"),
        ("stuck", "▲ stuck"),
        ("succeeded", "✓ succeeded"),
        ("dead", "✕ failed"),
        ("cancelled", "⊘ cancelled"),
        ("retrying", "↻ waits to retry"),
    ],
)
def test_a_state_is_shown_by_mark_and_word(viewer: Client, state: str, sign: str) -> None:
    task = TaskFactory(state=state)
    assert sign in get(viewer, f"{TASKS}{task.pk}/change/").text


def test_the_search_finds_ids_exact_names_and_keys(viewer: Client, handlers: Handlers) -> None:
    handlers["mail.send"] = lambda ctx: None
    one = TaskFactory(name="mail.send", data={})
    two = TaskFactory(unique_key="report 7")
    for text, task in (("mail.send", one), ("report 7", two), (str(two.pk), two)):
        page = get(viewer, f"{TASKS}?q={text}")
        assert f"{TASKS}{task.pk}/change/" in rows(page)
        assert "1 result" in page.text
    assert "0 results" in get(viewer, f"{TASKS}?q=mail").text


@pytest.mark.parametrize("url", [TASKS, ATTEMPTS, WORKERS, WISH])
def test_a_list_costs_the_same_however_long_it_is(viewer: Client, url: str) -> None:
    def add() -> None:
        worker = WorkerFactory()
        TaskFactory(state="recovered", holder=worker.name)

    start_generator()
    add()
    few = sent_by(viewer, url)
    for _ in range(15):
        add()
    many = sent_by(viewer, url)
    assert len(few) == len(many)
    assert_cheap(many)
    large = ('"task_data"', '"task_output"', '"last_error"', '"traceback"', '"error"')
    assert not any(column in sql for sql in many for column in large)


def test_a_page_loads_its_large_columns_at_once(viewer: Client) -> None:
    task = TaskFactory(state="succeeded")
    sql = sent_by(viewer, f"{TASKS}{task.pk}/change/")
    assert sum('"tasks_task"' in statement for statement in sql) == 1


@pytest.mark.parametrize("state", ["live", "late", "gone", "stopped"])
def test_workers_are_filtered_by_state(viewer: Client, state: str) -> None:
    for each in ("live", "late", "gone", "stopped"):
        WorkerFactory(name=f"{each}-worker", state=each)
    page = get(viewer, f"{WORKERS}?state={state}")
    assert f"{state}-worker" in page.text and "1 worker" in page.text


def test_hostile_text_is_inert(viewer: Client, handlers: Handlers) -> None:
    hostile = "<script>alert(1)</script>"
    handlers[hostile] = lambda ctx, **data: None
    task = TaskFactory(name=hostile, data={hostile: hostile}, state="running", holder=hostile)
    Task.objects.fail(task, ValueError(hostile))
    attempt = TaskAttempt.objects.get()
    for url in (TASKS, f"{TASKS}{task.pk}/change/", ATTEMPTS, f"{ATTEMPTS}{attempt.pk}/change/"):
        assert hostile not in get(viewer, url).html, url


# Actions


def test_a_retry_asks_first_and_then_calls_the_same_service(operator: Client) -> None:
    dead, done = TaskFactory(state="dead"), TaskFactory(state="succeeded")
    page = act(operator, "retry", [dead, done])
    assert "Set these tasks ready again?" in page.text
    assert "It is set ready now, with one attempt more" in page.text
    assert row_of(dead)["status"] == "failed"
    page = act(operator, "retry", [dead, done], confirmed="yes")
    assert "1 of 2 changed; 1 were not in a state for it." in page.text
    assert (row_of(dead)["status"], row_of(done)["status"]) == ("ready", "succeeded")


def test_a_revocation_takes_running_tasks_with_a_reason(operator: Client) -> None:
    task = TaskFactory(state="running")
    assert "Say why" in act(operator, "revoke", [task], confirmed="yes", reason=" ").text
    assert row_of(task)["status"] == "running"
    page = act(operator, "revoke", [task], confirmed="yes", reason="she hangs")
    assert "1 of 1 changed." in page.text
    assert row_of(task)["last_error"] == "revoked by olga: she hangs"


def test_a_cancellation_ends_what_waits_and_asks_what_runs_with_a_reason(
    operator: Client,
) -> None:
    tasks: list[Task] = [
        TaskFactory(),
        TaskFactory(state="running"),
        TaskFactory(state="succeeded"),
    ]
    assert "Say why" in act(operator, "cancel", tasks, confirmed="yes", reason=" ").text
    page = act(operator, "cancel", tasks, confirmed="yes", reason="wrong month")
    assert "2 of 3 changed; 1 were not in a state for it." in page.text
    assert [row_of(task)["status"] for task in tasks] == ["cancelled", "running", "succeeded"]
    assert row_of(tasks[1])["cancel_requested_by"] == "olga"
    assert row_of(tasks[0])["last_error"] == "cancelled by olga: wrong month"


@pytest.mark.parametrize(
    ("action", "state"), [("retry", "dead"), ("cancel", "ready"), ("revoke", "running")]
)
def test_an_action_needs_its_permission(viewer: Client, action: str, state: str) -> None:
    task = TaskFactory(state=state)
    before = row_of(task)
    assert f'value="{action}"' not in get(viewer, TASKS).html
    act(viewer, action, [task], confirmed="yes", reason="x")
    assert row_of(task) == before


def test_payload_is_shown_with_permission_alone_and_its_secrets_never() -> None:
    task = TaskFactory()
    Task.objects.filter(pk=task.pk).update(task_data={"password": "hunter2", "city": "Hamburg"})
    url = reverse("admin:tasks_task_change", args=[task.pk])

    hidden = get(signed_in(*VIEW, name="viewer", is_staff=True), url).text
    shown = get(signed_in(*VIEW, "tasks.view_payload", name="trusted", is_staff=True), url).text

    assert "Hamburg" not in hidden and "Hamburg" in shown
    assert "hunter2" not in hidden + shown
