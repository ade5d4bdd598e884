"""Checkpoints: the state that one attempt leaves for the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from leasing.exceptions import LeaseLost
from tasks.exceptions import NotSerializable, Snooze
from tasks.models import Queue, Task, TaskStatus
from tests.factories import claimed
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import (
    ContextOf,
    RunTask,
    attempts,
    copy_of,
    lose,
    make_due,
    refusals,
    row_of,
)

pytestmark = pytest.mark.django_db


def test_a_numbered_checkpoint_is_stored_unless_it_or_a_later_one_was(task: Task) -> None:
    for number, state in ((2, "b"), (1, "a"), (2, "again"), (3, "c")):
        Task.objects.checkpoint(copy_of(task), state, number=number)
        if number == 2:
            assert row_of(task)["checkpoint"] == "b"

    after = row_of(task)
    assert (after["checkpoint"], after["checkpoints"]) == ("c", 3)
    late = copy_of(task)
    Task.objects.filter(pk=task.pk).revoke(reason="its host is gone")
    for number in (1, 4):
        with pytest.raises(LeaseLost):
            Task.objects.checkpoint(late, "late", number=number)


def test_a_checkpoint_is_stored_and_counted_by_one_statement(
    task: Task, context: ContextOf, database_clock: DatabaseClock
) -> None:
    ctx = context(task)
    ctx.checkpoint({"row": 1})
    before = row_of(task)
    database_clock.advance(3)

    with CaptureQueriesContext(connection) as queries:
        ctx.checkpoint({"row": 2})

    assert len(queries) == 1
    after = row_of(task)
    assert (after["checkpoint"], after["checkpoints"]) == ({"row": 2}, 2)
    assert after["progressed_at"] == database_clock.now
    changed = {column for column, value in after.items() if before[column] != value}
    assert changed == {"checkpoint", "checkpoints", "progressed_at"}
    assert (ctx.state, task.checkpoints) == ({"row": 2}, 2)


ENDS: dict[str, Callable[[Task], object]] = {
    "its worker was lost": lose,
    "it failed": lambda task: Task.objects.fail(task, "no luck"),
    "it was given back": lambda task: Task.objects.give_back(task, "again"),
    "it was put off": lambda task: Task.objects.snooze(task, 5),
    "it was revoked": lambda task: Task.objects.filter(pk=task.pk).revoke(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_whatever_ended_the_attempt_the_next_goes_on_from_the_checkpoint(
    task: Task, context: ContextOf, end: Callable[[Task], object]
) -> None:
    context(task).checkpoint([3, "abc"])
    end(copy_of(task))
    make_due(task)

    again = context(claimed(task, "bob"))

    assert (again.state, again.task.checkpoints) == ([3, "abc"], 1)


def test_a_failed_task_that_is_retried_goes_on_from_it_too(task: Task, context: ContextOf) -> None:
    Task.objects.filter(pk=task.pk).update(max_attempts=1)
    context(task).checkpoint("far")
    Task.objects.fail(task, "no luck")

    Task.objects.filter(pk=task.pk).retry()

    assert context(claimed(task, "bob")).state == "far"


def test_it_never_falls_back_to_what_an_attempt_that_was_lost_says(
    task: Task, context: ContextOf
) -> None:
    zombie = context(task)
    zombie.checkpoint({"row": 5})
    lose(copy_of(task))
    with pytest.raises(LeaseLost, match="recovered"):
        context(copy_of(task)).checkpoint({"row": 6})
    context(claimed(task, "bob")).checkpoint({"row": 9})

    with pytest.raises(LeaseLost, match="bob has held it"):
        zombie.checkpoint({"row": 6})

    row = row_of(task)
    assert (row["checkpoint"], row["checkpoints"]) == ({"row": 9}, 2)
    assert (zombie.state, zombie.task.checkpoints) == ({"row": 5}, 1)
    assert refusals(task) == ["checkpoint"]
    with pytest.raises(LeaseLost):
        zombie.ensure()


def test_it_can_be_taken_away_again(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    ctx.checkpoint([1])

    ctx.checkpoint(None)

    assert (row_of(task)["checkpoint"], row_of(task)["checkpoints"]) == (None, 2)


@pytest.mark.parametrize("state", [object(), float("inf"), "\0"])
def test_what_is_no_json_is_refused(task: Task, context: ContextOf, state: Any) -> None:
    with pytest.raises(NotSerializable, match="checkpoint"):
        context(task).checkpoint(state)

    assert row_of(task)["checkpoints"] == 0


def test_before_the_first_there_is_none(task: Task, context: ContextOf) -> None:
    assert context(task).state is None


def test_in_a_transaction_it_commits_with_what_was_written(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Queue.objects.create(name="work")
        ctx.checkpoint([1])
        raise ZeroDivisionError

    assert (row_of(task)["checkpoint"], Queue.objects.count()) == (None, 0)


def test_work_goes_on_attempt_after_attempt(run_task: RunTask) -> None:
    done: list[int] = []

    def handler(ctx: Any, **data: Any) -> list[int]:
        for at in range(ctx.state or 0, 6):
            done.append(at)
            ctx.checkpoint(at + 1)
            if at == 1:
                raise ValueError("no luck")
            if at == 3:
                raise Snooze(1)
        return done

    task = run_task(handler)
    while task.status == TaskStatus.READY:
        make_due(task)
        task = run_task(handler, task=claimed(task, "bob"))

    assert task.task_output == [0, 1, 2, 3, 4, 5]
    assert attempts(task) == [(1, "failed"), (2, "snoozed")]
    assert task.attempts == 2


def test_a_coroutine_leaves_one_too(run_task: RunTask) -> None:
    async def handler(ctx: Any, **data: Any) -> Any:
        await ctx.acheckpoint({"row": 1})
        return ctx.state

    task = run_task(handler)

    assert task.task_output == task.checkpoint == {"row": 1}
