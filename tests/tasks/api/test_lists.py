"""The lists of tasks over HTTP: pages, filters, and what a token with queues sees and may do."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from leasing.api.keys import lease_key_of
from leasing.dashboard import lease_lists
from leasing.models import ApiToken
from tasks import registry
from tasks.execution.context import Context
from tasks.maintenance import counting
from tasks.maintenance.counting import Slot
from tasks.models import Schedule, Task
from tests.api_calls import Answer, call
from tests.factories import make_task, make_worker
from tests.leasing.support import expire
from tests.tasks.support import Handlers

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("compatible", "queues"),
]

#: By the vendor, what shows the plan of a statement.
PLANNED = {"postgresql": "EXPLAIN ", "sqlite": "EXPLAIN QUERY PLAN "}


def pages(client: Client, path: str, noun: str = "tasks") -> list[list[Any]]:
    """Return the ids, or names, on each page of a list."""
    found, cursor = [], ""
    mark = "&" if "?" in path else "?"
    while True:
        answer = call(client, "GET", f"{path}{mark}limit=2&cursor={cursor}")
        assert answer.status == 200, answer.body
        rows = [each.get("task", each) for each in answer.body[noun]]
        found.append([row.get("id", row.get("name", row.get("number"))) for row in rows])
        cursor = answer.body.get("next", "")
        if not cursor:
            return found


def flat(found: list[list[Any]]) -> list[Any]:
    return [each for one in found for each in one]


@pytest.mark.parametrize(
    ("path", "states"),
    [
        ("/tasks", ("ready", "running", "succeeded", "failed", "ready")),
        ("/tasks/started", ("running",) * 5),
        ("/tasks/processed", ("succeeded", "failed", "cancelled", "succeeded", "failed")),
        ("/tasks?status=running", ("running",) * 5),
        ("/tasks?name=sample.sleep", ("ready",) * 5),
    ],
)
def test_a_list_is_read_page_by_page(client: Client, path: str, states: tuple[str, ...]) -> None:
    made = [make_task(state=state).pk for state in states]
    found = pages(client, path)
    assert flat(found) == made[::-1]
    assert [len(each) for each in found] == [2, 2, 1]


def test_begun_tasks_are_those_that_run_and_then_those_that_wait_again(client: Client) -> None:
    waiting = [make_task(state=state).pk for state in ("returned", "recovered", "retrying")]
    running = [make_task(state="running").pk for _ in range(2)]
    for state in ("ready", "scheduled", "succeeded"):
        make_task(state=state)
    assert flat(pages(client, "/tasks/started")) == running[::-1] + waiting


def test_ended_tasks_are_sorted_by_their_end(client: Client) -> None:
    early, late = make_task(state="running"), make_task(state="running")
    ended = [make_task(state=state).pk for state in ("failed", "cancelled", "succeeded")]
    for task in (late, early):
        Task.objects.complete(task)
    assert flat(pages(client, "/tasks/processed")) == [early.pk, late.pk, *ended[::-1]]


def test_lists_of_a_state_read_no_task_that_has_not_begun(client: Client) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 3000)
    make_task(state="retrying")
    make_task(state="succeeded")
    with CaptureQueriesContext(connection) as queries:
        for path in ("/tasks/started", "/tasks/processed", "/tasks?status=retrying"):
            assert len(call(client, "GET", path).body["tasks"]) == 1
    reads = [each["sql"] for each in queries if 'FROM "leasing_tasks_task"' in each["sql"]]
    assert len(reads) >= 3
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        for read in reads:
            cursor.execute(PLANNED[connection.vendor] + read)
            plan = str(cursor.fetchall())
            assert re.search("leasing_tasks_task_(running|retrying|ended)", plan), plan


def test_lists_and_samples_of_leases_read_no_task_that_nobody_has_had(client: Client) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 3000)
    for state in ("succeeded", "running", "returned"):
        claimed = make_task(state=state).acquired_at
    assert claimed is not None
    counted: counting.Counted = defaultdict(Counter)
    with CaptureQueriesContext(connection) as queries:
        assert len(call(client, "GET", "/leases").body["leases"]) == 3
        assert len(call(client, "GET", "/leases/active").body["leases"]) == 1
        assert len(call(client, "GET", "/leases/released").body["leases"]) == 2
        lease_lists.counts({"q": "", "state": "all", "renewed": False})
        lease_lists.sections({"q": "", "state": "all", "renewed": False}, None)
        assert counting._claimed(Slot(int(claimed.timestamp())), counted) <= 3
        counting._waits(Slot(int(claimed.timestamp())), counted, 3)
    reads = [each["sql"] for each in queries if 'FROM "leasing_tasks_task"' in each["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        for read in reads:
            cursor.execute(PLANNED[connection.vendor] + read)
            plan = str(cursor.fetchall())
            assert not re.search("(Seq Scan on|SCAN) leasing_tasks_task\\b(?! USING)", plan), plan


@pytest.mark.parametrize("status", ["ready", "succeeded", "failed", "cancelled", "scheduled"])
def test_tasks_of_a_status_are_in_the_order_of_the_pages(client: Client, status: str) -> None:
    make_task(state="running")
    made = [make_task(state=status).pk for _ in range(5)]
    wanted = made if status in ("ready", "scheduled") else made[::-1]
    assert flat(pages(client, f"/tasks?status={status}")) == wanted


def test_stuck_tasks_are_read_page_by_page(client: Client) -> None:
    made = [make_task(state="running") for _ in range(3)]
    for task in made:
        expire(task)
    assert flat(pages(client, "/tasks/stuck")) == [task.pk for task in made[::-1]]


def test_other_lists_are_read_page_by_page(client: Client) -> None:
    names = [make_worker(state="live").pk for _ in range(3)]
    assert flat(pages(client, "/workers", "workers")) == names[::-1]
    task = make_task(state="running")
    for number in range(1, 4):
        task = Task.objects.fail(task, "no luck")
        Task.objects.update(scheduled_at=task.created_at)
        (task,) = Task.objects.claim("me")
        assert task.attempts == number + 1
    assert flat(pages(client, f"/tasks/{task.pk}/attempts", "attempts")) == [3, 2, 1]


def test_a_filter_finds_a_queue_and_a_name(client: Client) -> None:
    mail = Task.objects.enqueue("jobs.echo", queue="mail")
    Task.objects.enqueue("jobs.echo")
    Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 1}, queue="mail")
    found = call(client, "GET", "/tasks?queue=mail&name=jobs.echo&status=ready").body["tasks"]
    assert [each["id"] for each in found] == [mail.pk]


@pytest.mark.parametrize(
    "query",
    ["status=stuck", "status=", "queue=", "limit=0", "limit=x", "cursor=x", f"name={'x' * 201}"],
)
def test_a_question_of_another_form_is_refused(client: Client, query: str) -> None:
    assert call(client, "GET", f"/tasks?{query}").status == 400


def test_a_cursor_is_of_one_list(client: Client) -> None:
    for _ in range(3):
        make_task(state="ready")
    cursor = call(client, "GET", "/tasks?status=ready&limit=1").body["next"]
    assert call(client, "GET", f"/tasks?cursor={cursor}").status == 400
    assert call(client, "GET", f"/workers?cursor={cursor}").status == 400


@pytest.mark.parametrize(("name", "status"), [("%00", 400), ("%0a", 400), ("%F0%9F%90%98", 200)])
def test_a_name_that_could_be_none_is_not_searched_for(
    client: Client, name: str, status: int
) -> None:
    for field in ("queue", "name"):
        assert call(client, "GET", f"/tasks?{field}={name}").status == status


def test_a_list_that_has_not_changed_is_not_sent_again(client: Client) -> None:
    make_task(state="ready")
    tag = call(client, "GET", "/tasks").headers["ETag"]
    known = client.get("/api/tasks", headers={"If-None-Match": tag})
    assert (known.status_code, known.content) == (304, b"")
    make_task(state="ready")
    assert call(client, "GET", "/tasks", headers={"If-None-Match": tag}).status == 200


# A token for one queue


class Program:
    """A client with a token for the queue mail, and every scope of tasks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        scopes = [
            *(f"leasing_tasks.{each}_task" for each in ("view", "add", "change", "cancel")),
            *("leasing_tasks.reschedule_task", "leasing_tasks.pause_queue"),
            *("leasing_tasks.view_queue", "leasing.revoke_lease"),
            *("leasing_tasks.view_schedule", "leasing_tasks.change_schedule"),
            "leasing_tasks.view_worker",
        ]
        _, secret = ApiToken.objects.issue("robot", scopes=scopes, queues=["mail"])
        self._headers = {"Authorization": f"Bearer {secret}"}

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        return call(self._client, method, path, body, headers=self._headers)


