"""Holders over HTTP: what a key proves, reports, and batches with an answer for each task."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from django.test import Client
from pytest_django import Settings

from tasks.exceptions import ClaimUnderWay
from tasks.models import Task, TaskAttempt, TaskStatus
from tests.api_calls import Answer, call
from tests.leasing.support import OtherSession, expire, usurp
from tests.pages import queries, signed_in
from tests.tasks.support import around, make_due

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("compatible")]

ME = {"processor": "me"}
ERROR = {"error": "it broke"}
THREADED: dict[str, Any] = {"wsgi.multithread": True}
#: What acts for a holder, and what each demands besides.
VERBS: dict[str, dict[str, Any]] = {
    "heartbeat": {},
    "complete": {},
    "fail": ERROR,
    "progress": {},
    "checkpoint": {"state": 1},
}
BATCHES = ["heartbeat", "complete", "fail"]


def claim(client: Client, **more: Any) -> Answer:
    return call(client, "POST", "/tasks/next", {**ME, **more})


def claimed(client: Client, count: int = 1) -> list[dict[str, Any]]:
    Task.objects.enqueue_many("jobs.echo", [{}] * count)
    tasks: list[dict[str, Any]] = claim(client, limit=count).body["tasks"]
    return sorted(tasks, key=lambda task: task["id"])


def put(client: Client, task: dict[str, Any], verb: str, **body: Any) -> Answer:
    return call(client, "PUT", f"/tasks/{task['id']}/{verb}", {**VERBS[verb], **body})


def put_many(client: Client, verb: str, *items: dict[str, Any], **body: Any) -> list[Any]:
    tasks = [{**VERBS[verb], **each} for each in items]
    answer = call(client, "PUT", f"/tasks/{verb}", {"tasks": tasks, **body})
    assert answer.status == 200, answer.body
    results: list[Any] = answer.body["results"]
    assert [each["id"] for each in results] == [each["id"] for each in items]
    return results


def item(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": task["id"], "lease_key": task["lease_key"], **more}


def row_of(task: dict[str, Any]) -> Task:
    return Task.objects.get(pk=task["id"])


@pytest.fixture
def closed(settings: Settings, compatible: None) -> None:
    settings.LEASING = {**settings.LEASING, "API_ACCESS": "closed"}


@pytest.fixture
def worker() -> Client:
    return signed_in("leasing_tasks.change_task")


# The claim


def test_a_claim_tells_the_term_by_the_clock_of_the_database(client: Client) -> None:
    Task.objects.enqueue("jobs.echo")
    shown = claim(client, ttl=60).body
    assert (shown["ttl"], shown["yield_to"], shown["is_last"]) == (60, "", False)
    assert 59 < shown["remaining"] <= 60
    assert shown["fencing_token"] == Task.objects.get().fencing_token


def test_as_many_tasks_are_claimed_as_are_asked_for(client: Client) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 3)
    assert len(claim(client, limit=2).body["tasks"]) == 2
    assert len(claim(client, limit=2).body["tasks"]) == 1
    assert claim(client, limit=2).status == 200
    assert len(set(Task.objects.values_list("grant_id"))) == 3


def test_a_task_with_one_attempt_is_claimed_for_a_free_slot_alone(client: Client) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 3, max_attempts=1)
    Task.objects.enqueue_many("jobs.echo", [{}] * 2, max_attempts=2)

    claimed = claim(client, limit=5, free=1).body["tasks"]

    assert [task["max_attempts"] for task in claimed] == [1, 2, 2]
    assert claim(client, free=0).status == 200
    assert len(claim(client, limit=5).body["tasks"]) == 2


@pytest.mark.parametrize("free", [-1, 101, True, "1", 1.5])
def test_a_number_of_slots_that_is_none_is_refused(client: Client, free: Any) -> None:
    assert claim(client, free=free).status == 400


@pytest.mark.usefixtures("queues")
def test_tasks_are_claimed_of_the_queues_that_are_asked_for(client: Client) -> None:
    Task.objects.enqueue("jobs.echo", queue="mail")
    assert claim(client, queues=["default"]).status == 200
    assert claim(client, queues=["default", "mail"]).body["queue"] == "mail"


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": 0},
        {"limit": 101},
        {"limit": True},
        {"limit": "5"},
        {"queues": []},
        {"queues": "default"},
        {"queues": ["no such"]},
        {"queues": ["\u2028"]},
        {"ttl": 0},
        {"ttl": 10**299},
        {"ttl": True},
    ],
)
def test_a_claim_of_another_form_claims_nothing(client: Client, asked: dict[str, Any]) -> None:
    Task.objects.enqueue("jobs.echo")
    assert claim(client, **asked).status == 400
    assert Task.objects.get().status == TaskStatus.READY


def test_a_claim_sent_again_is_answered_with_the_same_tasks(client: Client) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 3)
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {**ME, "limit": 2}
    first, again = (
        call(client, "POST", "/tasks/next", body, headers=headers).body["tasks"] for _ in range(2)
    )
    assert [each["lease_key"] for each in first] == [each["lease_key"] for each in again]
    assert Task.objects.running().count() == 2


@pytest.mark.parametrize("limit", [None, 2], ids=["one", "a batch"])
def test_a_claim_sent_again_after_its_tasks_ended_claims_nothing(
    client: Client, limit: int | None
) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 4)
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {**ME, "limit": limit}
    first = call(client, "POST", "/tasks/next", body, headers=headers).body
    claimed = first.get("tasks") or [first]
    for task in claimed:
        assert put(client, task, "complete", lease_key=task["lease_key"]).status == 202

    again = call(client, "POST", "/tasks/next", body, headers=headers)

    assert (again.status, "was answered before" in again.body.get("error", "")) == (409, True)
    assert "Retry-After" not in again.headers
    assert Task.objects.ready().count() == 4 - len(claimed)


@pytest.mark.parametrize("wait", [0, 0.01])
def test_a_claim_sent_again_after_it_found_nothing_claims_nothing(
    client: Client, wait: float
) -> None:
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {**ME, "wait": wait}
    first = call(client, "POST", "/tasks/next", body, headers=headers, **THREADED)
    assert first.status == 200
    Task.objects.enqueue("jobs.echo")

    again = call(client, "POST", "/tasks/next", body, headers=headers, **THREADED)

    assert (again.status, "was answered before" in again.body.get("error", "")) == (409, True)
    assert Task.objects.get().status == TaskStatus.READY


def test_a_claim_that_is_still_under_way_asks_to_be_sent_again(client: Client) -> None:
    headers = {"Idempotency-Key": str(uuid.uuid4())}

    with around("claim", Mock(side_effect=ClaimUnderWay)):
        answer = call(client, "POST", "/tasks/next", ME, headers=headers)

    assert (answer.status, answer.headers["Retry-After"]) == (409, "1")


def test_the_next_holder_is_told_the_checkpoint(client: Client) -> None:
    (task,) = claimed(client)
    assert task["checkpoint"] is None
    put(client, task, "checkpoint", lease_key=task["lease_key"], state={"row": 7})
    put(client, task, "fail", lease_key=task["lease_key"])
    make_due(row_of(task))
    assert claim(client).body["checkpoint"] == {"row": 7}


# Keys


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("verb", VERBS)
def test_the_closed_mode_demands_the_key(worker: Client, verb: str) -> None:
    (task,) = claimed(worker)
    answer = put(worker, task, verb, **ME)
    assert (answer.status, "lease_key" in answer.body["error"]) == (400, True)
    assert put(worker, task, verb, lease_key=task["lease_key"]).status == 202


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("verb", BATCHES)
def test_the_closed_mode_demands_the_key_of_each_task_of_a_batch(worker: Client, verb: str) -> None:
    one, two = claimed(worker, 2)
    body = {**ME, "tasks": [{**VERBS[verb], **item(one)}, {**VERBS[verb], "id": two["id"]}]}
    assert call(worker, "PUT", f"/tasks/{verb}", body).status == 400
    assert Task.objects.running().count() == 2
    assert [each["status"] for each in put_many(worker, verb, item(one), item(two))] == [202, 202]


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_is_judged_by_its_key_whatever_name_it_has(client: Client, verb: str) -> None:
    (task,) = claimed(client)
    before = Task.objects.values().get()
    wrong = put(client, task, verb, lease_key="x" * 43, **ME)
    assert wrong.status == 409
    assert Task.objects.values().get() == before
    answer = put(client, task, verb, lease_key=task["lease_key"], processor="another")
    assert (answer.status, answer.body["processor"]) == (202, "me")


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_key_an_older_grant_and_no_task_are_told_the_same(
    client: Client, verb: str
) -> None:
    (task,) = claimed(client)
    usurp(row_of(task), "me")
    before = Task.objects.values().get()
    told = [
        put(client, task, verb, lease_key="x"),
        put(client, task, verb, lease_key=task["lease_key"]),
        put(client, {"id": 99}, verb, lease_key=task["lease_key"]),
    ]
    assert {(each.status, each.body["error"]) for each in told} == {(409, told[0].body["error"])}
    assert Task.objects.values().get() == before


@pytest.mark.parametrize("lease_key", [1, True, [], "x" * 101, "\u2028" * 200])
def test_a_key_of_another_form_is_refused(client: Client, lease_key: Any) -> None:
    (task,) = claimed(client)
    assert put(client, task, "complete", lease_key=lease_key).status == 400


def test_with_its_key_a_completion_may_be_sent_again(client: Client) -> None:
    (task,) = claimed(client)
    proof = {"lease_key": task["lease_key"], "task_output": {"n": 1}}
    first, again = put(client, task, "complete", **proof), put(client, task, "complete", **proof)
    assert (first.status, again.status) == (202, 202)
    assert first.body == again.body
    other = put(client, task, "complete", lease_key=task["lease_key"], task_output=2)
    assert (other.status, set(other.body)) == (409, {"message"})
    named = put(client, task, "complete", **ME, task_output={"n": 1})
    assert (named.status, set(named.body)) == (409, {"message"})
    assert row_of(task).task_output == {"n": 1}


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail"])
def test_a_proven_holder_whose_time_is_over_is_told_so(client: Client, verb: str) -> None:
    (task,) = claimed(client)
    expire(row_of(task))
    answer = put(client, task, verb, lease_key=task["lease_key"])
    assert (answer.status, set(answer.body)) == (409, {"error"})
    assert TaskAttempt.objects.get().refused_verb == verb


def test_a_renewal_tells_that_somebody_asked_to_cancel(client: Client) -> None:
    (task,) = claimed(client)
    assert put(client, task, "heartbeat", **ME).body["yield_to"] == ""
    Task.objects.cancel(by="olga")
    shown = put(client, task, "heartbeat", lease_key=task["lease_key"]).body
    assert (shown["yield_to"], shown["lease_key"]) == ("olga", task["lease_key"])
    (one,) = put_many(client, "heartbeat", item(task))
    assert (one["yield_to"], one["is_last"]) == ("olga", False)


def test_a_key_is_shown_to_the_holder_alone(client: Client) -> None:
    (task,) = claimed(client)
    for path in (f"/tasks/{task['id']}", "/tasks", "/tasks/started", "/leases"):
        assert task["lease_key"] not in str(call(client, "GET", path).body)
    ended = put(client, task, "complete", lease_key=task["lease_key"])
    assert "lease_key" not in ended.body


# Reports


def test_progress_and_checkpoints_are_stored(client: Client) -> None:
    (task,) = claimed(client)
    shown = put(client, task, "progress", **ME, progress={"done": 1}).body
    assert shown["progress"] == {"done": 1}
    put(client, task, "checkpoint", **ME, state=[1, 2], progress={"done": 2})
    row = row_of(task)
    assert (row.progress, row.checkpoint, row.checkpoints) == ({"done": 2}, [1, 2], 1)


def test_progress_is_a_payload(client: Client) -> None:
    (task,) = claimed(client)
    put(client, task, "progress", **ME, progress={"password": "secret"})
    reader = signed_in("leasing_tasks.view_task")
    path = f"/tasks/{task['id']}"
    assert call(reader, "GET", path).body["task"]["progress"] is None
    assert "secret" not in str(call(client, "GET", path).body)


@pytest.mark.parametrize("verb", VERBS)
def test_a_holder_says_who_it_is(client: Client, verb: str) -> None:
    (task,) = claimed(client)
    before = Task.objects.values().get()
    answer = put(client, task, verb)
    assert (answer.status, "processor" in answer.body["error"]) == (400, True)
    assert put(client, task, verb, processor="you").status == 200
    assert Task.objects.values().get() == before


# Batches


def test_a_batch_answers_for_each_task(client: Client) -> None:
    for verb, state in (("complete", "succeeded"), ("fail", "ready")):
        good, wrong, lost, twice = claimed(client, 4)
        usurp(row_of(lost), "thief")
        results = put_many(
            client,
            verb,
            item(good),
            {**item(wrong), "lease_key": "x"},
            item(lost),
            item(twice),
            item(twice),
            {"id": 2**63 - 1, "lease_key": "x"},
        )
        assert [each["status"] for each in results] == [202, 409, 409, 202, 400, 409]
        assert [each.get("state") for each in results[:2]] == [state, None]
        rows = [row_of(each) for each in (good, wrong, lost, twice)]
        assert [row.status for row in rows] == [state, "running", "running", state]


def test_a_batch_of_heartbeats_tells_each_term(client: Client) -> None:
    one, two, lost, wrong = claimed(client, 4)
    expire(row_of(lost))
    results = put_many(
        client, "heartbeat", item(one), item(two), item(lost), {**item(wrong), "lease_key": "x"}
    )
    assert [each["status"] for each in results] == [202, 202, 409, 409]
    assert all(each["ttl"] == 30 and 29 < each["remaining"] <= 30 for each in results[:2])
    assert [row_of(each).renewals for each in (one, two, lost, wrong)] == [1, 1, 0, 0]
    assert TaskAttempt.objects.get(task=lost["id"]).refused_verb == "heartbeat"


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_batch_ends_no_task_whose_deadline_has_passed(client: Client, verb: str) -> None:
    late, good = claimed(client, 2)
    expire(row_of(late))
    results = put_many(client, verb, item(late), item(good))
    assert [each["status"] for each in results] == [409, 202]
    assert row_of(late).processed_at is None and row_of(late).holder == "me"


@pytest.mark.parametrize("verb", BATCHES)
def test_without_keys_a_batch_is_judged_by_the_name(client: Client, verb: str) -> None:
    mine, other = claimed(client, 2)
    usurp(row_of(other), "you")
    ids = [{"id": mine["id"]}, {"id": other["id"]}, {"id": 99}]
    results = put_many(client, verb, *ids, **ME)
    assert [each["status"] for each in results] == [202, 200, 200]
    assert all(each["message"] for each in results[1:])
    assert {each["status"] for each in put_many(client, verb, *ids)} == {400}


def test_what_a_refused_item_of_a_batch_says_of_a_task_is_not_written(client: Client) -> None:
    task, failing = claimed(client, 2)
    wrong = {"lease_key": failing["lease_key"]}
    forged = item(task, task_output="forged") | wrong
    results = put_many(client, "complete", forged, item(task, task_output="proven"))
    assert [each["status"] for each in results] == [409, 202]
    assert row_of(task).task_output == "proven"
    forged = item(failing, error="forged") | {"lease_key": task["lease_key"]}
    results = put_many(client, "fail", forged, item(failing, error="proven"))
    assert [each["status"] for each in results] == [409, 202]
    assert "proven" in row_of(failing).last_error


def test_with_their_keys_completions_may_be_sent_again(client: Client) -> None:
    one, two = claimed(client, 2)
    items = [item(one, task_output={"n": 1}), item(two)]
    assert put_many(client, "complete", *items) == put_many(client, "complete", *items)
    changed = put_many(client, "complete", item(one, task_output=2), {"id": two["id"]}, **ME)
    assert [each["status"] for each in changed] == [409, 409]
    assert row_of(one).task_output == {"n": 1}


@pytest.mark.parametrize("verb", BATCHES)
@pytest.mark.parametrize(
    "tasks",
    [
        [],
        {},
        None,
        "x",
        [1],
        [{}],
        [{"id": "1"}],
        [{"id": True}],
        [{"id": 0}],
        [{"id": 2**63}],
        [{"id": 1.5}],
        [{"id": 1, "error": "it broke", "lease_key": 5}],
        [{"id": 1, "error": "it broke"}] * 101,
    ],
)
def test_a_batch_of_another_form_writes_nothing(client: Client, verb: str, tasks: Any) -> None:
    good = claimed(client)[0]
    if isinstance(tasks, list) and tasks:
        tasks = [{**VERBS[verb], **item(good)}, *tasks]
    before = Task.objects.values().get()
    assert call(client, "PUT", f"/tasks/{verb}", {**ME, "tasks": tasks}).status == 400
    assert Task.objects.values().get() == before


@pytest.mark.parametrize(
    ("verb", "said"), [("complete", {}), ("fail", ERROR), ("give-back", {"reason": "no paper"})]
)
def test_a_heartbeat_that_the_end_of_its_task_overtook_is_no_late_write(
    client: Client, verb: str, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    task = claimed(client)[0]
    ended = call(client, "PUT", f"/tasks/{verb}", {"tasks": [item(task, **said)]})
    assert ended.body["results"][0]["status"] == 202

    (result,) = put_many(client, "heartbeat", item(task))

    assert (result["status"], "its holder has ended it" in result["error"]) == (409, True)
    assert "Refused heartbeat" not in caplog.text
    assert not TaskAttempt.objects.exclude(refused_at=None).exists()


def test_a_heartbeat_of_a_task_that_was_taken_is_a_late_write(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    before = claimed(client)[0]
    put_many(client, "fail", item(before))  # another attempt, which its holder has ended
    make_due(row_of(before))
    task = claim(client).body
    Task.objects.all().revoke("in the tests", "an operator")

    (result,) = put_many(client, "heartbeat", item(task))

    assert result["status"] == 409
    assert "Refused heartbeat" in caplog.text
    assert TaskAttempt.objects.get(number=2).refused_verb == "heartbeat"


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_of_a_task_that_is_locked_waits_for_it(
    client: Client, other_session: OtherSession, on_postgresql: None
) -> None:
    one, two = claimed(client, 2)
    other_session.lock(row_of(one))

    def heartbeat(alone: Callable[..., Task], task: Task) -> Task:
        other_session.commit()
        return alone(task)

    with around("heartbeat", heartbeat):
        results = put_many(client, "heartbeat", item(one), item(two))
    assert [each["status"] for each in results] == [202, 202]


def test_a_batch_is_written_together(client: Client, on_postgresql: None) -> None:
    def statements(verb: str, count: int) -> int:
        tasks = claimed(client, count)
        with queries() as sent:
            put_many(client, verb, *map(item, tasks))
        return len(sent())

    for verb in ("heartbeat", "complete"):
        assert statements(verb, 3) == statements(verb, 20)
