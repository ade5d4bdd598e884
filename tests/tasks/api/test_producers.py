"""Enqueue over HTTP: one task or many, with keys, and again after a lost answer."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client

from leasing.functions import database_now
from tasks.models import Task
from tests.api_calls import Answer, call
from tests.pages import queries

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

A_KEY = "8c9e0b52-5a1f-4a77-9d3c-0c1f6a2b7d11"
ECHO = {"name": "jobs.echo"}


def sent(client: Client, path: str, body: dict[str, Any], key: object) -> Answer:
    return call(client, "POST", path, body, headers={"Idempotency-Key": str(key)})


def batch(client: Client, *tasks: dict[str, Any], **extra: Any) -> list[dict[str, Any]]:
    answer = call(client, "POST", "/tasks/batch", {"tasks": tasks}, **extra)
    assert answer.status == 200, answer.body
    results: list[dict[str, Any]] = answer.body["results"]
    return results


# One


def test_a_delay_counts_by_the_clock_of_the_database(client: Client) -> None:
    call(client, "POST", "/tasks", {**ECHO, "delay": 3600})
    task = Task.objects.get()
    assert 3590 < (task.scheduled_at - database_now("default")).total_seconds() <= 3600


def test_every_option_reaches_the_row(client: Client) -> None:
    options = {
        "unique_key": "night",
        "unique_for": 60,
        "timeout": 5,
        "progress_timeout": 2.5,
        "concurrency_key": "crane:1",
        "concurrency_limit": 3,
    }
    assert call(client, "POST", "/tasks", {**ECHO, **options}).status == 201
    task = Task.objects.get()
    assert (task.unique_for, task.unique_until is None) == ("window", False)
    assert task.timeout and task.progress_timeout
    assert (task.timeout.total_seconds(), task.progress_timeout.total_seconds()) == (5, 2.5)
    assert (task.concurrency_key, task.concurrency_limit) == ("crane:1", 3)


def test_a_duplicate_may_replace_the_task_that_waits(client: Client) -> None:
    body = {**ECHO, "unique_key": "night"}
    call(client, "POST", "/tasks", body)
    again = {**body, "data": {"number": 2}, "on_duplicate": "replace"}
    assert call(client, "POST", "/tasks", again).status == 200
    assert Task.objects.get().task_data == {"number": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 1, "scheduled_at": "2100-01-01T00:00:00Z"},
        {"delay": 1e300},
        {"delay": -1},
        {"delay": True},
        {"timeout": 0},
        {"timeout": "5"},
        {"progress_timeout": 1e300},
        {"concurrency_limit": 2},
        {"concurrency_key": "a\nb"},
        {"unique_for": "waiting"},
        {"unique_key": "night", "unique_for": "some day"},
        {"unique_key": "night", "unique_for": 0},
        {"on_duplicate": "replace"},
    ],
)
def test_options_that_do_not_fit_are_refused(client: Client, options: dict[str, Any]) -> None:
    assert call(client, "POST", "/tasks", {**ECHO, **options}).status == 400
    assert batch(client, {**ECHO, "data": {}}) and Task.objects.count() == 1


# Again


def test_a_request_sent_again_is_answered_the_same(client: Client) -> None:
    key = uuid.uuid4()
    first, second = (sent(client, "/tasks", ECHO, key) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.body == second.body
    assert Task.objects.count() == 1


def test_a_request_sent_again_finds_its_task_once_that_has_ended(client: Client) -> None:
    key = uuid.uuid4()
    first = sent(client, "/tasks", ECHO, key).body
    Task.objects.complete(Task.objects.claim("me")[0])
    again = sent(client, "/tasks", ECHO, str(key).upper()).body
    assert (again["id"], again["status"]) == (first["id"], "succeeded")


def test_the_same_key_with_other_data_is_refused(client: Client) -> None:
    key = uuid.uuid4()
    sent(client, "/tasks", ECHO, key)
    assert sent(client, "/tasks", {**ECHO, "data": {"number": 2}}, key).status == 409
    assert Task.objects.count() == 1


@pytest.mark.parametrize("key", ["", "1", "x" * 500, f"{{{A_KEY}}}", A_KEY.replace("-", "")])
@pytest.mark.parametrize(("path", "body"), [("/tasks", ECHO), ("/tasks/batch", {"tasks": [ECHO]})])
def test_a_key_that_is_no_uuid_is_refused(
    client: Client, path: str, body: dict[str, Any], key: str
) -> None:
    assert sent(client, path, body, key).status == 400
    assert not Task.objects.exists()


def test_a_key_of_other_code_is_another(client: Client) -> None:
    key = str(uuid.uuid4())
    Task.objects.enqueue("jobs.echo", idempotency_key=key)
    assert sent(client, "/tasks", {**ECHO, "data": {"number": 2}}, key).status == 201


# Many


def test_a_batch_stores_each_task_and_answers_in_their_order(client: Client) -> None:
    asked: list[dict[str, Any]] = [
        {**ECHO, "data": {"number": 1}},
        {**ECHO, "priority": 5},
        {**ECHO, "data": {"n": 3}},
    ]
    results = batch(client, *asked)
    assert [each["status"] for each in results] == [201, 201, 201]
    stored = Task.objects.in_bulk([each["id"] for each in results])
    assert [stored[each["id"]].task_data for each in results] == [{"number": 1}, {}, {"n": 3}]
    assert stored[results[1]["id"]].priority == 5


def test_one_that_is_refused_leaves_the_others(client: Client) -> None:
    Task.objects.enqueue("jobs.echo", unique_key="taken")
    results = batch(
        client,
        ECHO,
        {"name": "no.such"},
        {**ECHO, "queue": "no such"},
        {**ECHO, "unique_key": "taken"},
        {"name": "sample.sleep", "data": {"sleep_duration_seconds": 1}},
        {"name": "sample.sleep", "data": {"wrong": 1}},
        {**ECHO, "delay": 1, "scheduled_at": "2100-01-01T00:00:00Z"},
        {**ECHO, "unique_key": "new"},
    )
    assert [each["status"] for each in results] == [201, 400, 400, 200, 201, 400, 400, 201]
    assert all(("error" in each and each["error"]) or each["id"] for each in results)
    assert Task.objects.count() == 1 + 3


@pytest.mark.parametrize(
    "tasks",
    [
        [],
        [ECHO] * 101,
        [ECHO, {}],
        [ECHO, "jobs.echo"],
        [ECHO, {**ECHO, "priority": "high"}],
        {"0": ECHO},
        None,
    ],
)
def test_a_batch_of_another_form_stores_nothing(client: Client, tasks: Any) -> None:
    assert call(client, "POST", "/tasks/batch", {"tasks": tasks}).status == 400
    assert not Task.objects.exists()


def test_a_batch_sent_again_stores_nothing_more(client: Client) -> None:
    key = uuid.uuid4()
    body = {"tasks": [ECHO, {"name": "no.such"}, ECHO]}
    first, second = (sent(client, "/tasks/batch", body, key) for _ in range(2))
    assert [each["status"] for each in first.body["results"]] == [201, 400, 201]
    assert first.body == second.body
    assert Task.objects.count() == 2


def test_tasks_that_are_alike_are_stored_by_one_statement(
    client: Client, on_postgresql: None
) -> None:
    asked = [{**ECHO, "data": {"number": number}} for number in range(50)]
    batch(client, ECHO)
    with queries() as sent:
        batch(client, *asked)
    assert len([each for each in sent() if "leasing_tasks_task" in each]) == 1
    assert Task.objects.count() == 51


# Numbers


def test_a_whole_number_may_have_a_point(client: Client) -> None:
    call(client, "POST", "/tasks", {**ECHO, "priority": 7.0, "max_attempts": 2.0})
    task = Task.objects.get()
    assert (task.priority, task.max_attempts) == (7, 2)
    for wrong in (7.5, True, "7"):
        assert call(client, "POST", "/tasks", {**ECHO, "priority": wrong}).status == 400


def test_a_time_below_a_microsecond_is_named_as_too_short(client: Client) -> None:
    answer = call(client, "POST", "/tasks", {**ECHO, "timeout": 1e-7})
    assert (answer.status, answer.body["error"][:8]) == (400, "timeout:")
    assert call(client, "POST", "/tasks", {**ECHO, "timeout": 1e-6}).status == 201
