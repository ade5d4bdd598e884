"""The task and generator routes: the contract with clients of the sample service."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from leasing.api.keys import lease_key_of
from leasing.functions import after
from leasing.models import Lease
from leasing.web.masking import MASK
from tasks.api import generator
from tasks.generator import generator_status
from tasks.models import GeneratorDesiredState, Task, TaskAttempt, TaskStatus
from tasks.querysets import recovery
from tests.api_calls import call
from tests.leasing.support import expire, just_before_the_update, usurp
from tests.pages import signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

ME = {"processor": "me"}
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SNAKE = {
    "id",
    "name",
    "queue",
    "status",
    "priority",
    "attempts",
    "max_attempts",
    "task_data",
    "scheduled_at",
    "created_at",
    "processor",
    "last_heartbeat_at",
    "must_heartbeat_before",
    "started_at",
    "processed_at",
    "task_output",
    "progress",
    "last_error",
    "cancel_requested_at",
    "fencing_token",
    "grants",
}
SAMPLE = {
    "id",
    "taskData",
    "scheduledAt",
    "processor",
    "lastHeartBeatAt",
    "mustHeartBeatBefore",
    "startedAt",
    "processedAt",
    "taskOutput",
}
#: In addition, for the holder; the checkpoint with the claim alone.
TERM = {
    "lease_key",
    "ttl",
    "remaining",
    "yield_to",
    "is_last",
    "checkpoint",
    "checkpoints",
    "timeout",
}
OURS = {
    "leaseKey",
    "yieldTo",
    "isLast",
    "createdAt",
    "maxAttempts",
    "lastError",
    "fencingToken",
    "cancelRequestedAt",
}


def enqueued() -> Task:
    return Task.objects.enqueue("sample.sleep", {"sleep_duration_seconds": 3})


def claimed(holder: str = "me") -> Task:
    enqueued()
    (task,) = Task.objects.claim(holder)
    return task


def _recovered() -> Task:
    task = claimed()
    expire(task)
    assert Task.objects.recover() == 1
    return task


def _retried_after_failure() -> Task:
    task = claimed()
    return Task.objects.fail(task, "it broke")


STATES: dict[str, Callable[[], Task]] = {
    "ready": enqueued,
    "mine": claimed,
    "recovered": _recovered,
    "failed, waiting": _retried_after_failure,
    "succeeded": lambda: Task.objects.complete(claimed(), {"done": True}),
}


def next_task(client: Client) -> dict[str, Any]:
    answer = call(client, "POST", "/tasks/next", ME)
    assert answer.status == 202
    shown: dict[str, Any] = answer.body
    return shown


# The contract


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail"])
def test_a_verb_that_comes_too_late_is_noted_on_its_attempt(client: Client, verb: str) -> None:
    task = claimed()
    expire(task)
    call(client, "PUT", f"/tasks/{task.pk}/{verb}", {**ME, "error": "it broke"})
    attempt = task.attempt_set.get()
    assert (attempt.outcome, attempt.refused_verb) == ("lost", verb)


NO_IDS = ["0", "-1", "99", "x", "1_7", "017", "+17", "%2017", "%00", "9" * 30, "9" * 5000]


@pytest.mark.parametrize("task_id", NO_IDS)
def test_an_id_that_is_none_is_not_found(client: Client, task_id: str) -> None:
    Task.objects.bulk_create([Task(pk=1, name="x"), Task(pk=17, name="x")])
    assert call(client, "GET", f"/tasks/{task_id}").status == 404
    for verb in ("heartbeat", "complete", "fail"):
        answer = call(client, "PUT", f"/tasks/{task_id}/{verb}", {**ME, "error": "it broke"})
        assert (answer.status, set(answer.body)) == (200, {"message"})


def test_a_task_shows_both_spellings_and_times_in_utc_with_milliseconds(client: Client) -> None:
    enqueued()
    task = next_task(client)
    assert set(task) == SNAKE | TERM | SAMPLE | OURS
    for ours, theirs in [
        ("task_data", "taskData"),
        ("scheduled_at", "scheduledAt"),
        ("last_heartbeat_at", "lastHeartBeatAt"),
        ("must_heartbeat_before", "mustHeartBeatBefore"),
        ("started_at", "startedAt"),
    ]:
        assert task[ours] == task[theirs] is not None
    assert TIME.fullmatch(task["must_heartbeat_before"])
    assert task["processedAt"] is task["task_output"] is None


def test_the_closed_api_answers_in_snake_case_alone(
    admin_client: Client, settings: Settings
) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "closed"}
    enqueued()
    assert set(next_task(admin_client)) == SNAKE | TERM
    assert set(call(admin_client, "GET", "/generator/status").body) == {
        "is_running",
        "status",
        "message",
    }


def test_what_a_task_carries_is_not_respelled(client: Client) -> None:
    Task.objects.enqueue("jobs.echo", {"some_key": {"inner_key": 1}})
    assert next_task(client)["taskData"] == {"some_key": {"inner_key": 1}}


def test_the_next_task_is_leased_to_the_processor(client: Client) -> None:
    enqueued()
    shown = next_task(client)
    task = Task.objects.get()
    assert (shown["id"], shown["processor"]) == (task.pk, "me")
    assert (task.holder, task.status) == ("me", TaskStatus.RUNNING)
    assert shown["fencing_token"] == task.fencing_token
    assert shown["lastHeartBeatAt"] == shown["startedAt"]


def test_the_next_task_may_be_one_whose_holder_is_gone(client: Client, settings: Settings) -> None:
    settings.TASK_QUEUE = {"BACKOFF": {"base": 0, "cap": 0}}
    task = claimed("you")
    expire(task)
    recovery.swept_at.clear()
    shown = next_task(client)
    assert (shown["id"], shown["attempts"], shown["processor"]) == (task.pk, 2, "me")


def test_a_heartbeat_moves_the_deadline(client: Client) -> None:
    task = claimed()
    Task.objects.update(expires_at=after(timedelta(seconds=20)))
    shown = call(client, "PUT", f"/tasks/{task.pk}/heartbeat", ME).body
    assert shown["mustHeartBeatBefore"] > shown["lastHeartBeatAt"] >= shown["startedAt"]
    task.refresh_from_db()
    assert (task.renewals, task.status) == (1, TaskStatus.RUNNING)


@pytest.mark.parametrize("field", ["task_output", "taskOutput"])
@pytest.mark.parametrize("output", [{"a": [1, 2.5, None, "ü"]}, [], "text", 0, False, None])
def test_a_completed_task_keeps_its_output(client: Client, field: str, output: Any) -> None:
    task = claimed()
    shown = call(client, "PUT", f"/tasks/{task.pk}/complete", {**ME, field: output})
    assert shown.status == 202
    assert shown.body["task_output"] == shown.body["taskOutput"] == output
    assert TIME.fullmatch(shown.body["processedAt"])
    task.refresh_from_db()
    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, output)


def test_a_task_may_be_completed_without_output(client: Client) -> None:
    assert call(client, "PUT", f"/tasks/{claimed().pk}/complete", ME).body["task_output"] is None


def test_a_completed_task_leases_nothing(client: Client) -> None:
    task = claimed()
    call(client, "PUT", f"/tasks/{task.pk}/complete", ME)
    assert call(client, "GET", "/leases/active").body == {"leases": []}
    assert call(client, "GET", f"/leases/task:{task.pk}").body["released_at"]


def test_a_failed_task_is_tried_again_and_says_why(client: Client) -> None:
    task = claimed()
    shown = call(client, "PUT", f"/tasks/{task.pk}/fail", {**ME, "error": "it broke"})
    assert (shown.status, shown.body["status"]) == (202, "ready")
    assert shown.body["last_error"] == "it broke"
    assert TaskAttempt.objects.get().error == "it broke"


@pytest.mark.parametrize(("verb", "noted"), [("heartbeat", "heartbeat"), ("complete", "complete")])
def test_a_write_that_comes_too_late_is_noted_on_its_attempt(
    client: Client, verb: str, noted: str
) -> None:
    task = _recovered()
    call(client, "PUT", f"/tasks/{task.pk}/{verb}", ME)
    attempt = TaskAttempt.objects.get()
    assert attempt.refused_at is not None
    assert attempt.refused_verb == noted


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail"])
def test_a_verb_acts_with_the_grant_that_it_found(client: Client, verb: str) -> None:
    task = claimed()
    with just_before_the_update(lambda: usurp(task, "me")):
        answer = call(client, "PUT", f"/tasks/{task.pk}/{verb}", {**ME, "error": "it broke"})
    assert (answer.status, set(answer.body)) == (409, {"error"})
    task.refresh_from_db()
    assert (task.status, task.renewals) == (TaskStatus.RUNNING, 0)


# Lists


def test_one_task_is_shown_under_its_name(client: Client) -> None:
    task = enqueued()
    shown = call(client, "GET", f"/tasks/{task.pk}").body["task"]
    assert shown["id"] == task.pk
    assert shown["processor"] is shown["mustHeartBeatBefore"] is shown["lastHeartBeatAt"] is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", {"ready", "mine", "recovered", "failed, waiting", "succeeded"}),
        ("/started", {"mine", "recovered", "failed, waiting"}),
        ("/processed", {"succeeded"}),
    ],
)
def test_each_list_shows_the_tasks_in_its_state(
    client: Client, path: str, expected: set[str]
) -> None:
    names = {}
    for state in ("succeeded", "failed, waiting", "recovered", "mine", "ready"):
        Task.objects.ready().update(scheduled_at=FAR_AWAY)
        names[STATES[state]().pk] = state
    shown = [task["id"] for task in call(client, "GET", f"/tasks{path}").body["tasks"]]
    assert {names[key] for key in shown} == expected
    if path == "/started":
        assert names[shown[0]] == "mine"  # which runs; the others wait
    else:
        assert shown == sorted(shown, reverse=True)


def test_a_list_shows_a_hundred_unless_told_otherwise(client: Client) -> None:
    Task.objects.enqueue_many("jobs.echo", [None] * 103)
    assert len(call(client, "GET", "/tasks").body["tasks"]) == 100
    assert len(call(client, "GET", "/tasks?limit=2").body["tasks"]) == 2
    assert len(call(client, "GET", "/tasks?limit=1000").body["tasks"]) == 103
    assert call(client, "GET", "/tasks?limit=1001").status == 400


# Enqueue


def test_an_enqueued_task_is_answered_as_it_was_stored(client: Client) -> None:
    body = {
        "name": "sample.sleep",
        "data": {"sleep_duration_seconds": 7},
        "queue": "default",
        "priority": 5,
        "scheduled_at": "2100-01-01T02:00:00+02:00",
        "unique_key": "night",
        "max_attempts": 3,
    }
    answer = call(client, "POST", "/tasks", body)
    assert answer.status == 201
    assert call(client, "GET", f"/tasks/{answer.body['id']}").body["task"] == answer.body
    assert answer.body["scheduled_at"] == "2100-01-01T00:00:00.000Z"
    assert (answer.body["priority"], answer.body["max_attempts"]) == (5, 3)
    assert answer.body["task_data"] == {"sleep_duration_seconds": 7}


def test_a_unique_key_answers_the_task_that_has_it(client: Client) -> None:
    body = {"name": "jobs.echo", "unique_key": "night"}
    first, second = call(client, "POST", "/tasks", body), call(client, "POST", "/tasks", body)
    assert (first.status, second.status) == (201, 200)
    assert first.body["id"] == second.body["id"]
    assert Task.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "no.such.task"),
        ("name", ""),
        ("name", "os.system"),
        ("data", []),
        ("data", "x"),
        ("queue", "no such queue"),
        ("queue", 1),
        ("priority", True),
        ("priority", "1"),
        ("priority", 1.5),
        ("priority", 40_000),
        ("priority", 10**299),
        ("scheduled_at", "tomorrow"),
        ("scheduled_at", 1_700_000_000),
        ("scheduled_at", "4100000000"),
        ("scheduled_at", "2100-01-01_00:00:00Z"),
        ("scheduled_at", "2100-01-01 00:00:00Z"),
        ("scheduled_at", "2100-01-01"),
        ("scheduled_at", "2100-01-01T00:00:00"),
        ("scheduled_at", "0001-01-01T00:00:00+14:00"),
        ("scheduled_at", "9999-12-31T23:59:59-14:00"),
        ("unique_key", ""),
        ("unique_key", "x" * 201),
        ("unique_key", 5),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", 40_000),
    ],
)
def test_a_task_that_cannot_be_is_refused(client: Client, field: str, value: Any) -> None:
    answer = call(client, "POST", "/tasks", {"name": "jobs.echo", field: value})
    assert answer.status == 400
    assert not Task.objects.exists()


@pytest.mark.parametrize("processor", ["", " me", "a\nb", "x" * 201])
def test_a_processor_without_a_name_is_refused(client: Client, processor: str) -> None:
    task = claimed()
    assert call(client, "POST", "/tasks/next", {"processor": processor}).status == 400
    for verb in ("heartbeat", "complete", "fail"):
        body = {"processor": processor, "error": "it broke"}
        assert call(client, "PUT", f"/tasks/{task.pk}/{verb}", body).status == 400


# Generator


def test_the_generator_starts_and_stops_at_one_word(client: Client) -> None:
    status = call(client, "GET", "/generator/status")
    assert (status.status, status.body["status"]) == (200, "STOPPED")
    started = call(client, "POST", "/generator/start")
    assert (started.status, started.body["status"]) == (200, "STARTED")
    assert started.body["isRunning"] is started.body["is_running"] is True
    assert call(client, "GET", "/generator/status").body == started.body
    stopped = call(client, "DELETE", "/generator/stop")
    assert (stopped.status, stopped.body["isRunning"]) == (200, False)
    assert stopped.body["status"] == "STOPPED"


def test_a_generator_that_produces_is_running(client: Client) -> None:
    call(client, "POST", "/generator/start")
    lease = Lease.objects.acquire("leasing_tasks.generator", holder="generator-1")
    desired = GeneratorDesiredState.objects.get()
    GeneratorDesiredState.objects.update(
        acknowledged_revision=desired.revision, acknowledged_by=lease.holder
    )
    assert call(client, "GET", "/generator/status").body["status"] == "RUNNING"


def test_a_word_that_was_overruled_at_once_is_a_conflict(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "start_generator", lambda by, via: generator_status())
    answer = call(client, "POST", "/generator/start")
    assert (answer.status, answer.body["status"]) == (409, "STOPPED")


def test_the_desired_state_remembers_who_made_it(client: Client, admin_client: Client) -> None:
    call(client, "POST", "/generator/start")
    assert GeneratorDesiredState.objects.get().changed_by == "a client at 127.0.0.1"
    call(admin_client, "DELETE", "/generator/stop")
    assert GeneratorDesiredState.objects.get().changed_by == "admin"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/tasks/next", "DELETE, POST"),
        ("POST", "/tasks/started", "GET"),
        ("POST", "/tasks/1/complete", "PUT"),
        ("DELETE", "/tasks", "GET, POST"),
        ("GET", "/generator/start", "POST"),
        ("POST", "/generator/stop", "DELETE"),
    ],
)
def test_another_method_is_refused_with_those_that_are_possible(
    client: Client, method: str, path: str, allowed: str
) -> None:
    answer = call(client, method, path)
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


# What a user may see


@pytest.mark.parametrize("path", ["/tasks", "/tasks/processed", "/tasks/{}"])
def test_a_user_sees_no_payload_without_permission(path: str) -> None:
    task = claimed()
    Task.objects.complete(task, {"slept_seconds": 1})

    def seen(*permissions: str) -> tuple[Any, Any]:
        answer = call(
            signed_in(*permissions, name=f"with-{len(permissions)}"), "GET", path.format(task.pk)
        ).body
        reported = answer["task"] if "task" in answer else answer["tasks"][0]
        return reported["task_data"], reported["task_output"]

    assert seen("leasing_tasks.view_task") == (None, None)
    stored = ({"sleep_duration_seconds": 3}, {"slept_seconds": 1})
    assert seen("leasing_tasks.view_task", "leasing_tasks.view_payload") == stored


SECRET = {"user": "ann", "password": "hunter2"}
MASKED = {"user": "ann", "password": MASK}


def secret_task(**more: Any) -> Task:
    return Task.objects.enqueue("jobs.echo", SECRET, **more)


@pytest.mark.parametrize("path", ["/tasks", "/tasks/started", "/tasks/{}"])
def test_secrets_are_masked_for_everybody(client: Client, admin_client: Client, path: str) -> None:
    secret_task()
    (task,) = Task.objects.claim("me")
    Task.objects.filter(pk=task.pk).update(task_output=SECRET)
    for each in (client, admin_client):
        answer = call(each, "GET", path.format(task.pk)).body
        reported = answer["task"] if "task" in answer else answer["tasks"][0]
        assert reported["task_data"] == reported["taskData"] == reported["task_output"] == MASKED


def test_who_claims_or_enqueues_a_task_gets_it_as_it_is(client: Client) -> None:
    body = {"name": "jobs.echo", "data": SECRET}
    worker = signed_in("leasing_tasks.change_task")
    assert call(client, "POST", "/tasks", body).body["task_data"] == SECRET
    reported = call(worker, "POST", "/tasks/next", ME).body
    assert (reported["task_data"], reported["processor"]) == (SECRET, "me")


def test_a_known_unique_key_shows_no_more_of_a_task_than_asking_for_it() -> None:
    secret_task(unique_key="night")
    (task,) = Task.objects.claim("me")
    Task.objects.filter(pk=task.pk).update(last_error="no luck", task_output=SECRET)

    def seen(*permissions: str) -> tuple[Any, ...]:
        browser = signed_in("leasing_tasks.add_task", *permissions, name=f"u{len(permissions)}")
        body = {"name": "jobs.echo", "unique_key": "night"}
        answer = call(browser, "POST", "/tasks", body)
        assert (answer.status, answer.body["id"]) == (200, task.pk)
        return tuple(
            answer.body[name] for name in ("task_data", "task_output", "last_error", "processor")
        )

    view, payload = "leasing_tasks.view_task", "leasing_tasks.view_payload"
    assert seen() == (None, None, "", None)
    assert seen(payload) == (None, None, "", None)
    assert seen(view, payload) == (MASKED, MASKED, "no luck", "me")


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail"])
def test_who_names_the_holder_is_not_shown_the_payload(client: Client, verb: str) -> None:
    body = {**ME, "error": "it broke", "task_output": SECRET}

    def reported(browser: Client) -> dict[str, Any]:
        secret_task()
        (task,) = Task.objects.claim("me")
        proof = {"lease_key": lease_key_of(task)} if browser is not client else {}
        answer = call(browser, "PUT", f"/tasks/{task.pk}/{verb}", body | proof)
        assert answer.status == 202
        return dict(answer.body)

    change, view = "leasing_tasks.change_task", "leasing_tasks.view_task"
    of_worker = reported(signed_in(change))
    assert of_worker["task_data"] is of_worker["task_output"] is None
    assert of_worker["last_error"] == "" and of_worker["must_heartbeat_before"]
    assert of_worker["processor"] == "me"
    of_viewer = reported(signed_in(change, view, name="vera"))
    assert of_viewer["task_data"] is of_viewer["task_output"] is None
    assert of_viewer["last_error"] == ("it broke" if verb == "fail" else "")
    # Clients of the sample service read what it has always answered.
    assert reported(client)["taskData"] == MASKED


def test_a_diagnosis_says_why_and_what_can_be_done(client: Client) -> None:
    task = enqueued()

    answer = call(client, "GET", f"/tasks/{task.pk}/diagnosis")

    assert answer.status == 200
    assert (answer.body["id"], answer.body["code"]) == (task.pk, "no_worker")
    assert answer.body["facts"]["Attempts"] == "0 of 10"
    assert [action["name"] for action in answer.body["actions"]] == ["reschedule", "cancel"]
    assert call(client, "GET", "/tasks/999999/diagnosis").status == 404