@pytest.fixture
def robot(client: Client, settings: Settings) -> Program:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "closed"}
    return Program(client)


def test_a_token_sees_the_tasks_of_its_queues(robot: Program) -> None:
    Task.objects.enqueue("jobs.echo")
    mail = Task.objects.enqueue("jobs.echo", queue="mail")
    other = Task.objects.exclude(pk=mail.pk).get()
    for path in ("/tasks", "/tasks?status=ready"):
        assert [each["id"] for each in robot.call("GET", path).body["tasks"]] == [mail.pk]
    assert [each["name"] for each in robot.call("GET", "/queues").body["queues"]] == ["mail"]
    for verb in ("", "/diagnosis", "/attempts"):
        assert robot.call("GET", f"/tasks/{mail.pk}{verb}").status == 200
        assert robot.call("GET", f"/tasks/{other.pk}{verb}").status == 404


def test_a_token_that_cancels_a_task_of_its_queue_cancels_its_children_in_every_queue(
    robot: Program,
) -> None:
    parent = Task.objects.enqueue("jobs.echo", queue="mail")
    child = Task.objects.enqueue("jobs.echo", parent=parent)

    why = {"reason": "month end"}
    assert robot.call("PUT", f"/tasks/{child.pk}/cancel", why).status == 404
    assert robot.call("PUT", f"/tasks/{parent.pk}/cancel", why).status == 200

    child.refresh_from_db()
    assert child.status == "cancelled"
    assert robot.call("GET", f"/tasks/{child.pk}").status == 404


