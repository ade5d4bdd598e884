"""Helpers for users' tests of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone
from pytest_django import Settings

from leasing.db.dialects import in_transaction
from leasing.exceptions import LeaseLost
from leasing.models import Lease
from leasing.queue_pytest_plugin import drain_tasks, inline_tasks, own_handlers
from tasks import registry
from tasks.exceptions import (
    InvalidArguments,
    Snooze,
    TaskCancelled,
    UnknownQueue,
    UnknownTask,
)
from tasks.models import Task, TaskStatus
from tasks.testing import (
    FakeContext,
    aassert_enqueued,
    adrain,
    arun_handler,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    enqueued,
    inline,
    manual,
    run,
    run_handler,
)
from tests.tasks.support import Handlers, attempts

__all__ = ["drain_tasks", "inline_tasks", "own_handlers"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("queues")]


class Trouble(Exception):
    """An error that a handler may raise."""


@pytest.fixture(autouse=True)
def _long_pauses(queues: None, settings: Settings) -> None:
    """No retry is due by chance."""
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "BACKOFF": {"base": 3600.0, "cap": 36000.0}}


@pytest.fixture
def ran(handlers: Handlers) -> list[Any]:
    """Return the arguments of the calls of ``note``, ``fail``, ``anote`` and ``chain``."""
    seen: list[Any] = []

    def note(ctx: Any, n: int = 0) -> dict[str, int]:
        seen.append(n)
        return {"n": n}

    async def anote(ctx: Any, n: int = 0) -> int:
        await asyncio.sleep(0)
        seen.append(n)
        return n

    def fail(ctx: Any, n: int = 0) -> None:
        seen.append(n)
        raise Trouble(f"no luck with {n}")

    def chain(ctx: Any, n: int = 0) -> None:
        seen.append(n)
        if n:
            Task.objects.enqueue("chain", {"n": n - 1})

    for function in (note, anote, fail, chain):
        handlers[function.__name__] = function
    return seen


def status(task: Task) -> str:
    task.refresh_from_db()
    return task.status


# By hand


def test_nothing_runs_until_it_is_run(ran: list[Any]) -> None:
    task = Task.objects.enqueue("note", {"n": 1})
    assert (ran, status(task)) == ([], TaskStatus.READY)

    assert run(task) is task
    assert ran == [1]
    assert (task.status, task.task_output, task.holder) == ("succeeded", {"n": 1}, "a test")


def test_a_delayed_task_is_run_when_it_is_asked_for(ran: list[Any]) -> None:
    later = timezone.now() + timedelta(days=1)

    assert run(Task.objects.enqueue("note", scheduled_at=later)).status == "succeeded"


def test_what_a_handler_raises_fails_the_attempt_as_in_life(ran: list[Any]) -> None:
    task = run(Task.objects.enqueue("fail"))

    assert (task.status, task.attempts) == (TaskStatus.READY, 1)
    assert attempts(task) == [(1, "failed")]
    assert run(task).attempts == 2


def test_what_a_handler_says_by_raising_does_not_come_out(handlers: Handlers) -> None:
    def not_now(ctx: Any) -> None:
        raise Snooze(5)

    handlers["not now"] = not_now

    run(Task.objects.enqueue("not now"), raises=True)


def test_a_task_that_does_not_wait_cannot_be_run(ran: list[Any]) -> None:
    task = run(Task.objects.enqueue("note"))

    with pytest.raises(AssertionError, match="cannot be run: Completed by a test"):
        run(task)


def test_a_task_without_code_cannot_be_run(handlers: Handlers) -> None:
    handlers["gone"] = lambda ctx: None
    task = Task.objects.enqueue("gone")
    del handlers["gone"]

    with pytest.raises(UnknownTask):
        run(task)
    with pytest.raises(UnknownTask):
        drain()
    assert status(task) == "ready"


def test_a_task_whose_data_does_not_fit_cannot_be_run(handlers: Handlers) -> None:
    handlers["build"] = lambda ctx, **data: None
    task = Task.objects.enqueue("build", {"day": "mon"})
    handlers["build"] = lambda ctx, report_id: None

    with pytest.raises(InvalidArguments, match="'report_id' is missing; 'day' is unknown"):
        run(task)
    with pytest.raises(InvalidArguments):
        run_handler("build", {"day": "mon"})
    assert status(task) == "ready"


def test_an_error_of_the_database_does_not_break_the_transaction_of_the_test(
    handlers: Handlers,
) -> None:
    def collide(ctx: Any) -> None:
        Lease.objects.create(resource="berth:1")

    async def acollide(ctx: Any) -> None:
        await Lease.objects.acreate(resource="berth:1")

    handlers["collide"], handlers["acollide"] = collide, acollide
    Lease.objects.create(resource="berth:1")

    for name in ("collide", "acollide"):
        task = Task.objects.enqueue(name)
        with pytest.raises(IntegrityError):
            run(task, raises=True)
        assert attempts(task) == [(1, "failed")]


def test_a_transaction_of_the_handlers_own_is_one_as_in_life(handlers: Handlers) -> None:
    reported: list[bool] = []

    def write(ctx: Any) -> None:
        with transaction.atomic():
            reported.append(in_transaction("default"))
            Lease.objects.create(resource="berth:3")
        with Lease.objects.hold("berth:4") as hold:  # refused inside a transaction
            reported.append(hold.valid)

    handlers["write"] = write

    with transaction.atomic():
        assert run(Task.objects.enqueue("write")).status == "succeeded"
    assert reported == [True, True]


# At once


def test_inline_a_task_runs_before_enqueue_returns(ran: list[Any]) -> None:
    with inline():
        task = Task.objects.enqueue("note", {"n": 1})
        assert (ran, task.status) == ([1], "succeeded")
        assert len(Task.objects.enqueue_many("note", [{"n": 2}, {"n": 3}])) == 2

    assert ran == [1, 2, 3]
    assert Task.objects.enqueue("note", {"n": 4}).status == "ready"


def test_inline_a_duplicate_does_not_run_again(ran: list[Any]) -> None:
    first = Task.objects.enqueue("note", unique_key="k")

    with inline():
        assert Task.objects.enqueue("note", unique_key="k").pk == first.pk

    assert ran == []


def test_modes_stand_one_in_the_other(ran: list[Any]) -> None:
    with inline():
        with manual():
            Task.objects.enqueue("note", {"n": 1})
            with inline():
                Task.objects.enqueue("note", {"n": 2})
        Task.objects.enqueue("note", {"n": 3})

    assert ran == [2, 3]


@pytest.mark.django_db(transaction=True)
def test_on_commit_a_task_runs_when_its_transaction_has_committed(ran: list[Any]) -> None:
    with inline(on_commit=True):
        with transaction.atomic():
            Task.objects.enqueue("note", {"n": 1})
            assert ran == []
        assert ran == [1]
        Task.objects.enqueue("note", {"n": 2})
        assert ran == [1, 2]
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Task.objects.enqueue("note", {"n": 3})
            raise ZeroDivisionError

    assert ran == [1, 2]


# All that is due


def test_draining_runs_what_is_due_and_what_that_enqueues(ran: list[Any]) -> None:
    Task.objects.enqueue("chain", {"n": 2})
    later = Task.objects.enqueue("note", scheduled_at=timezone.now() + timedelta(hours=1))

    assert [task.status for task in drain()] == ["succeeded"] * 3
    assert (ran, status(later)) == ([2, 1, 0], "ready")
    assert drain() == []


def test_one_queue_can_be_drained_and_all_are_in_their_order(ran: list[Any]) -> None:
    for n, queue in enumerate(["reports", "mail", "default", "mail"]):
        Task.objects.enqueue("note", {"n": n}, queue=queue)

    assert [task.queue for task in drain("mail")] == ["mail", "mail"]
    assert [task.queue for task in drain()] == ["default", "reports"]
    assert ran == [1, 3, 2, 0]


def test_delays_can_be_skipped_retries_too(ran: list[Any]) -> None:
    later = timezone.now() + timedelta(days=1)
    Task.objects.enqueue("note", {"n": 1}, scheduled_at=later)
    failed = Task.objects.enqueue("fail", {"n": 2}, max_attempts=3)

    done = drain(skip_delays=True)

    assert [task.status for task in done].count("ready") == 2
    assert sorted(ran) == [1, 2, 2, 2]
    assert status(failed) == "failed"
    assert attempts(failed) == [(1, "failed"), (2, "failed"), (3, "failed")]


def test_draining_that_does_not_end_is_ended(handlers: Handlers) -> None:
    def again(ctx: Any) -> None:
        Task.objects.enqueue("again")

    handlers["again"] = again
    Task.objects.enqueue("again")

    with pytest.raises(AssertionError, match="not empty after 5 runs; the last was task:"):
        drain(limit=5)


# A handler alone


def test_a_handler_is_called_alone(ran: list[Any], handlers: Handlers) -> None:
    assert run_handler("note", {"n": 5}) == {"n": 5}
    assert run_handler(handlers_function("note"), {"n": 6}) == {"n": 6}
    assert run_handler("anote", {"n": 7}) == 7
    assert (ran, Task.objects.count()) == ([5, 6, 7], 0)


def handlers_function(name: str) -> Callable[..., Any]:
    return registry.find(name).function


def test_a_fake_context_keeps_what_a_handler_says(handlers: Handlers) -> None:
    def work(ctx: Any) -> None:
        done = ctx.state or 0
        ctx.ensure()
        ctx.progress(done=done, total=9, unit="page")
        for name in ("a", "b"):
            done = ctx.step(name, lambda before: before + 1, done)
            ctx.checkpoint(done)
        with ctx.completing() as end:
            end.output = [ctx.attempt, ctx.fencing_token, ctx.task.attempts, ctx.stopping]

    handlers["work"] = work
    ctx = FakeContext(attempt=3, fencing_token=17, state=5, steps={"a": 6})

    run_handler("work", ctx=ctx)

    assert ctx.said == [{"done": 5, "total": 9, "unit": "page"}]
    assert (ctx.steps, ctx.state, ctx.checkpoints) == ({"a": 6, "b": 7}, 7, [6, 7])
    assert (ctx.completed, ctx.output) == (True, [3, 17, 3, False])


def test_a_fake_context_has_the_twins_for_coroutines(handlers: Handlers) -> None:
    async def twice(n: int) -> int:
        return 2 * n

    async def work(ctx: Any) -> None:
        await ctx.aprogress(1, 2)
        assert await ctx.astep("a", twice, 2) == 4
        assert await ctx.astep("a", twice, 3) == 4
        assert await ctx.astep("b", lambda: 1) == 1
        await ctx.acheckpoint({"at": 1})
        async with ctx.completing({"ok": True}):
            pass

    handlers["work"] = work
    ctx = FakeContext()

    run_handler("work", ctx=ctx)

    assert (ctx.said, ctx.state) == ([{"done": 1, "total": 2}], {"at": 1})
    assert (ctx.completed, ctx.output) == (True, {"ok": True})


@pytest.mark.parametrize(
    ("happens", "raised"),
    [(FakeContext.lose, LeaseLost), (FakeContext.cancel, TaskCancelled)],
)
def test_a_fake_context_can_be_lost_and_cancelled(
    happens: Callable[[FakeContext], None], raised: type[Exception]
) -> None:
    ctx = FakeContext()
    happens(ctx)

    calls: list[Callable[[], Any]] = [
        ctx.ensure,
        ctx.completing().__enter__,
        lambda: ctx.step("a", str),
    ]
    for call in calls:
        with pytest.raises(raised):
            call()
    assert (ctx.steps, ctx.cancelled) == ({}, raised is TaskCancelled)


def test_a_fake_context_that_is_lost_keeps_nothing() -> None:
    ctx = FakeContext()
    with pytest.raises(LeaseLost), ctx.completing():
        ctx.lose()
    with pytest.raises(LeaseLost):
        ctx.progress(1)
    with pytest.raises(LeaseLost):
        ctx.checkpoint(1)

    assert (ctx.completed, ctx.said, ctx.checkpoints) == (False, [], [])


def test_a_fake_context_can_be_asked_to_stop() -> None:
    ctx = FakeContext()
    ctx.stop()

    assert ctx.stopping
    ctx.ensure()


# What was enqueued


def test_what_was_enqueued_can_be_listed_and_asserted(ran: list[Any]) -> None:
    one = Task.objects.enqueue("note", {"n": 1}, queue="mail")
    two = Task.objects.enqueue("note", {"n": 2}, priority=5)
    run(two)

    assert [task.pk for task in enqueued()] == [one.pk, two.pk]
    assert enqueued("note", queue="mail") == [one]
    assert enqueued(handlers_function("note"), priority__gt=0) == [two]
    assert enqueued(status="ready") == [one]
    assert assert_enqueued("note", data={"n": 2}) == [two]
    assert_enqueued("note", count=2)
    assert_not_enqueued("chain")
    assert_not_enqueued("note", data={"n": 3})
    assert_enqueued("chain", count=0)


@pytest.mark.parametrize("name", ["sort", "file"])
def test_tasks_are_looked_for_under_every_name_of_their_handler(
    renamed: list[int], name: str
) -> None:
    assert [task.pk for task in enqueued(name)] == renamed
    assert_enqueued(registry.find(name).function, count=2)


def test_data_is_matched_by_the_items_that_are_given(handlers: Handlers) -> None:
    handlers["wide"] = lambda ctx, **data: None
    Task.objects.enqueue("wide", {"a": 1, "b": {"c": [2]}})

    assert_enqueued("wide", data={"b": {"c": [2]}})
    assert_not_enqueued("wide", data={"b": {}})
    assert_not_enqueued("wide", data={"c": None})
    Task.objects.enqueue("wide", {"id": UUID(int=7), "pair": (1, 2)})
    assert_enqueued("wide", data={"id": UUID(int=7), "pair": (1, 2)}, count=1)


@pytest.mark.parametrize("look", [enqueued, assert_enqueued, assert_not_enqueued])
def test_what_cannot_have_been_enqueued_is_refused(ran: list[Any], look: Any) -> None:
    """A mistyped name would make an assertion that cannot fail."""
    with pytest.raises(UnknownTask, match=r"'noet'.* Did you mean 'note'\?"):
        look("noet")
    with pytest.raises(InvalidArguments, match=r"'nn' is unknown \(did you mean 'n'\?\)"):
        look("note", data={"nn": 1})
    with pytest.raises(InvalidArguments, match="'ctx' is its context"):
        look(handlers_function("note"), data={"ctx": 1})
    with pytest.raises(UnknownQueue, match=r"Did you mean 'mail'\?"):
        look("note", queue="mial")


def test_a_failed_assertion_says_what_there_is(ran: list[Any]) -> None:
    with pytest.raises(
        AssertionError, match="at least 1 of note like that, found 0. Enqueued: nothing"
    ):
        assert_enqueued("note")
    Task.objects.enqueue("note", {"n": 1}, queue="mail")
    with pytest.raises(AssertionError, match=r"Expected 2 .* found 1.*note {'n': 1} in mail"):
        assert_enqueued("note", count=2)
    with pytest.raises(AssertionError, match=r"Enqueued: note {'n': 1} in mail"):
        assert_not_enqueued()


# Fixtures, and cases of unittest


@pytest.mark.usefixtures("inline_tasks")
def test_the_fixture_runs_tasks_inline(ran: list[Any]) -> None:
    assert Task.objects.enqueue("note").status == "succeeded"


def test_handlers_of_a_test_are_forgotten(own_handlers: dict[str, Any]) -> None:
    registry.handler("mine.alone")(lambda ctx: None)

    assert "mine.alone" in own_handlers


def test_they_were_forgotten() -> None:
    assert "mine.alone" not in registry.names()


class TestUnderDjangosTestCase(TestCase):
    def test_tasks_run_inside_the_transaction_of_the_test(self) -> None:
        with inline(), transaction.atomic():
            task = Task.objects.enqueue("jobs.echo", {"n": 1})
        self.assertEqual(task.task_output, {"n": 1})
        Task.objects.enqueue("jobs.echo", {"n": 2})
        self.assertEqual([task.task_output for task in drain()], [{"n": 2}])

    def test_on_commit_waits_for_the_callbacks_to_be_executed(self) -> None:
        with inline(on_commit=True):
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                task = Task.objects.enqueue("jobs.echo")
                self.assertEqual(status(task), "ready")
            self.assertEqual(status(task), "succeeded")

    async def test_it_works_in_async_tests(self) -> None:
        await Task.objects.acreate(name="jobs.echo", task_data={"n": 1})
        (task,) = await aassert_enqueued("jobs.echo")
        self.assertEqual(await arun_handler("jobs.echo", {"n": 2}), {"n": 2})
        self.assertEqual(await adrain(), [task])

    @pytest.mark.usefixtures("inline_tasks")
    def test_fixtures_reach_its_methods(self) -> None:
        self.assertEqual(Task.objects.enqueue("jobs.echo").status, "succeeded")


class TestUnderDjangosTransactionTestCase(TransactionTestCase):
    def test_tasks_run(self) -> None:
        Task.objects.enqueue("jobs.echo")
        self.assertEqual(len(drain()), 1)
