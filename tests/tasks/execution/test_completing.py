"""The handler's own writes and the end of its task, in one commit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from leasing.exceptions import LeaseInTransaction, LeaseLost
from leasing.holding.keeper import Keeper
from leasing.holding.term import Term
from tasks.exceptions import Snooze
from tasks.execution.context import Completing, Context
from tasks.models import Queue, Task, TaskStatus
from tests.leasing.support import FakeClock, OtherSession, under_repeatable_read
from tests.tasks.support import (
    ContextOf,
    Reported,
    RunTask,
    attempts,
    lose,
    names_of,
    refusals,
    row_of,
)

pytestmark = pytest.mark.django_db
#: For tests that look at what is committed.
transactional = pytest.mark.django_db(transaction=True)


def work() -> None:
    """A write of the handler's own."""
    Queue.objects.create(name="work")


def written() -> int:
    return Queue.objects.filter(name="work").count()


@transactional
def test_work_and_completion_are_one_commit(run_task: RunTask, reported: Reported) -> None:
    def handler(ctx: Context, **data: Any) -> str:
        with ctx.completing({"kept": True}):
            work()
            assert connection.in_atomic_block
            assert row_of(ctx.task)["status"] == TaskStatus.RUNNING
            assert names_of(reported) == ["enqueued", "claimed"]
        assert (ctx.completed, row_of(ctx.task)["status"]) == (True, TaskStatus.SUCCEEDED)
        return "not looked at"

    task = run_task(handler)

    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, {"kept": True})
    assert (written(), attempts(task)) == (1, [])
    assert names_of(reported) == ["enqueued", "claimed", "completed"]


def test_a_handler_may_go_on_after_a_block_that_raised(run_task: RunTask) -> None:
    def handler(ctx: Context, **data: Any) -> str:
        try:
            with ctx.completing():
                work()
                raise ValueError("no luck")
        except ValueError:
            with ctx.completing("at last"):
                work()
        return "not looked at"

    task = run_task(handler)

    assert (task.task_output, written()) == ("at last", 1)


def test_when_the_task_is_another_s_by_then_nothing_is_written(
    run_task: RunTask, notes: Keeper
) -> None:
    lost: list[str] = []

    def handler(ctx: Context, **data: Any) -> None:
        lose(ctx.task)
        try:
            with ctx.completing():
                work()
        except LeaseLost as loss:
            lost.append(loss.reason)
            raise

    task = run_task(handler)
    notes.write_notes()

    assert lost == ["it was recovered and waits for another attempt"]
    assert (task.status, written()) == (TaskStatus.READY, 0)
    assert (attempts(task), refusals(task)) == ([(1, "lost")], ["complete"])


def test_the_loss_of_something_else_is_an_error_like_any(run_task: RunTask) -> None:
    def handler(ctx: Context, **data: Any) -> None:
        try:
            with ctx.completing():
                raise LeaseLost("crane:1", "bob has held it")
        finally:
            ctx.ensure()

    task = run_task(handler)

    assert task.last_error == "LeaseLost: crane:1 was lost: bob has held it."
    assert attempts(task) == [(1, "failed")]


def test_a_block_is_not_begun_for_a_task_that_is_lost(
    task: Task, context: ContextOf, notes: Keeper
) -> None:
    ctx = context(task)
    notes.holds[0].mark_lost("someone has held it")

    with pytest.raises(LeaseLost), ctx.completing():
        work()

    assert written() == 0


def test_it_is_a_transaction_of_its_own(task: Task, context: ContextOf) -> None:
    """Inside another it would be complete, and then perhaps not."""
    ctx = context(task)
    with transaction.atomic(), pytest.raises(LeaseInTransaction), ctx.completing():
        work()

    assert (written(), ctx.completed) == (0, False)


