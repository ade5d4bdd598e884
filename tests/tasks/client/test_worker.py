"""A worker without the database: every task runs once, whatever the network does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from leasing.client import AccessDenied
from leasing.runtime.clock import clock
from tasks.client import Context, Handlers, TaskClient, Worker
from tasks.exceptions import GiveUp, Snooze
from tasks.models import Task, TaskAttempt
from tests.processes import wait_for
from tests.remote import Service, answered, refused, swallowed

pytestmark = pytest.mark.once

Function = Callable[..., Any]


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def worker(remote: TaskClient, handlers: Handlers) -> Worker:
    return Worker(remote, handlers, name="remote-1", ttl=10, stop_timeout=6, wait=1)


@pytest.fixture
def running(worker: Worker) -> Iterator[Worker]:
    """The worker, on a thread, until the end of the test."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield worker
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()


def echo(ctx: Context, word: str) -> dict[str, Any]:
    ctx.ensure()
    return {"word": word, "attempt": ctx.attempt}


def enqueued(count: int = 1, **options: Any) -> Sequence[Task]:
    data = [{"word": str(number)} for number in range(count)]
    return Task.objects.enqueue_many("jobs.echo", data, **options)


def row() -> Task:
    return Task.objects.get()


def ended(status: str, count: int = 1) -> Callable[[], bool]:
    return lambda: Task.objects.filter(status=status).count() == count


def test_tasks_are_run_and_completed_together(
    service: Service, worker: Worker, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(echo)
    enqueued(300)

    worker.drain()

    assert ended("succeeded", 300)()
    outputs: Any = Task.objects.values_list("task_output", flat=True)
    assert {output["attempt"] for output in outputs} == {1}
    assert Task.objects.first().holder == "remote-1"  # type: ignore[union-attr]
    assert len(service.network.requests) < 150


def test_every_answer_may_be_lost_once(
    service: Service, worker: Worker, handlers: Handlers
) -> None:
    runs: Counter[str] = Counter()

    @handlers.handler("jobs.echo")
    def count(ctx: Context, word: str) -> None:
        if not runs:
            service.network.at = "/tasks/complete"
            service.network.faults = [swallowed, answered(502), swallowed]
        runs[word] += 1

    enqueued(40)
    service.network.at, service.network.faults = "/tasks/next", [swallowed, refused, swallowed]

    worker.drain()

    assert ended("succeeded", 40)()
    assert set(runs.values()) == {1}
    assert not service.network.faults


def test_coroutines_run_in_one_loop(worker: Worker, handlers: Handlers) -> None:
    meeting = 0

    @handlers.handler("jobs.echo")
    async def meet(ctx: Context, word: str) -> int:
        nonlocal meeting
        meeting += 1
        while meeting < 3:
            await asyncio.sleep(0.01)
        await ctx.aprogress(1, 1)
        await ctx.acheckpoint({"word": word})
        return meeting

    enqueued(3)

    worker.drain()

    assert ended("succeeded", 3)()
    states: Any = Task.objects.values_list("checkpoint", flat=True)
    assert {state["word"] for state in states} == {"0", "1", "2"}


def raising(error: BaseException) -> Function:
    def fail(ctx: Context, word: str) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "attempts", "text"),
    [
        (ValueError("no paper\x00\udc80"), "ready", 1, "ValueError: no paper?"),
        (SystemExit(3), "ready", 1, "SystemExit: 3"),
        (GiveUp("no such printer"), "failed", 1, "no such printer"),
        (Snooze(60, "not now"), "ready", 0, ""),
    ],
    ids=["error", "exit", "give up", "snooze"],
)
def test_an_error_fails_the_attempt(
    worker: Worker,
    handlers: Handlers,
    error: BaseException,
    status: str,
    attempts: int,
    text: str,
) -> None:
    handlers.handler("jobs.echo")(raising(error))
    enqueued()
    # Its retry would be due at once.
    Task.objects.update(max_attempts=10)

    worker._completer.put = _stopping_after(worker, worker._completer.put)  # type: ignore[method-assign]
    worker.drain()

    assert (row().status, row().attempts) == (status, attempts)
    assert text in row().last_error


def _stopping_after(worker: Worker, put: Function) -> Function:
    def stop(outcome: Any) -> None:
        put(outcome)
        worker.stopping.set()

    return stop


def test_what_cannot_be_stored_fails_for_good(worker: Worker, handlers: Handlers) -> None:
    @handlers.handler("jobs.echo")
    def big(ctx: Context, word: str) -> Any:
        return object() if word == "0" else "x" * 70_000

    enqueued(2)

    worker.drain()

    errors = {task.last_error for task in Task.objects.filter(status="failed")}
    assert {error.split(":")[1].strip().split(" ")[0] for error in errors} >= {
        "InvalidOutput",
        "The",
    }
    assert any("must not exceed 65536 bytes" in error for error in errors)


def test_a_task_without_a_handler_is_given_back(worker: Worker) -> None:
    enqueued()

    worker.drain()

    assert (row().status, row().attempts) == ("ready", 0)
    assert "No handler is registered for 'jobs.echo'" in TaskAttempt.objects.get().error
    assert (row().scheduled_at - row().created_at).total_seconds() > 50


