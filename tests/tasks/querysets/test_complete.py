"""Ending a task well."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from leasing.exceptions import LeaseLost
from tasks.exceptions import NotSerializable
from tasks.models import Task, TaskStatus
from tests.factories import make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import OtherSession, expire
from tests.tasks.querysets.test_enqueue import EVIL, GOOD
from tests.tasks.support import Reported, copy_of, names_of, row_of

pytestmark = pytest.mark.django_db


def test_a_completed_task_has_its_output_and_nobody_holds_it(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(state="running", holder="ann")
    database_clock.advance(3)

    answer = Task.objects.complete(task, {"pages": 12})

    assert answer is task
    assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}
    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, {"pages": 12})
    assert task.processed_at == task.released_at == task.expires_at == database_clock.now
    assert list(Task.objects.succeeded()) == [task]


def test_who_did_it_stays_to_be_seen_and_the_token_does_not_rise() -> None:
    task = make_task(state="running", holder="ann")
    before = row_of(task)

    Task.objects.complete(task)

    kept = (
        "holder",
        "grant_id",
        "fencing_token",
        "grants",
        "attempts",
        "started_at",
        "acquired_at",
        "last_error",
    )
    assert {column: row_of(task)[column] for column in kept} == {
        column: before[column] for column in kept
    }


@pytest.mark.parametrize("output", [*GOOD.values(), None, 0, False, "", [], "text", [1, None]])
def test_the_output_may_be_any_json(output: Any) -> None:
    task = make_task(state="running")

    Task.objects.complete(task, output)

    assert Task.objects.get(pk=task.pk).task_output == output


NO_OUTPUT = [
    pytest.param(data, id=what)
    for what, data in EVIL.items()
    if what not in ("a list", "a string", "a number", "false", "a key that is no string")
]


@pytest.mark.parametrize("output", NO_OUTPUT)
def test_what_is_not_json_is_refused_and_the_task_runs_on(output: Any) -> None:
    task = make_task(state="running")
    before = row_of(task)

    with pytest.raises(NotSerializable, match="output"):
        Task.objects.complete(task, output)

    assert row_of(task) == before


def test_a_late_completion_counts_while_nobody_else_had_the_task(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(state="running", ttl=30)
    database_clock.advance(100)

    Task.objects.complete(task, {"late": True})

    assert task.status == TaskStatus.SUCCEEDED
    assert task.processed_at == database_clock.now
    assert task.expires_at == database_clock.now - timedelta(seconds=70)


def test_a_caller_may_insist_on_the_deadline(database_clock: DatabaseClock) -> None:
    task = make_task(state="running", ttl=30)
    database_clock.advance(29.999999)
    Task.objects.complete(task, unexpired=True)
    assert row_of(task)["status"] == TaskStatus.SUCCEEDED


def test_a_completion_refused_for_the_deadline_is_noted_on_the_attempt_it_lost(
    database_clock: DatabaseClock,
) -> None:
    task = make_task(state="running", ttl=30)
    database_clock.advance(30)

    with pytest.raises(LeaseLost, match="it expired at"):
        Task.objects.complete(task, {"late": True}, unexpired=True)

    row, attempt = row_of(task), task.attempt_set.get()
    assert (row["status"], row["task_output"]) == (TaskStatus.READY, None)
    assert (attempt.outcome, attempt.refused_verb) == ("lost", "complete")


def test_of_two_completions_by_the_same_grant_one_is_accepted(reported: Reported) -> None:
    """As when the answer to the first was lost on the way."""
    task = make_task(state="running")
    again = copy_of(task)
    Task.objects.complete(task, {"first": True})

    with pytest.raises(LeaseLost, match="it has already ended: succeeded"):
        Task.objects.complete(again, {"second": True})

    assert row_of(task)["task_output"] == {"first": True}
    assert names_of(reported).count("completed") == 1


# In the caller's transaction


@pytest.mark.django_db(transaction=True)
def test_work_and_completion_can_be_one_commit(
    reported: Reported, other_session: OtherSession
) -> None:
    task = make_task(state="running")
    reported.clear()

    with transaction.atomic():
        make_task(unique_key="written by the handler")
        Task.objects.complete(task)
        seen_before = other_session.run(Task.objects.succeeded().exists)
        reported_before = list(reported)

    assert not seen_before
    assert reported_before == []
    assert names_of(reported) == ["enqueued", "completed"]
    assert other_session.run(Task.objects.succeeded().exists)


@pytest.mark.django_db(transaction=True)
def test_a_rollback_takes_the_completion_with_it(reported: Reported) -> None:
    task = make_task(state="running")
    before = row_of(task)
    reported.clear()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Task.objects.complete(copy_of(task), {"never": "seen"})
        raise ZeroDivisionError

    assert row_of(task) == before
    assert reported == []
    Task.objects.complete(task)


@pytest.mark.django_db(transaction=True)
def test_a_refusal_leaves_the_callers_transaction_in_order() -> None:
    task = make_task(state="running")
    expire(task)
    Task.objects.recover()

    with transaction.atomic():
        with pytest.raises(LeaseLost):
            Task.objects.complete(task)
        make_task()

    assert Task.objects.count() == 2
