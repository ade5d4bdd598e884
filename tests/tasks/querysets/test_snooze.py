"""Handlers that put their task off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from tasks.diagnosis import diagnose
from tasks.exceptions import Snooze
from tasks.models import AttemptOutcome, Task, TaskStatus
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.pages import get, signed_in
from tests.tasks.support import Reported, RunTask, attempt, attempts, make_due, row_of

pytestmark = pytest.mark.django_db


def test_a_task_that_is_put_off_waits_and_no_attempt_is_spent(
    database_clock: DatabaseClock, reported: Reported
) -> None:
    task = make_task(state="running", holder="ann", max_attempts=1)
    grant_id = task.grant_id
    Task.objects.checkpoint(task, [1])
    Task.objects.finish_step(task, "fetch")
    reported.clear()

    answer = Task.objects.snooze(task, 300, "the box is locked")

    assert answer is task
    assert row_of(task) == {column: getattr(task, column) for column in row_of(task)}
    assert (task.status, task.attempts, task.max_attempts) == (TaskStatus.READY, 0, 1)
    assert task.scheduled_at == database_clock.now + timedelta(seconds=300)
    assert (task.last_error, task.released_at) == ("", database_clock.now)
    assert (task.checkpoint, task.step_set.count()) == ([1], 1)
    record = attempt(task)
    assert (record.number, record.holder, record.grant_id) == (1, "ann", grant_id)
    assert (record.outcome, record.error) == (AttemptOutcome.SNOOZED, "the box is locked")
    assert reported == [("snoozed", task.pk, {"reason": "the box is locked"})]


def test_of_many_snoozes_the_history_keeps_the_latest() -> None:
    task, other = make_task(max_attempts=2), make_task(state="running")
    Task.objects.snooze(other, 1)
    Task.objects.give_back(claimed(task, "ann"), "again")
    Task.objects.fail(claimed(task, "ann"), "no luck")
    for number in range(3):
        make_due(task)
        Task.objects.snooze(claimed(task, "bob"), number)

    assert list(task.attempt_set.values_list("outcome", "error")) == [
        ("returned", "again"),
        ("failed", "no luck"),
        ("snoozed", "snoozed for 2 s"),
    ]
    assert (row_of(task)["attempts"], attempts(other)) == (1, [(1, "snoozed")])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_puts_its_task_off_by_raising(run_task: RunTask, is_async: bool) -> None:
    def handler(ctx: Any, **data: Any) -> None:
        raise Snooze(timedelta(minutes=5), "the box is locked\0")

    async def coroutine(ctx: Any, **data: Any) -> None:
        handler(ctx)

    task = run_task(coroutine if is_async else handler, max_attempts=1)

    assert (task.status, task.attempts) == (TaskStatus.READY, 0)
    assert task.released_at is not None
    assert task.scheduled_at - task.released_at == timedelta(minutes=5)
    assert attempt(task).error == "the box is locked\\0"


def test_no_delay_is_at_once() -> None:
    task = make_task(state="running")

    Task.objects.snooze(task, 0)

    assert list(Task.objects.ready()) == [task]


@pytest.mark.parametrize("delay", [-1, timedelta(days=-1), float("nan"), float("inf"), 1e12, "5"])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    task = make_task(state="running")
    before = row_of(task)

    with pytest.raises(ValueError, match="delay"):
        Snooze(delay)
    with pytest.raises(ValueError, match="delay"):
        Task.objects.snooze(task, delay)

    assert row_of(task) == before


def test_its_page_says_that_it_was_put_off() -> None:
    task = make_task(state="running")
    Task.objects.snooze(task, 300, "the box is locked")

    text = get(
        signed_in("leasing_tasks.view_task"), reverse("leasing_tasks:detail", args=[task.pk])
    ).text

    assert "Attempt 1 was postponed by its handler (not counted)" in text
    headline = diagnose(task).headline
    assert headline.startswith("Postponed without using an attempt. Runs again in")
    assert headline.endswith(" Reason: the box is locked")
