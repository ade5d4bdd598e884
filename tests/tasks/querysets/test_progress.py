"""Progress of a handler, and the time of its writing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, transaction
from django.template import Context as TemplateContext
from django.template import Template
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from leasing.exceptions import LeaseLost
from tasks.exceptions import NotSerializable
from tasks.execution.context import Context
from tasks.models import Task, TaskStatus
from tests.factories import claimed, make_task
from tests.leasing.conftest import DatabaseClock
from tests.leasing.support import FakeClock, expire
from tests.logs import logged
from tests.pages import get, signed_in
from tests.tasks.support import ContextOf, RunTask, attempts, refusals, refusing, row_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clock(holder_clock: FakeClock) -> FakeClock:
    """The holder's clock, moved by hand."""
    return holder_clock


def said(task: Task) -> Any:
    return row_of(task)["progress"]


def test_what_is_said_is_written_with_its_moment(
    task: Task, context: ContextOf, database_clock: DatabaseClock
) -> None:
    before = row_of(task)
    database_clock.advance(3)

    with CaptureQueriesContext(connection) as queries:
        context(task).progress(3, 10, file="a.txt")

    assert len(queries) == 1
    assert task.progress == said(task) == {"done": 3, "total": 10, "file": "a.txt"}
    after = row_of(task)
    assert after["progressed_at"] == database_clock.now
    changed = {column for column, value in after.items() if before[column] != value}
    assert changed == {"progress", "progressed_at"}


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((0,), {"done": 0}),
        ((1, 3), {"done": 1, "total": 3}),
        ((None, 3), {"total": 3}),
        ((["any"], "json"), {"done": ["any"], "total": "json"}),
    ],
)
def test_only_what_was_given_is_stored(
    task: Task, context: ContextOf, arguments: tuple[Any, ...], value: Any
) -> None:
    context(task).progress(*arguments)

    assert said(task) == value


def test_without_arguments_it_is_a_sign_of_life_and_no_more(
    task: Task, context: ContextOf, clock: FakeClock, database_clock: DatabaseClock
) -> None:
    ctx = context(task)
    ctx.progress(3, 10)
    clock.advance(1)
    database_clock.advance(1)

    ctx.progress()

    assert said(task) == {"done": 3, "total": 10}
    assert row_of(task)["progressed_at"] == database_clock.now


def test_it_is_written_at_most_once_a_second(
    task: Task, context: ContextOf, clock: FakeClock
) -> None:
    ctx = context(task)
    written = []
    for number in range(1, 31):
        ctx.progress(number, 100)
        if said(task)["done"] == number:
            written.append(number)
        clock.advance(0.125)

    assert written == [1, 9, 17, 25]


