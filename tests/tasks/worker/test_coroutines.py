"""Coroutines in a worker: all on one loop, cancelled when they are to end."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from pytest_django import Settings

from tasks.exceptions import TaskCancelled
from tasks.execution.attempt import Attempt
from tasks.models import Task, TaskStatus
from tasks.registry import Kind
from tests.factories import make_task, make_tasks
from tests.leasing.support import expire
from tests.processes import wait_for
from tests.tasks.support import Handlers, attempt, attempts, row_of
from tests.tasks.workers import PATIENCE, ended, patient, states, watching_once, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


class Sleeper:
    """A coroutine that sleeps until it is cancelled, or the test opens it."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.cancelled: list[int] = []
        self.threads: set[str] = set()
        self.open = False
        #: The use that it makes of the cancellation.
        self.then: BaseException | None = None

    async def __call__(self, ctx: Any, **data: Any) -> str:
        self.began.append(ctx.task.pk)
        self.threads.add(threading.current_thread().name)
        try:
            while not self.open:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError as error:
            self.cancelled.append(ctx.task.pk)
            if self.then is None:
                raise
            if isinstance(self.then, StopAsyncIteration):
                return "all the same"
            raise self.then from error
        return "slept"


@pytest.fixture
def sleeper(handlers: Handlers) -> Sleeper:
    sleeper = Sleeper()

    async def sleep(ctx: Any, **data: Any) -> str:
        return await sleeper(ctx, **data)

    handlers["jobs.sleep"] = sleep
    return sleeper


def test_many_coroutines_run_at_a_time_on_one_thread_beside_those_that_threads_run(
    sleeper: Sleeper,
) -> None:
    make_tasks(20, name="jobs.sleep", data={})
    plain = make_task(name="jobs.echo", data={}, priority=-1)

    with working(threads=1, coroutines=15) as worker:
        wait_for(lambda: len(sleeper.began) == 15)
        wait_for(lambda: row_of(plain)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: len(worker.attempts) == 15)
        sleeper.open = True
        wait_for(lambda: states() == ["succeeded"] * 21)

    assert sleeper.threads == {"event-loop"}
    assert Task.objects.filter(task_output="slept").count() == 20


@pytest.mark.parametrize("error", [ValueError("no luck"), SystemExit(3), asyncio.CancelledError()])
def test_whatever_a_coroutine_raises_fails_its_attempt_and_not_the_loop(
    handlers: Handlers, error: BaseException
) -> None:
    async def fail(ctx: Any, **data: Any) -> None:
        raise error

    async def well(ctx: Any, **data: Any) -> str:
        return "well"

    handlers["jobs.fail"], handlers["jobs.well"] = fail, well
    task = make_task(name="jobs.fail", data={}, max_attempts=1)

    with working():
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)
        after = make_task(name="jobs.well", data={})
        wait_for(lambda: row_of(after)["task_output"] == "well")

    assert row_of(task)["last_error"].startswith(type(error).__name__)
    assert "in fail" in attempt(task).traceback


@pytest.mark.parametrize("error", [SystemExit(3), None], ids=["raises", "returns"])
@pytest.mark.parametrize("from_outside", [True, False])
def test_a_cancellation_that_comes_too_late_for_the_handler_reaches_nothing_else(
    handlers: Handlers, error: BaseException | None, from_outside: bool
) -> None:
    """The handler ends while it is pending, and leaves a report that is written after its end."""
    running: list[Attempt] = []

    async def late(ctx: Any, **data: Any) -> str:
        await ctx.aprogress(1, 9)
        await ctx.aprogress(2, 9)
        if from_outside:
            running.extend(worker.attempts)
            running[0].end_work()
        else:
            own = asyncio.current_task()
            assert own is not None
            own.cancel()
        if error is not None:
            raise error
        return "done"

    handlers["jobs.late"] = late
    task = make_task(name="jobs.late", data={}, max_attempts=1)

    with working() as worker:
        wait_for(lambda: row_of(task)["status"] in TaskStatus.ended())

    row = row_of(task)
    assert row["progress"] == {"done": 2, "total": 9}
    assert row["task_output"] == (None if error else "done")
    assert row["last_error"].startswith("SystemExit" if error else "")


