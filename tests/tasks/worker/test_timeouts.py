"""Attempts that run too long are failed in time, whatever their handlers do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import registry
from tasks.execution.attempt import Execution
from tasks.execution.cancellation import Interruption
from tasks.models import Task, TaskStatus
from tasks.runtime.latch import Latch
from tasks.worker.timeouts import Timekeeper
from tests.factories import claimed, make_task
from tests.leasing.support import FakeClock
from tests.processes import wait_for
from tests.tasks.support import Handlers, attempts, refusals, row_of
from tests.tasks.workers import PATIENCE, states, working

pytestmark = pytest.mark.usefixtures("quick")


def timed(name: str, seconds: float, **options: Any) -> Task:
    task = make_task(name=name, data={}, **options)
    Task.objects.filter(pk=task.pk).update(timeout=timedelta(seconds=seconds))
    return task


@pytest.mark.django_db(transaction=True)
def test_a_thread_that_cannot_be_ended_fails_in_time_and_keeps_its_place(
    handlers: Handlers,
) -> None:
    opened = threading.Event()

    def deaf(ctx: Any, **data: Any) -> str:
        opened.wait(PATIENCE)
        return "late"

    handlers["jobs.deaf"] = deaf
    task = timed("jobs.deaf", 0.1, max_attempts=1)
    with working(threads=1) as worker:
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)
        after = make_task(name="jobs.echo", data={})
        (execution,) = worker.executions
        assert execution.is_over
        assert worker.executors.blocked == {"thread": 1}
        assert worker._claim() is False
        assert row_of(after)["status"] == TaskStatus.READY
        opened.set()
        wait_for(lambda: row_of(after)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: refusals(task) == ["complete"])
        assert worker.executors.blocked == {}

    row = row_of(task)
    assert row["task_output"] is None
    assert row["last_error"] == "TimeoutError: The attempt ran longer than its timeout of 0.1 s."
    assert attempts(task) == [(1, "failed")]


def by_ensure(ctx: Any) -> None:
    while True:
        ctx.ensure()


def by_waiting(ctx: Any) -> None:
    while True:
        ctx.wait(PATIENCE)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("look", [by_ensure, by_waiting])
def test_a_handler_that_looks_stops_when_its_time_is_over(
    handlers: Handlers, look: Callable[[Any], None]
) -> None:
    raised: list[BaseException] = []

    def polite(ctx: Any, **data: Any) -> None:
        try:
            look(ctx)
        except BaseException as error:
            raised.append(error)
            raise

    handlers["jobs.polite"] = polite
    task = timed("jobs.polite", 0.1, max_attempts=1)
    with working() as worker:
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)
        wait_for(lambda: not worker.executions)

    assert [type(error) for error in raised] == [TimeoutError]
    assert row_of(task)["last_error"].startswith("TimeoutError: The attempt ran longer")
    assert (attempts(task), refusals(task)) == ([(1, "failed")], [""])


@pytest.mark.django_db(transaction=True)
def test_a_timeout_is_a_failure_that_is_tried_again(handlers: Handlers) -> None:
    def once(ctx: Any, **data: Any) -> str:
        if ctx.attempt == 1:
            # On whatever machine the next attempt has the time that it needs.
            Task.objects.update(timeout=timedelta(seconds=60))
            by_waiting(ctx)
        return "well"

    handlers["jobs.once"] = once
    task = timed("jobs.once", 0.1)

    with working():
        wait_for(lambda: states() == ["succeeded"])

    assert attempts(task) == [(1, "failed")]


@pytest.mark.django_db
@pytest.mark.parametrize(("own", "expected"), [(None, 7.0), (3.0, 3.0)])
def test_the_handlers_timeout_counts_where_the_task_has_none(
    handlers: Handlers,
    own: float | None,
    expected: float,
    holder_clock: FakeClock,
) -> None:
    function = registry.find("jobs.echo").function
    registry._handlers["jobs.echo"] = registry.Handler(
        "jobs.echo", function, timeout=timedelta(seconds=7)
    )
    task = make_task(name="jobs.echo")
    Task.objects.update(timeout=own and timedelta(seconds=own))

    execution = Execution(claimed(task, "ann"), threading.Event())
    execution.hold.abandon()
    assert execution.interruption.deadline is None
    execution.start_timeout()

    assert execution.interruption.deadline == holder_clock() + expected


@pytest.mark.django_db
def test_a_timeout_is_over_at_its_moment_and_not_before(
    handlers: Handlers,
    holder_clock: FakeClock,
) -> None:
    timekeeper = Timekeeper(lambda execution: None)
    timekeeper._thread = threading.current_thread()  # the test looks by itself

    def watched(seconds: float) -> Execution:
        task = timed("jobs.echo", seconds)
        mine = claimed(task, "ann")
        execution = Execution(mine, threading.Event(), watch=timekeeper.watch)
        execution.hold.abandon()
        execution.start_timeout()
        return execution

    late, early, done = watched(20), watched(10), watched(10)
    done.ended.set()
    holder_clock.advance(9.9)
    assert timekeeper.due() == []
    assert not early.interruption.timed_out
    holder_clock.advance(0.1)
    assert timekeeper.due() == [early]
    assert early.interruption.timed_out
    assert timekeeper.due() == []
    holder_clock.advance(10)
    assert timekeeper.due() == [late]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_an_attempt_that_nobody_can_watch_fails_and_its_place_is_free_again(
    kind: str, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def well(ctx: Any, **data: Any) -> None: ...

    def refuse(timekeeper: Timekeeper, execution: Execution) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Timekeeper, "watch", refuse)
    handlers["jobs.well"] = well if kind == "coroutine" else lambda ctx, **data: None
    task = timed("jobs.well", 60, max_attempts=1)
    after = make_task(name="jobs.well", data={}, priority=-1)

    with working(threads=1, coroutines=1):
        wait_for(lambda: row_of(after)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)

    assert row_of(task)["last_error"] == "RuntimeError: can't start new thread"


class Timed:
    """The part of an execution that is watched."""

    def __init__(self) -> None:
        self.ended = Latch()
        self.interruption = Interruption(timeout=timedelta(0))
        self.interruption.start_timeout()


def test_timeouts_are_told_also_where_there_can_be_no_thread_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Any] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    timekeeper = Timekeeper(reported.append)
    first, second = Timed(), Timed()
    refused = "timeouts"
    with pytest.raises(RuntimeError):
        timekeeper.watch(first)  # type: ignore[arg-type]

    refused = "timeout"
    timekeeper.watch(second)  # type: ignore[arg-type]

    wait_for(lambda: reported == [first, second])
    timekeeper.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_timeouts_are_watched_again_where_nobody_looks_after_their_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a process of a Celery worker's pool."""
    over: list[Any] = []
    timekeeper = Timekeeper(over.append)
    executions: list[Any] = [
        SimpleNamespace(interruption=SimpleNamespace(deadline=deadline), ended=Latch())
        for deadline in (0.0, 1.0)
    ]
    with monkeypatch.context() as patched:
        patched.setattr(timekeeper, "due", lambda: sys.exit())
        timekeeper.watch(executions[0])
        wait_for(lambda: not timekeeper._thread.is_alive())  # type: ignore[union-attr]

    timekeeper.watch(executions[1])

    wait_for(lambda: over == executions)
    timekeeper.close()