def test_a_stopped_worker_gives_back_what_it_has(running: Worker, handlers: Handlers) -> None:
    begun = threading.Event()

    @handlers.handler("jobs.echo")
    def wait(ctx: Context, word: str) -> None:
        begun.set()
        ctx.checkpoint({"word": word})
        while not ctx.wait(60):
            pass
        ctx.give_back("stopping")

    enqueued(12)
    assert begun.wait(20)
    wait_for(lambda: Task.objects.filter(checkpoint__isnull=False).count() == 8)

    running.stop()

    wait_for(ended("ready", 12))
    assert set(Task.objects.values_list("attempts", flat=True)) == {0}
    assert Task.objects.filter(checkpoint__isnull=False).count() == 8


def test_a_handler_that_does_not_stop_is_left_behind(
    remote: TaskClient, handlers: Handlers
) -> None:
    released, begun = threading.Event(), threading.Event()

    @handlers.handler("jobs.echo")
    def stubborn(ctx: Context, word: str) -> None:
        begun.set()
        released.wait(60)

    enqueued()
    worker = Worker(remote, handlers, ttl=10, stop_timeout=60, wait=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(20)
    worker._stopped_at = clock() - 54.8  # a claim has waited since then
    worker.stop()
    thread.join(20)

    assert not thread.is_alive()
    assert (row().status, row().attempts) == ("ready", 0)
    released.set()


def test_a_long_task_is_renewed_and_hears_of_its_loss(
    remote: TaskClient, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    @handlers.handler("jobs.echo")
    def long(ctx: Context, word: str) -> None:
        try:
            wait_for(lambda: row().renewals > 1)
            Task.objects.all().revoke(reason="its host is gone")
            while True:
                ctx.wait(30)
        finally:
            from django.db import connections

            connections.close_all()
            done.set()

    enqueued()
    worker = Worker(remote, handlers, ttl=3, stop_timeout=6, wait=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert done.wait(30)
    worker.stop()
    thread.join(30)

    assert f"task:{row().pk} was lost: " in caplog.text
    assert row().status == "ready"


def test_a_cancellation_reaches_the_handler(running: Worker, handlers: Handlers) -> None:
    begun = threading.Event()

    @handlers.handler("jobs.echo")
    async def wait(ctx: Context, word: str) -> None:
        begun.set()
        await asyncio.sleep(60)

    running._ttl = 1.0
    enqueued()
    assert begun.wait(20)

    Task.objects.all().cancel(by="olga")

    wait_for(ended("cancelled"))


def test_a_coroutine_that_is_stopped_may_clean_up(running: Worker, handlers: Handlers) -> None:
    begun, cleaned = threading.Event(), threading.Event()

    @handlers.handler("jobs.echo")
    async def wait(ctx: Context, word: str) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            cleaned.set()

    enqueued()
    assert begun.wait(20)
    running._stopped_at = clock() - 60  # so that it is cancelled at once

    running.stop()

    wait_for(ended("ready"))
    assert cleaned.wait(10)


def test_a_handler_that_blocks_the_loop_loses_its_task(
    remote: TaskClient, handlers: Handlers
) -> None:
    released, begun = threading.Event(), threading.Event()

    @handlers.handler("jobs.echo")
    async def block(ctx: Context, word: str) -> str:
        begun.set()
        released.wait(30)
        return "too late"

    enqueued()
    worker = Worker(remote, handlers, ttl=3, stop_timeout=6, wait=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert begun.wait(20)
        wait_for(ended("ready"))
    finally:
        worker.stop()
        released.set()
        thread.join(30)

    # A claim that was on its way may have brought it once more, and it was given back as well.
    assert (row().status, row().attempts) == ("ready", 0)
    assert TaskAttempt.objects.filter(error__contains="event loop").exists()


def test_a_timeout_ends_the_attempt(
    worker: Worker, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    @handlers.handler("jobs.echo", timeout=0.1)
    def slow(ctx: Context, word: str) -> None:
        ctx.wait(60)

    enqueued(max_attempts=1)

    worker.drain()

    assert row().status == "failed"
    assert "TimeoutError: The attempt ran longer than its timeout" in row().last_error
    assert (
        caplog.text.count(f"task:{row().pk} failed, attempt") == 1
    )  # not also when its handler ends


def test_a_wrong_token_ends_the_worker_at_once(service: Service, handlers: Handlers) -> None:
    with TaskClient(service.url, "leasing_wrong") as remote, pytest.raises(AccessDenied):
        Worker(remote, handlers).run()


@pytest.mark.rest
def test_a_worker_outlives_the_absence_of_the_service(
    service: Service, running: Worker, handlers: Handlers
) -> None:
    runs: Counter[str] = Counter()

    @handlers.handler("jobs.echo")
    def count(ctx: Context, word: str) -> None:
        runs[word] += 1
        time.sleep(0.05)

    enqueued(60)
    wait_for(lambda: len(runs) > 8)
    service.network.faults = [refused] * 30

    wait_for(ended("succeeded", 60))

    assert set(runs.values()) == {1}
