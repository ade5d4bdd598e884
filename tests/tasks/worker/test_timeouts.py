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
from tasks.execution.attempt import Attempt
from tasks.models import Task, TaskStatus, Worker
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Kind
from tasks.worker.timeouts import Timekeeper
from tests.factories import claimed, make_task
from tests.leasing.support import FakeClock
from tests.processes import wait_for
from tests.tasks.support import Handlers, around, attempts, refusals, row_of
from tests.tasks.workers import PATIENCE, patient, states, working

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
    with working(threads=1, timing=patient(seen_every=0.02)) as worker:
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)
        after = make_task(name="jobs.echo", data={})
        (attempt,) = worker.attempts
        assert attempt.is_over
        wait_for(lambda: Worker.objects.get().blocked == {"thread": 1})
        assert worker.executors[Kind.THREAD].room == 0
        assert row_of(after)["status"] == TaskStatus.READY
        opened.set()
        wait_for(lambda: row_of(after)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: refusals(task) == ["complete"])
        wait_for(lambda: Worker.objects.get().blocked == {})

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
        wait_for(lambda: not worker.attempts)

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
    del handlers["jobs.echo"]
    registry.handler("jobs.echo", timeout=timedelta(seconds=7))(lambda ctx, **data: None)
    task = make_task(name="jobs.echo")
    Task.objects.update(timeout=own and timedelta(seconds=own))

    attempt = Attempt(ClaimedTask.of(claimed(task, "ann")), threading.Event())
    assert attempt.deadline is None
    attempt.start_timeout()

    assert attempt.deadline == holder_clock() + expected


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_an_attempt_that_nobody_can_watch_fails_and_its_place_is_free_again(
    kind: str, handlers: Handlers
) -> None:
    async def well(ctx: Any, **data: Any) -> None: ...

    def refuse(watch: object, attempt: Attempt) -> None:
        raise RuntimeError("can't start new thread")

    handlers["jobs.well"] = well if kind == "coroutine" else lambda ctx, **data: None
    task = timed("jobs.well", 60, max_attempts=1)
    after = make_task(name="jobs.well", data={}, priority=-1)

    with around("watch", refuse, of=Timekeeper), working(threads=1, coroutines=1):
        wait_for(lambda: row_of(after)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)

    assert row_of(task)["last_error"] == "RuntimeError: can't start new thread"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_timeouts_are_watched_again_where_nobody_looks_after_their_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a process of a Celery worker's pool."""
    over: list[Any] = []
    timekeeper = Timekeeper(over.append)
    attempts: list[Any] = [
        SimpleNamespace(deadline=deadline, has_ended=False) for deadline in (0.0, 1.0)
    ]
    with monkeypatch.context() as patched:
        patched.setattr(timekeeper, "due", lambda: sys.exit())
        timekeeper.watch(attempts[0])
        wait_for(lambda: not timekeeper._thread.is_alive())

    timekeeper.watch(attempts[1])

    wait_for(lambda: over == attempts)
    timekeeper.close()
