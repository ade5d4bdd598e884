"""Operators over HTTP: tasks, queues and schedules, workers and what is stuck."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from leasing.functions import database_now
from leasing.models import AuditEntry
from tasks.models import Queue, Schedule, Task
from tests.api_calls import call
from tests.factories import make_task, make_worker
from tests.leasing.support import expire
from tests.pages import signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

WHY = {"reason": "month end"}


@pytest.fixture
def nightly() -> Schedule:
    schedule: Schedule = Schedule.objects.create(
        name="nightly",
        task_name="jobs.echo",
        every=timedelta(hours=24),
        overlap=False,
        next_at=database_now("default") + timedelta(hours=2),
    )
    return schedule


# Tasks


def test_a_running_task_that_is_cancelled_says_that_it_was_asked(client: Client) -> None:
    task = make_task(state="running")
    assert call(client, "PUT", f"/tasks/{task.pk}/cancel", WHY).body["cancel_requested_at"]
    assert call(client, "PUT", f"/tasks/{task.pk}/cancel", WHY).status == 409


@pytest.mark.parametrize("verb", ["cancel", "retry", "revoke", "reschedule"])
@pytest.mark.parametrize("task_id", ["99", "x", "9" * 30, "%00"])
def test_an_action_on_no_task_is_not_found(client: Client, verb: str, task_id: str) -> None:
    body = {**WHY, "at_once": True}
    assert call(client, "PUT", f"/tasks/{task_id}/{verb}", body).status == 404
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("cancel", {}),
        ("cancel", {"reason": ""}),
        ("cancel", {"reason": "x" * 501}),
        ("revoke", {}),
        ("reschedule", {}),
        ("reschedule", {"queue": "no such"}),
        ("reschedule", {"at_once": True, "scheduled_at": "2100-01-01T00:00:00Z"}),
        ("reschedule", {"scheduled_at": "2100-01-01T00:00:00"}),
        ("reschedule", {"at_once": 1}),
        ("reschedule", {"priority": 40_000}),
        ("reschedule", {"priority": True}),
    ],
)
def test_an_action_that_is_not_said_right_does_nothing(
    client: Client, verb: str, body: dict[str, Any]
) -> None:
    task = make_task(state="ready")
    before = Task.objects.values().get()
    assert call(client, "PUT", f"/tasks/{task.pk}/{verb}", body).status == 400
    assert Task.objects.values().get() == before


def test_attempts_are_listed_the_latest_first(client: Client) -> None:
    task = make_task(state="running")
    Task.objects.fail(task, ValueError("no luck"))
    (shown,) = call(client, "GET", f"/tasks/{task.pk}/attempts").body["attempts"]
    assert (shown["number"], shown["outcome"]) == (1, "failed")
    assert shown["exception"] == "builtins.ValueError"
    assert "no luck" in shown["traceback"]
    assert call(client, "GET", "/tasks/99/attempts").status == 404


def test_a_traceback_is_a_payload() -> None:
    task = make_task(state="running")
    Task.objects.fail(task, ValueError("no luck"))
    reader = signed_in("leasing_tasks.view_task")
    (shown,) = call(reader, "GET", f"/tasks/{task.pk}/attempts").body["attempts"]
    assert (shown["traceback"], bool(shown["error"])) == (None, True)


def test_stuck_tasks_come_with_their_diagnosis(client: Client) -> None:
    make_task(state="running")
    stuck = make_task(state="running")
    expire(stuck)
    (shown,) = call(client, "GET", "/tasks/stuck").body["tasks"]
    assert shown["task"]["id"] == shown["diagnosis"]["id"] == stuck.pk
    assert shown["diagnosis"]["code"] == "no_recoverer"


# Queues


def test_a_queue_is_paused_and_resumed(client: Client) -> None:
    make_task(state="ready")
    (line,) = call(client, "GET", "/queues").body["queues"]
    assert (line["name"], line["state"], line["ready"]) == ("default", "unserved", 1)
    paused = call(client, "PUT", "/queues/default/pause", WHY)
    assert (paused.status, paused.body["state"], paused.body["reason"]) == (
        200,
        "paused",
        WHY["reason"],
    )
    assert call(client, "POST", "/tasks/next", {"processor": "me"}).status == 200
    assert call(client, "PUT", "/queues/default/pause", WHY).status == 409
    assert call(client, "PUT", "/queues/default/resume", {}).body["paused_at"] is None
    assert call(client, "PUT", "/queues/default/resume", {}).status == 409
    assert call(client, "POST", "/tasks/next", {"processor": "me"}).status == 202
    done = AuditEntry.objects.order_by("pk").values_list("verb", "changed")
    assert list(done) == [("pause", 1), ("pause", 0), ("resume", 1), ("resume", 0)]


def test_a_queue_may_have_a_slash_in_its_name(client: Client, settings: Settings) -> None:
    settings.TASK_QUEUE = {"QUEUES": ("default", "mail/urgent")}
    assert call(client, "PUT", "/queues/mail%2Furgent/pause", WHY).body["name"] == "mail/urgent"


@pytest.mark.parametrize("name", ["no such", "%00", "%0a", "x" * 300, "9" * 5000])
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_queue_that_is_none_is_not_found(client: Client, name: str, verb: str) -> None:
    assert call(client, "PUT", f"/queues/{name}/{verb}", WHY).status == 404
    assert not Queue.objects.exists()


# Schedules and workers


def test_a_schedule_is_paused_resumed_and_run(client: Client, nightly: Schedule) -> None:
    (line,) = call(client, "GET", "/schedules").body["schedules"]
    assert (line["name"], line["state"], line["last_task"]) == ("nightly", "active", None)
    assert call(client, "PUT", "/schedules/nightly/pause", {}).body["state"] == "paused"
    assert call(client, "PUT", "/schedules/nightly/pause", {}).status == 409
    assert call(client, "PUT", "/schedules/nightly/resume", {}).body["state"] == "active"
    ran = call(client, "POST", "/schedules/nightly/run", WHY)
    task = Task.objects.get()
    assert (ran.status, ran.body["last_task"]) == (201, task.pk)
    assert ran.body["last_by"] == "a client at 127.0.0.1"


@pytest.mark.parametrize("name", ["no such", "%00", "x" * 300])
def test_a_schedule_that_is_none_is_not_found(client: Client, name: str) -> None:
    assert call(client, "PUT", f"/schedules/{name}/pause", {}).status == 404
    assert call(client, "POST", f"/schedules/{name}/run", {}).status == 404


def test_workers_are_listed_with_what_they_hold(client: Client) -> None:
    worker = make_worker(name="ann", state="live")
    task = make_task(state="running", holder="ann")
    make_worker(name="bob", state="gone")
    shown = call(client, "GET", "/workers").body["workers"]
    assert [(each["name"], each["state"]) for each in shown] == [("bob", "gone"), ("ann", "live")]
    assert (shown[1]["id"], shown[1]["tasks"]) == (worker.pk, [task.pk])
    assert sum(each["total"] for each in shown[1]["slots"].values()) == worker.concurrency


def test_what_is_no_name_of_a_queue_is_refused_before_anything_is_recorded(
    admin_client: Client,
) -> None:
    task = make_task(state="running")
    answer = call(admin_client, "PUT", f"/tasks/{task.pk}/reschedule", {"queue": "a" * 201})
    assert answer.status == 400
    assert not AuditEntry.objects.exists()