@transactional
@pytest.mark.usefixtures("on_postgresql")
def test_it_has_the_isolation_level_of_the_site(task: Task, context: ContextOf) -> None:
    with under_repeatable_read(), context(task).completing(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("repeatable read",)
    assert row_of(task)["status"] == TaskStatus.SUCCEEDED


def test_a_task_is_completed_once(task: Task, context: ContextOf) -> None:
    ctx = context(task)
    with ctx.completing():
        pass

    with pytest.raises(RuntimeError, match="already"), ctx.completing():
        pass


def test_after_it_the_task_is_no_longer_the_handlers(
    task: Task, context: ContextOf, notes: Keeper, reported: Reported
) -> None:
    ctx = context(task)
    reported.clear()
    with ctx.completing(1):
        pass

    assert notes.holds == []
    for late in (ctx.ensure, lambda: ctx.checkpoint(1), lambda: ctx.step("x", int)):
        with pytest.raises(LeaseLost):
            late()
    assert "lost" not in names_of(reported)


@transactional
@pytest.mark.parametrize("error", [ValueError("too late"), Snooze(5), SystemExit(1)])
def test_an_error_after_it_changes_nothing(
    run_task: RunTask, error: BaseException, reported: Reported
) -> None:
    def handler(ctx: Context, **data: Any) -> None:
        with ctx.completing("well"):
            pass
        raise error

    task = run_task(handler)

    assert (task.status, task.task_output, attempts(task)) == (TaskStatus.SUCCEEDED, "well", [])
    assert names_of(reported) == ["enqueued", "claimed", "completed"]


@transactional
def test_the_lease_is_renewed_while_the_block_runs(
    run_task: RunTask, on_postgresql: None, other_session: OtherSession
) -> None:
    """Its row is locked as the block ends, and not before."""

    def handler(ctx: Context, **data: Any) -> None:
        assert ctx.task.grant_id is not None
        grants = {ctx.task.pk: ctx.task.grant_id}
        with ctx.completing():
            work()
            answer = other_session.run(lambda: Task.objects.all().renew_many(grants))
            assert ctx.task.pk in answer.renewed

    assert (run_task(handler).status, written()) == (TaskStatus.SUCCEEDED, 1)


@transactional
def test_a_renewal_under_way_as_it_commits_tells_of_no_loss(
    run_task: RunTask,
    notes: Keeper,
    clock: FakeClock,
    reported: Reported,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = Term.detach

    def renew_then_leave(hold: Term) -> None:
        clock.advance(15)
        notes.renew_due()
        left(hold)

    monkeypatch.setattr(Term, "detach", renew_then_leave)

    def handler(ctx: Context, **data: Any) -> None:
        with ctx.completing():
            pass

    assert run_task(handler).status == TaskStatus.SUCCEEDED
    assert names_of(reported) == ["enqueued", "claimed", "completed"]


# For coroutines


def test_a_coroutine_completes_with_its_own_writes(run_task: RunTask) -> None:
    async def handler(ctx: Context, **data: Any) -> None:
        async with ctx.completing() as end:
            await Queue.objects.acreate(name="work")
            end.output = "well"

    task = run_task(handler)

    assert (task.status, task.task_output, written()) == (TaskStatus.SUCCEEDED, "well", 1)


@transactional
def test_what_a_coroutine_wrote_before_it_raised_is_rolled_back(run_task: RunTask) -> None:
    async def handler(ctx: Context, **data: Any) -> None:
        async with ctx.completing():
            await Queue.objects.acreate(name="work")
            raise ValueError("no luck")

    task = run_task(handler)

    assert (task.last_error, written()) == ("ValueError: no luck", 0)


@pytest.mark.parametrize("during", ["__enter__", "__exit__"])
def test_a_cancellation_leaves_no_transaction_open(
    task: Task, context: ContextOf, during: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while a thread begins or ends the transaction."""
    ctx = context(task)
    reached = asyncio.Event()
    step = getattr(Completing, during)
    loop: Any = None
    loop_has_cancelled = threading.Event()

    def slowly(end: Completing, *how: Any) -> Any:
        loop.call_soon_threadsafe(reached.set)
        loop_has_cancelled.wait(5)
        return step(end, *how)

    monkeypatch.setattr(Completing, during, slowly)

    async def handler() -> None:
        async with ctx.completing():
            pass

    async def cancelling() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(handler())
        await reached.wait()
        running.cancel()
        loop.call_later(0.01, loop_has_cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await running

    depth = len(connection.savepoint_ids)

    async_to_sync(cancelling)()

    assert len(connection.savepoint_ids) == depth
    assert ctx.completed is (during == "__exit__")
    assert (row_of(task)["status"] == TaskStatus.SUCCEEDED) is ctx.completed
