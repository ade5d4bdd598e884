"""Claims for workers, that make no model instances, and the completions of what they took."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from leasing.exceptions import LeaseInTransaction, LeaseLost
from leasing.functions import EPOCH
from leasing.runtime.clock import clock
from tasks import signals
from tasks.exceptions import NotSerializable
from tasks.models import Queue, Task, TaskStatus
from tasks.querysets.claimed import ClaimedTask
from tests.factories import make_task, make_tasks
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import just_before_the_update
from tests.limits import Limits
from tests.tasks.support import (
    Reported,
    copy_of,
    end_by_another,
    instances_made,
    mixed_up,
    refusing,
    row_of,
    take_back,
    take_over,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("form")]

COLUMNS = (
    "name",
    "queue",
    "task_data",
    "attempts",
    "max_attempts",
    "timeout",
    "holder",
    "grant_id",
    "fencing_token",
    "ttl",
    "acquired_at",
    "expires_at",
)


def take(limit: int = 100, **options: Any) -> list[ClaimedTask]:
    return Task.objects.take("ann", limit=limit, **options)


def output_of(each: ClaimedTask) -> Any:
    return row_of(each.task)["task_output"]


@pytest.mark.usefixtures("unheard")
def test_what_is_taken_is_what_the_database_has(database_clock: DatabaseClock) -> None:
    make_task(name="jobs.echo", timeout=timedelta(seconds=90), data={"n": 1, "é": [None]})
    before = clock()

    (claimed,) = take(ttl=7)

    row: dict[str, Any] = dict(Task.objects.values().get())
    assert {name: getattr(claimed, name) for name in COLUMNS} == {
        name: row[name] for name in COLUMNS
    }
    assert (claimed.id, row["status"], row["grants"]) == (row["id"], "running", 1)
    assert claimed.now == claimed.acquired_at == row["started_at"] == database_clock.now
    assert claimed.expires_at == database_clock.now + timedelta(seconds=7)
    assert row["fencing_token"] == (database_clock.now - EPOCH) // timedelta(microseconds=1)
    assert before <= claimed.sent_at <= clock()
    assert row_of(claimed.task) == {name: getattr(claimed.task, name) for name in row}
    assert (claimed.task.now, claimed.task.sent_at) == (claimed.now, claimed.sent_at)


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_no_instance_is_made_where_nobody_but_the_log_listens(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    if "portable" in request.fixturenames or connection.vendor != "postgresql":
        pytest.skip("the portable form makes them")
    make_tasks(3)
    caplog.set_level(level, "tasks")
    with instances_made() as made:
        claimed = take()
        assert Task.objects.complete_claimed([(each, each.id) for each in claimed]) == []

    assert made == []
    said = [
        f"task:{each.id} completed by {each.holder}: {each.name}, attempt 1 of {each.max_attempts}"
        for each in claimed
    ]
    assert caplog.messages[3:] == (said if level == logging.INFO else [])
    assert set(Task.objects.succeeded().values_list("pk", "task_output")) == {
        (each.id, each.id) for each in claimed
    }


def test_who_listens_hears_of_claims_and_completions(reported: Reported) -> None:
    tasks = make_tasks(2)
    reported.clear()

    Task.objects.complete_claimed([(each, None) for each in take()])

    assert reported == [(name, task.pk, {}) for name in ("claimed", "completed") for task in tasks]


def test_a_receiver_finds_a_completed_task_as_its_row_is() -> None:
    heard: list[Task] = []

    def receiver(task: Task, **details: Any) -> None:
        heard.append(task)

    make_tasks(2)
    claimed = take()
    Task.objects.filter(pk__in=[each.pk for each in claimed]).update(progress="half")
    claimed[0].task.progress = "what a handler has changed in its own instance"
    signals.completed.connect(receiver)
    try:
        Task.objects.complete_claimed([(each, ("a", 1)) for each in claimed])
    finally:
        signals.completed.disconnect(receiver)

    rows = {row.pk: row for row in Task.objects.all()}
    assert {task.pk for task in heard} == set(rows)
    for task in heard:
        for field in Task._meta.concrete_fields:
            name = field.attname
            assert getattr(task, name) == getattr(rows[task.pk], name), name
    assert [task.task_output for task in heard] == [["a", 1]] * 2


@pytest.mark.usefixtures("queues", "unheard")
def test_higher_priority_comes_first_also_of_several_queues(database_clock: DatabaseClock) -> None:
    def enqueue(queue: str, priority: int, seconds_ago: int) -> int:
        moment = database_clock.now - timedelta(seconds=seconds_ago)
        task = make_task(queue=queue, priority=priority, scheduled_at=moment)
        return task.pk

    last = enqueue("mail", 0, 10)
    third = enqueue("mail", 0, 20)
    first = enqueue("mail", 2, 0)
    second = enqueue("mail", 1, 0)

    assert [each.id for each in take(queues=["reports", "mail"])] == [first, second, third, last]


@pytest.mark.usefixtures("queues", "unheard")
def test_a_paused_queue_is_passed_over_and_the_others_are_not() -> None:
    make_task(queue="mail")
    open_ = make_task(queue="reports")
    Queue.objects.pause("mail")

    assert [each.id for each in take()] == [open_.pk]


@pytest.mark.usefixtures("queues", "unheard")
def test_a_limit_counts_over_all_queues_taken_from() -> None:
    for queue in ("default", "mail", "reports"):
        make_tasks(2, queue=queue)

    assert [len(take(limit)) for limit in (0, 3, 9)] == [0, 3, 3]


@pytest.mark.usefixtures("unheard")
def test_tasks_with_a_key_are_seated_and_the_others_go_on() -> None:
    keyed = [
        Task.objects.enqueue("jobs.echo", {}, concurrency_key="a", priority=9).pk for _ in range(3)
    ]
    free = [Task.objects.enqueue("jobs.echo", {}).pk for _ in range(3)]

    assert sorted(each.id for each in take(4)) == [keyed[0], *free]
    assert set(Task.objects.running().values_list("pk", "slot")) == {
        (keyed[0], "a:0"),
        *((pk, None) for pk in free),
    }
    assert take(4) == []


@pytest.mark.usefixtures("unheard")
def test_a_part_of_the_tasks_is_taken_each_time_from_those_of_its_own_filter() -> None:
    """Statements are kept by what they were compiled from."""
    tasks = make_tasks(2)
    for task, name in zip(tasks, ["jobs.100%s", "jobs.<ttl>"], strict=True):
        Task.objects.filter(pk=task.pk).update(name=name)

    for task, name in zip(tasks, ["jobs.100%s", "jobs.<ttl>"], strict=True):
        rows = Task.objects.filter(name=name)
        assert [each.id for each in rows.take("ann", limit=9)] == [task.pk]


def test_taking_inside_a_transaction_is_refused() -> None:
    from django.db import transaction

    with pytest.raises(LeaseInTransaction), transaction.atomic():
        take()


# Completing


@pytest.mark.usefixtures("unheard")
def test_each_output_is_stored_with_its_task(database_clock: DatabaseClock) -> None:
    outputs = [{"n": 1}, None, [2, "é%s'\\"], 0, "null", {"a": None}]
    make_tasks(len(outputs))
    claimed = take()

    assert Task.objects.complete_claimed(reversed(list(zip(claimed, outputs, strict=True)))) == []

    rows = list(Task.objects.order_by("pk"))
    assert [task.task_output for task in rows] == outputs
    assert Task.objects.filter(task_output__isnull=True).count() == 1
    assert {(task.status, task.processed_at) for task in rows} == {
        (TaskStatus.SUCCEEDED, database_clock.now)
    }


@pytest.mark.usefixtures("unheard")
def test_a_late_completion_leaves_the_deadline_that_has_passed(
    database_clock: DatabaseClock,
) -> None:
    make_task()
    (late,) = take(ttl=7)
    database_clock.advance(9)

    assert Task.objects.complete_claimed([(late, 1)]) == []

    row = row_of(late.task)
    assert row["expires_at"] == database_clock.now - timedelta(seconds=2)
    assert row["processed_at"] == row["released_at"] == database_clock.now


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("left", [0.000001, 0])
def test_a_completed_task_keeps_its_key_until_the_window_of_that_is_over(
    left: float, database_clock: DatabaseClock
) -> None:
    make_task(unique_key="k", unique_for=60)
    (claimed,) = take()
    database_clock.advance(60 - left)

    assert Task.objects.complete_claimed([(claimed, None)]) == []

    assert row_of(claimed.task)["unique_key"] == ("k" if left else None)


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("broken", [take_over, end_by_another, take_back])
def test_whose_term_is_over_is_refused_alone(broken: Any) -> None:
    make_tasks(2)
    late, good = take()
    broken(copy_of(late.task))
    before = row_of(late.task)

    ((refused, error),) = Task.objects.complete_claimed([(late, 1), (good, 2)])

    assert refused is late and isinstance(error, LeaseLost)
    assert (row_of(late.task)["task_output"], output_of(good)) == (None, 2)
    assert row_of(late.task)["status"] == before["status"]


@pytest.mark.usefixtures("unheard")
def test_who_comes_before_the_statement_is_refused(request: pytest.FixtureRequest) -> None:
    if "portable" in request.fixturenames or connection.vendor != "postgresql":
        pytest.skip("in the portable form nobody comes between lock and update")
    make_tasks(2)
    late, good = take()

    with just_before_the_update(lambda: take_over(late.task)):
        refused = Task.objects.complete_claimed([(late, None), (good, None)])

    assert [each for each, _ in refused] == [late]


def test_each_task_of_a_claim_has_a_random_grant_of_its_own() -> None:
    make_tasks(3, concurrency_key="x", concurrency_limit=2)
    make_tasks(40)

    taken = take()

    stored = dict(Task.objects.running().values_list("pk", "grant_id"))
    assert {each.id: each.grant_id for each in taken} == stored
    assert len(set(stored.values())) == len(taken) == 42
    assert {grant.version for grant in stored.values()} == {4}
    # No part of one tells a part of another.
    assert len({grant.bytes[-4:] for grant in stored.values()}) == 42


@pytest.mark.usefixtures("unheard")
def test_mixed_up_grants_complete_nothing() -> None:
    one, other = mixed_up()

    assert len(Task.objects.complete_claimed([(one, 1), (other, 2)])) == 2
    assert Task.objects.running().count() == 2


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("second", ["second", object()])
def test_of_one_named_twice_the_first_output_counts(second: Any) -> None:
    make_task()
    (one,) = take()

    refused = Task.objects.complete_claimed([(one, "first"), (one, second)])

    assert [(each, type(error)) for each, error in refused] in ([], [(one, LeaseLost)])
    assert output_of(one) == "first"


@pytest.mark.usefixtures("unheard")
@pytest.mark.parametrize("bad", [object(), float("nan"), "\0", "\ud800", {1: {"\0": 1}}])
def test_an_output_that_is_not_json_sinks_no_neighbour(bad: Any) -> None:
    make_tasks(2)
    one, other = take()

    ((refused, error),) = Task.objects.complete_claimed([(one, bad), (other, "well")])

    assert refused is one and isinstance(error, NotSerializable)
    assert (row_of(one.task)["status"], output_of(other)) == ("running", "well")


@pytest.mark.usefixtures("unheard")
def test_what_the_database_refuses_together_is_tried_one_by_one() -> None:
    make_tasks(2)
    claimed = take()

    def refuses(sql: str, params: Any) -> bool:
        return "task_output" in sql and "mine" in str(params) and "yours" in str(params)

    with refusing(DataError("too large a number"), refuses):
        outputs = zip(claimed, ["mine", "yours"], strict=True)
        assert Task.objects.complete_claimed(outputs) == []

    assert [output_of(each) for each in claimed] == ["mine", "yours"]


@pytest.mark.usefixtures("unheard")
def test_outputs_too_large_for_one_statement_are_stored_all_the_same(
    limits: Limits,
) -> None:
    outputs = ["x" * 10, "y" * 30, "z" * 10]
    largest = len(json.dumps(outputs[0])) * 2
    limits(largest=largest)
    make_tasks(3)
    claimed = take()

    def refuses(sql: str, params: Any) -> bool:
        return isinstance(params, dict) and len(params.get("outputs", "")) > largest + len("[,]")

    with refusing(OperationalError("too large a list"), refuses):
        assert Task.objects.complete_claimed(zip(claimed, outputs, strict=True)) == []
    assert [output_of(each) for each in claimed] == outputs


@pytest.mark.usefixtures("unheard")
def test_outputs_that_just_fit_into_one_statement_are_stored_by_one(
    request: pytest.FixtureRequest, limits: Limits
) -> None:
    if "portable" in request.fixturenames or connection.vendor != "postgresql":
        pytest.skip("the portable form has several")
    outputs = ["x" * 10, "y" * 10]
    limits(largest=len(json.dumps(outputs)))
    make_tasks(2)
    claimed = take()

    with CaptureQueriesContext(connection) as queries:
        assert Task.objects.complete_claimed(zip(claimed, outputs, strict=True)) == []

    assert len(queries) == 1


def test_nothing_taken_is_nothing_completed() -> None:
    assert Task.objects.complete_claimed([]) == []