def test_the_last_word_is_written_at_once(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    ctx.progress(99, 100)
    ctx.progress(100, 100)

    assert said(task) == {"done": 100, "total": 100}


def test_a_short_progress_timeout_shortens_the_wait(context: ContextOf, clock: FakeClock) -> None:
    """Pending progress must not look like silence there."""
    task = make_task(state="running")
    Task.objects.filter(pk=task.pk).update(progress_timeout=timedelta(seconds=0.75))
    task.refresh_from_db()
    ctx = context(task)
    ctx.progress(1)

    clock.advance(0.2)
    ctx.progress(2)
    assert said(task) == {"done": 1}

    clock.advance(0.05)
    ctx.progress(3)
    assert said(task) == {"done": 3}


def saying(write: Callable[[Any], object]) -> Callable[..., object]:
    """A handler that says a word too soon, and then does ``write``."""

    def handler(ctx: Any, **data: Any) -> object:
        ctx.progress(1)
        ctx.progress(2)
        return write(ctx)

    return handler


def complete(ctx: Context) -> None:
    with ctx.completing():
        pass


@pytest.mark.parametrize(
    "write",
    [lambda ctx: ctx.checkpoint([1]), lambda ctx: ctx.step("fetch", int), complete],
    ids=["a checkpoint", "a step", "the completion"],
)
def test_what_waits_goes_with_the_next_write(
    task: Task, context: ContextOf, write: Callable[[Context], object]
) -> None:
    ctx = context(task)
    ctx.progress(1)
    ctx.progress(2)
    assert said(task) == {"done": 1}

    write(ctx)

    assert said(task) == {"done": 2}


@pytest.mark.parametrize("fails", [False, True])
def test_what_waits_is_written_when_the_handler_ends(run_task: RunTask, fails: bool) -> None:
    task = run_task(saying(lambda ctx: 1 / 0 if fails else None))

    assert task.progress == {"done": 2}
    assert task.status == (TaskStatus.READY if fails else TaskStatus.SUCCEEDED)


def test_inside_a_transaction_it_waits(task: Task, context: ContextOf, clock: FakeClock) -> None:
    """The row would be locked, and could not be renewed."""
    ctx = context(task)
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        ctx.progress(1, 1)
    assert (len(queries), said(task)) == (0, None)

    ctx.progress()

    assert said(task) == {"done": 1, "total": 1}


@pytest.mark.parametrize("value", [object(), float("nan"), "a\0b", {1, 2}])
def test_what_is_no_json_is_refused_at_once(task: Task, context: ContextOf, value: Any) -> None:
    ctx = context(task)
    ctx.progress(1)

    with pytest.raises(NotSerializable, match="progress"):
        ctx.progress(2, more=value)  # which would only have waited

    ctx.flush()
    assert said(task) == {"done": 1}


def test_who_has_lost_the_task_hears_it_at_once(
    task: Task, context: ContextOf, run_task: RunTask
) -> None:
    ctx = context(task)
    expire(task)
    Task.objects.recover()

    with pytest.raises(LeaseLost, match="recovered"):
        ctx.progress(1)
    with pytest.raises(LeaseLost, match="recovered"):
        ctx.ensure()

    assert (said(task), refusals(task)) == (None, ["progress"])


def test_a_handler_whose_progress_is_refused_has_not_failed(run_task: RunTask) -> None:
    def handler(ctx: Any, **data: Any) -> None:
        expire(ctx.task)
        Task.objects.recover()
        ctx.progress(1)

    task = run_task(handler)

    assert (attempts(task), refusals(task)) == ([(1, "lost")], ["progress"])


def test_the_last_word_of_a_lost_attempt_takes_no_place_from_its_result(
    run_task: RunTask,
) -> None:
    """The first late write is noted; the result says more."""

    def handler(ctx: Any, **data: Any) -> str:
        ctx.progress(1)
        ctx.progress(2)
        expire(ctx.task)
        Task.objects.recover()
        ctx._attempt.mark_lost("it was told so")
        return "late"

    assert refusals(run_task(handler)) == ["complete"]


@pytest.mark.django_db(transaction=True)
def test_a_last_word_that_cannot_be_written_harms_no_result(
    run_task: RunTask, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(ctx: Any, **data: Any) -> str:
        ctx.progress("first")
        ctx.progress("last")
        return "well"

    away = OperationalError("the database is away")
    with refusing(away, lambda sql, params: '"progress" =' in sql and "last" in str(params)):
        task = run_task(handler)

    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, "well")
    assert "task.progress_dropped" in logged(caplog)
    assert "the database is away" in caplog.text


def test_each_claim_begins_anew(task: Task, database_clock: DatabaseClock) -> None:
    Task.objects.progress(task, {"done": 1})
    Task.objects.give_back(task, "again")
    database_clock.advance(5)

    again = claimed(task, "bob")

    assert (again.progress, again.progressed_at) == (None, database_clock.now)


def test_a_coroutine_says_it_too(run_task: RunTask) -> None:
    async def handler(ctx: Any, **data: Any) -> None:
        await ctx.aprogress(1, 2, word="half")

    assert run_task(handler).progress == {"done": 1, "total": 2, "word": "half"}


def test_an_async_loss_is_told_as_well(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    Task.objects.filter(pk=task.pk).revoke()

    with pytest.raises(LeaseLost):
        async_to_sync(ctx.aprogress)(1)


# On the page


@pytest.mark.parametrize(
    ("value", "line", "bar"),
    [
        ({"done": 3, "total": 12}, "3 of 12", "25 % done"),
        ({"done": 3_000}, "3,000", ""),
        ({"done": 30, "total": 12}, "30 of 12", "100 % done"),
        ({"done": -1, "total": 12}, "-1 of 12", "0 % done"),
        ({"done": 1, "total": 0}, "1 of 0", ""),
        ({"done": True, "total": 12}, "In progress", ""),
        ({"done": 10**400, "total": 10**400}, "In progress", ""),
        ({"phase": "upload"}, "In progress", ""),
        (["any", "json"], "In progress", ""),
        ("words", "In progress", ""),
    ],
)
def test_how_far_it_is_stands_in_a_line_and_a_bar(value: Any, line: str, bar: str) -> None:
    template = Template("{% load tasks_ops %}{% progress_line task %}|{% progress_bar task %}")

    text, drawn = template.render(TemplateContext({"task": Task(progress=value)})).split("|")

    assert text == line
    assert bar in drawn
    assert bool(drawn) is bool(bar)


def test_the_page_of_a_task_shows_progress_and_checkpoint(task: Task) -> None:
    Task.objects.checkpoint(task, {"row": 7}, progress={"done": 3, "total": 12, "file": "a.txt"})

    viewer = signed_in("leasing_tasks.view_task", "leasing_tasks.view_payload")
    page = get(viewer, reverse("leasing_tasks:detail", args=[task.pk]))

    assert "Progress 3 of 12 reported" in page.text
    assert 'aria-label="25 % done"' in page.html
    assert '"file": "a.txt"' in page.text
    assert 'number 1: the next attempt resumes from it { "row": 7 }' in page.text