def test_a_token_claims_from_its_queues(robot: Program) -> None:
    Task.objects.enqueue("jobs.echo")
    assert robot.call("POST", "/tasks/next", {"processor": "me"}).status == 200
    asked = {"processor": "me", "queues": ["default", "mail"]}
    assert robot.call("POST", "/tasks/next", asked).status == 403
    Task.objects.enqueue("jobs.echo", queue="mail")
    claimed = robot.call("POST", "/tasks/next", {"processor": "me"}).body
    body = {"tasks": [{"id": claimed["id"], "lease_key": claimed["lease_key"]}]}
    assert robot.call("PUT", "/tasks/complete", body).body["results"][0]["status"] == 202


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail"])
def test_a_batch_of_a_token_reaches_its_queues_alone(
    client: Client, robot: Program, verb: str
) -> None:
    one, other = make_task(state="running"), make_task(state="running")
    _, secret = ApiToken.objects.issue("any", scopes=["leasing_tasks.change_task"])
    anybody = {"Authorization": f"Bearer {secret}"}

    def sent(task: Task, **headers: Any) -> int:
        ended = {"id": task.pk, "lease_key": lease_key_of(task), "error": "it broke"}
        if verb != "fail":
            del ended["error"]
        path, body = f"/tasks/{verb}", {"tasks": [ended]}
        answer = (
            call(client, "PUT", path, body, **headers) if headers else robot.call("PUT", path, body)
        )
        return int(answer.body["results"][0]["status"])

    assert sent(one, headers=anybody) == 202
    assert sent(other) == 409
    other.refresh_from_db()
    assert (other.status, other.renewals) == ("running", 0)


def test_a_token_enqueues_in_its_queues(robot: Program) -> None:
    Task.objects.enqueue("jobs.echo", unique_key="night")
    echo = {"name": "jobs.echo"}
    refused = [echo, {**echo, "queue": "reports"}, {**echo, "queue": "mail", "unique_key": "night"}]
    refused.append({**echo, "queue": "mail", "unique_key": "night", "on_duplicate": "replace"})
    for body in refused:
        assert robot.call("POST", "/tasks", body).status == 403
    batch = robot.call("POST", "/tasks/batch", {"tasks": [*refused, {**echo, "queue": "mail"}]})
    assert [each["status"] for each in batch.body["results"]] == [403, 403, 403, 403, 201]
    assert Task.objects.count() == 2


def test_a_token_acts_on_its_queues(robot: Program) -> None:
    other = Task.objects.enqueue("jobs.echo")
    mail = Task.objects.enqueue("jobs.echo", queue="mail")
    why = {"reason": "month end"}
    assert robot.call("PUT", f"/tasks/{other.pk}/cancel", why).status == 404
    assert robot.call("PUT", f"/tasks/{mail.pk}/reschedule", {"queue": "default"}).status == 403
    assert robot.call("PUT", f"/tasks/{mail.pk}/cancel", why).status == 200
    assert robot.call("PUT", "/queues/default/pause", why).status == 403
    assert robot.call("PUT", "/queues/mail/pause", why).status == 200


def test_a_token_uses_the_schedules_of_its_queues(robot: Program, handlers: Handlers) -> None:
    @registry.handler(name="post", queue="mail")
    def post(ctx: Context) -> None:
        """Send the post."""

    wanted = {"said": ("jobs.echo", "mail"), "of its handler": ("post", "")}
    others = {"elsewhere": ("post", "default"), "of another": ("jobs.echo", "")}
    for name, (task_name, queue) in (wanted | others).items():
        day = timedelta(days=1)
        Schedule.objects.create(name=name, task_name=task_name, queue=queue, every=day)
    shown = robot.call("GET", "/schedules").body["schedules"]
    assert {each["name"] for each in shown} == wanted.keys()
    for name in wanted:
        assert robot.call("PUT", f"/schedules/{name}/pause", {}).status == 200
    for name in others:
        assert robot.call("PUT", f"/schedules/{name}/pause", {}).status == 404


def test_a_token_sees_which_tasks_of_its_queues_a_worker_holds(robot: Program) -> None:
    make_worker(name="ann", state="live")
    make_task(state="running", holder="ann")
    mail = make_task(state="running", holder="ann", queue="mail")
    (ann,) = robot.call("GET", "/workers").body["workers"]
    assert ann["tasks"] == [mail.pk]
