"""Parts of a task that are done once over all its attempts."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from leasing.exceptions import LeaseLost
from leasing.holding.keeper import Keeper
from tasks.execution.context import Context
from tasks.models import Task, TaskStatus, TaskStep
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.tasks.support import ContextOf, RunTask, lose, make_due, refusals, row_of

pytestmark = pytest.mark.django_db


class Counted:
    """Something to do, that says how often it was done."""

    def __init__(self, output: Any = "done") -> None:
        self.calls: list[Any] = []
        self.output = output

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((*args, kwargs))
        return self.output


def test_a_step_is_done_once_over_all_attempts(run_task: RunTask) -> None:
    fetch, send = Counted({"pages": 3}), Counted()

    def handler(ctx: Context, **data: Any) -> Any:
        fetched = ctx.step("fetch", fetch, "a.txt", mode="fast")
        if ctx.attempt < 3:
            raise ValueError("no luck")
        return [fetched, ctx.step("send", send)]

    task = run_task(handler)
    while task.status == TaskStatus.READY:
        make_due(task)
        task = run_task(handler, task=claimed(task, "bob"))

    assert task.task_output == [{"pages": 3}, "done"]
    assert fetch.calls == [("a.txt", {"mode": "fast"})]
    assert send.calls == [({},)]
    assert list(task.step_set.values_list("name", "output")) == [
        ("fetch", {"pages": 3}),
        ("send", "done"),
    ]


@pytest.mark.parametrize(
    ("output", "stored"),
    [(None, None), ((1, 2), [1, 2]), ({1: "a"}, {"1": "a"}), (False, False), (1.5, 1.5)],
)
def test_the_first_attempt_gets_what_later_ones_will(
    task: Task, context: ContextOf, output: Any, stored: Any
) -> None:
    work = Counted(output)
    first = context(task).step("fetch", work)
    Task.objects.give_back(task, "again")
    later = context(claimed(task, "bob")).step("fetch", work)

    assert (first, later) == (stored, stored)
    assert len(work.calls) == 1


def test_a_finished_step_is_progress(
    task: Task, context: ContextOf, database_clock: DatabaseClock
) -> None:
    database_clock.advance(3)

    context(task).step("fetch", int)

    assert row_of(task)["progressed_at"] == database_clock.now


def test_steps_of_other_tasks_are_others(task: Task, context: ContextOf) -> None:
    other = make_task(state="running")
    context(other).step("fetch", Counted("theirs"))

    assert context(task).step("fetch", Counted("mine")) == "mine"


def test_a_step_that_raises_has_not_finished(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    with pytest.raises(ZeroDivisionError):
        ctx.step("divide", lambda: 1 / 0)

    assert ctx.step("divide", Counted(1)) == 1


def test_a_step_is_not_begun_for_a_task_that_is_lost(
    task: Task, context: ContextOf, notes: Keeper
) -> None:
    ctx, work = context(task), Counted()
    notes.holds[0].mark_lost("someone has held it")

    for step in (ctx.step, async_to_sync(ctx.astep)):
        with pytest.raises(LeaseLost):
            step("fetch", work)

    assert work.calls == []


def test_the_output_of_an_attempt_that_was_lost_meanwhile_is_not_stored(
    task: Task, context: ContextOf
) -> None:
    ctx = context(task)

    def slow() -> str:
        lose(task)
        assert context(claimed(task, "bob")).step("fetch", Counted("bob's")) == "bob's"
        return "ann's"

    with pytest.raises(LeaseLost, match="bob has held it"):
        ctx.step("fetch", slow)

    assert TaskStep.objects.get().output == "bob's"
    assert refusals(task) == ["step"]


def test_of_two_threads_of_one_attempt_the_first_output_counts(
    task: Task, context: ContextOf
) -> None:
    ctx = context(task)

    def slow() -> str:
        ctx.step("fetch", Counted("first"))
        return "second"

    assert ctx.step("fetch", slow) == "first"


def test_in_a_transaction_step_and_writes_are_one_commit(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ctx.step("fetch", Counted())
        raise ZeroDivisionError

    work = Counted()
    ctx.step("fetch", work)

    assert len(work.calls) == 1


async def fetch(number: int) -> int:
    return number * 2


def test_a_coroutine_awaits_its_steps(run_task: RunTask) -> None:
    plain = Counted("plain")

    async def handler(ctx: Context, **data: Any) -> Any:
        if ctx.attempt == 2:
            return [await ctx.astep("double", fetch, 50), await ctx.astep("plain", plain)]
        await ctx.astep("double", fetch, 21)
        await ctx.astep("plain", plain)
        raise ValueError("no luck")

    task = run_task(handler)
    make_due(task)
    task = run_task(handler, task=claimed(task, "bob"))

    assert task.task_output == [42, "plain"]
    assert len(plain.calls) == 1


def test_a_plain_step_takes_no_coroutine(task: Task, context: ContextOf) -> None:
    with pytest.raises(TypeError, match="astep"):
        context(task).step("double", fetch, 1)