def test_a_coroutines_connection_is_its_own_and_ends_with_it(handlers: Handlers) -> None:
    names: list[str] = []

    @sync_to_async
    def begin() -> None:
        names.append(threading.current_thread().name)
        transaction.atomic().__enter__()
        Task.objects.update(priority=7)

    async def forgetful(ctx: Any, **data: Any) -> str:
        assert await Task.objects.acount() == 1
        await begin()
        return "a lie"

    handlers["jobs.forgetful"] = forgetful
    task = make_task(name="jobs.forgetful", data={}, max_attempts=1)

    with working():
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)

    assert row_of(task)["last_error"].startswith("RuntimeError: The handler left a transaction")
    assert row_of(task)["priority"] == 0
    wait_for(lambda: names[0] not in {thread.name for thread in threading.enumerate()})


@pytest.fixture
def renewed_often(settings: Settings) -> None:
    """Renew often, so that news of the database arrives soon and nothing is lost while the machine
    is loaded."""
    settings.LEASING = {"RENEW_EVERY": 0.3}


@pytest.mark.usefixtures("renewed_often")
def test_a_lost_task_ends_its_coroutine(sleeper: Sleeper) -> None:
    task = make_task(name="jobs.sleep", data={})
    with working():
        wait_for(lambda: sleeper.began == [task.pk])
        expire(task)
        Task.objects.recover()
        wait_for(lambda: sleeper.cancelled == [task.pk])
        sleeper.open = True
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)

    assert attempts(task) == [(1, "lost")]


def test_coroutines_that_still_run_at_the_deadline_are_cancelled_and_given_back(
    sleeper: Sleeper,
) -> None:
    tasks = make_tasks(2, name="jobs.sleep", data={}, max_attempts=1)
    with working(stop_timeout=0.1) as worker:
        wait_for(lambda: len(sleeper.began) == 2)
        worker.stop()
        wait_for(ended(worker))

    assert sorted(sleeper.cancelled) == [task.pk for task in tasks]
    assert [row_of(task)["attempts"] for task in tasks] == [0, 0]
    assert [attempts(task) for task in tasks] == [[(1, "returned")]] * 2


def test_a_coroutine_is_cancelled_when_its_timeout_is_over(sleeper: Sleeper) -> None:
    task = make_task(name="jobs.sleep", data={}, max_attempts=1)
    Task.objects.update(timeout=timedelta(seconds=0.1))

    with watching_once(lambda: sleeper.began), working():
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)

    assert sleeper.cancelled == [task.pk]
    assert row_of(task)["last_error"] == (
        "TimeoutError: The attempt ran longer than its timeout of 0.1 s."
    )


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize(
    ("then", "status"),
    [
        (None, "cancelled"),
        (TaskCancelled("enough"), "cancelled"),
        (ValueError("broke while cleaning up"), "cancelled"),
        (StopAsyncIteration(), "succeeded"),
    ],
    ids=["lets it pass", "says so", "fails meanwhile", "completes all the same"],
)
def test_a_coroutine_whose_task_is_cancelled_is_cancelled_at_its_await(
    sleeper: Sleeper, then: BaseException | None, status: str
) -> None:
    sleeper.then = then
    task = make_task(name="jobs.sleep", data={})
    with working():
        wait_for(lambda: sleeper.began == [task.pk])
        assert Task.objects.filter(pk=task.pk).cancel(by="ann", reason="wrong month") == 1
        wait_for(lambda: row_of(task)["status"] == status)

    assert sleeper.cancelled == [task.pk]
    assert row_of(task)["cancel_requested_by"] == "ann"


def test_a_blocked_loop_gets_no_more_to_do(handlers: Handlers, sleeper: Sleeper) -> None:
    began, release = threading.Event(), threading.Event()

    async def block(ctx: Any, **data: Any) -> None:
        began.set()
        release.wait(PATIENCE)

    def run_plain() -> None:
        for _ in range(2):
            plain = make_task(name="jobs.echo", data={})
            wait_for(lambda pk=plain: row_of(pk)["status"] == TaskStatus.SUCCEEDED)  # type: ignore[misc]

    handlers["jobs.block"] = block
    blocking = make_task(name="jobs.block", data={})
    with working(timing=patient(blocked_after=0.05)) as worker:
        assert began.wait(PATIENCE)
        assert row_of(blocking)["status"] == TaskStatus.RUNNING
        wait_for(lambda: worker.executors[Kind.COROUTINE].free == 0)
        run_plain()  # the look before it began perhaps while the loop was not known to be blocked
        waiting = make_task(name="jobs.sleep", data={})
        run_plain()
        assert row_of(waiting)["status"] == TaskStatus.READY
        release.set()
        sleeper.open = True
        wait_for(lambda: states() == ["succeeded"] * 6)
