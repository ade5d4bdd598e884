"""A worker without the database: every task runs once, whatever the network does."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from pytest_django import Settings

from leasing.client import AccessDenied
from leasing.client.messages import Request
from leasing.runtime.clock import clock
from tasks.api.waiting import claimers
from tasks.client import Context, Handlers, TaskClient, Worker
from tasks.client import worker as client_worker
from tasks.client.calls import claiming
from tasks.exceptions import GiveUp, Snooze
from tasks.models import Task, TaskAttempt
from tests.limits import Limits
from tests.processes import wait_for
from tests.remote import Fault, Service, answered, refused, swallowed
from tests.tasks.support import around

Function = Callable[..., Any]


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def worker(remote: TaskClient, handlers: Handlers) -> Worker:
    return Worker(remote, handlers, name="remote-1", ttl=10, stop_timeout=6, wait=1)


@contextmanager
def at_work(worker: Worker) -> Iterator[Worker]:
    """The worker, on a thread, until the end of the block."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def running(worker: Worker) -> Iterator[Worker]:
    """The worker, at work until the end of the test."""
    with at_work(worker):
        yield worker


@pytest.fixture
def strikes_soon(limits: Limits) -> None:
    """What the service fails to store is soon tried again."""
    limits(strike_every=0.05)


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


class Silent(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("it was parsed lazily")


def raising(error: BaseException) -> Function:
    def fail(ctx: Context, word: str) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "attempts", "text"),
    [
        (ValueError("no paper\x00\udc80"), "ready", 1, "ValueError: no paper?"),
        (SystemExit(3), "ready", 1, "SystemExit: 3"),
        (GiveUp("no such printer"), "failed", 1, "GiveUp: no such printer"),
        (Snooze(60, "not now"), "ready", 0, ""),
        (Snooze(60, "no file \x00\udc80"), "ready", 0, ""),
        (Silent(), "ready", 1, "Silent: (an error without a text)"),
    ],
    ids=["error", "exit", "give up", "snooze", "snooze with bytes", "without a text"],
)
def test_an_error_fails_the_attempt(
    worker: Worker,
    handlers: Handlers,
    error: BaseException,
    status: str,
    attempts: int,
    text: str,
    settings: Settings,
) -> None:
    handlers.handler("jobs.echo")(raising(error))
    enqueued()
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "BACKOFF": {"base": 3600, "cap": 3600}}

    worker.drain()

    assert (row().status, row().attempts) == (status, attempts)
    assert row().last_error == text


def test_what_cannot_be_stored_fails_for_good(worker: Worker, handlers: Handlers) -> None:
    @handlers.handler("jobs.echo")
    def big(ctx: Context, word: str) -> Any:
        return object() if word == "0" else "x" * 70_000

    enqueued(2)

    worker.drain()

    errors = {task.last_error for task in Task.objects.filter(status="failed")}
    assert {error.split(":")[0] for error in errors} == {
        "InvalidOutput",
        "The service refused the output",
    }
    assert any("must not exceed 65536 bytes" in error for error in errors)


@pytest.mark.parametrize("is_async", [False, True], ids=["a thread", "a coroutine"])
def test_an_attempt_that_the_worker_cannot_begin_is_failed(
    worker: Worker, handlers: Handlers, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    def exhausted(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    async def wait(ctx: Context, word: str) -> None:
        pass

    monkeypatch.setattr(threading.Timer, "start", exhausted)
    handlers.handler("jobs.echo", timeout=60)(wait if is_async else echo)
    enqueued(max_attempts=1)

    worker.drain()

    assert (row().status, row().attempts) == ("failed", 1)
    assert "can't start new thread" in row().last_error


class Changing(dict[str, Any]):
    """An output that can be stored until the thread that sends it looks."""

    def items(self) -> Any:
        if threading.current_thread().name == "task-results":
            self["later"] = object()
        return super().items()


def test_an_output_that_is_changed_after_its_return_holds_up_no_other(
    worker: Worker, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(lambda ctx, word: Changing(n=1) if word == "1" else {})
    enqueued(3)

    worker.drain()

    assert ended("succeeded", 2)()
    assert Task.objects.get(status="failed").task_data == {"word": "1"}


def test_only_what_may_run_again_is_claimed_ahead_of_free_slots(
    running: Worker, handlers: Handlers
) -> None:
    released = threading.Event()

    @handlers.handler("jobs.echo")
    def hold(ctx: Context, word: str) -> None:
        if int(word) >= 20:
            released.wait(60)

    running._ahead = lambda: 20  # type: ignore[method-assign]
    enqueued(40, max_attempts=1)
    try:
        wait_for(ended("succeeded", 20))
        wait_for(lambda: Task.objects.running().count() >= 8)
        enqueued(5, max_attempts=2, priority=1)
        wait_for(lambda: Task.objects.running().filter(max_attempts=2).count() == 5)

        assert Task.objects.running().filter(max_attempts=1).count() == 8
    finally:
        released.set()


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


def test_a_cancellation_reaches_the_handler(remote: TaskClient, handlers: Handlers) -> None:
    begun = threading.Event()

    @handlers.handler("jobs.echo")
    async def wait(ctx: Context, word: str) -> None:
        begun.set()
        await asyncio.sleep(60)

    enqueued()
    with at_work(Worker(remote, handlers, ttl=3, stop_timeout=6, wait=1)):
        assert begun.wait(20)

        Task.objects.all().cancel(by="olga")

        wait_for(ended("cancelled"))


def test_a_coroutine_that_is_stopped_may_clean_up(remote: TaskClient, handlers: Handlers) -> None:
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
    # What is left of the time is for results: it is cancelled at once.
    with at_work(Worker(remote, handlers, ttl=10, stop_timeout=5, wait=1)) as worker:
        assert begun.wait(20)

        worker.stop()

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


def failing_for(text: bytes, service: Service) -> Fault:
    """Return a fault: the service fails to complete what contains ``text``, and serves the rest."""

    def fail(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        service.network.faults.append(fail)
        if request.url.path.endswith("/complete") and text in request.content:
            return httpx.Response(500, content=b"<html>", request=request)
        return send()

    return fail


@pytest.mark.usefixtures("strikes_soon")
def test_a_result_that_the_service_fails_to_store_holds_up_no_other(
    service: Service,
    worker: Worker,
    handlers: Handlers,
    caplog: pytest.LogCaptureFixture,
) -> None:

    @handlers.handler("jobs.echo")
    def poison(ctx: Context, word: str) -> str:
        return "poison" if word in "357" else word

    service.network.faults = [failing_for(b'"poison"', service)]
    enqueued(20, max_attempts=1)

    worker.drain()

    assert (ended("succeeded", 17)(), ended("failed", 3)()) == (True, True)
    failed = Task.objects.filter(status="failed")
    assert {task.task_data["word"] for task in failed} == {"3", "5", "7"}
    assert all("failed to store the output" in task.last_error for task in failed)
    assert caplog.text.count("gave up: the service fails to complete it") == 3


@pytest.mark.usefixtures("strikes_soon")
def test_results_wait_for_a_service_that_fails_whatever_it_is_sent(
    service: Service, worker: Worker, handlers: Handlers
) -> None:
    faults = [answered(500)] * 25

    @handlers.handler("jobs.echo")
    def late(ctx: Context, word: str) -> str:
        service.network.faults = faults
        return word

    enqueued(8, max_attempts=1)

    worker.drain()

    assert ended("succeeded", 8)()
    assert not faults


def stops_while_it_waits(service: Service, worker: Worker) -> None:
    """Stop ``worker`` while its claim waits at the service, and wait for its end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: len(claimers("default")) == 1)

    worker.stop()
    thread.join(20)

    assert not thread.is_alive()


def test_a_worker_that_stops_has_its_claim_answered_at_once(
    service: Service, remote: TaskClient, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(echo)

    stops_while_it_waits(service, Worker(remote, handlers, wait=30))

    # Again after some milliseconds, if a busy machine has not answered the claim by then.
    assert "DELETE" in [each.method for each in service.network.requests]


def test_a_claim_that_had_not_arrived_when_its_worker_was_stopped_is_ended_too(
    service: Service, remote: TaskClient, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(echo)
    worker = Worker(remote, handlers, wait=30)
    asked = threading.Event()

    def slow(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        worker.stop()
        assert asked.wait(20)
        return send()

    def note(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        response = send()
        response.read()
        asked.set()
        return response

    service.network.faults = [slow, note]
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(20)

    assert not thread.is_alive()


def test_a_worker_that_is_stopped_just_before_it_claims_claims_nothing(
    service: Service, remote: TaskClient, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers.handler("jobs.echo")(echo)
    enqueued()
    worker = Worker(remote, handlers, wait=30)

    def stopped(*args: Any, **options: Any) -> Request:
        worker.stop()
        return claiming(*args, **options)

    monkeypatch.setattr(client_worker, "claiming", stopped)
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(20)

    assert not thread.is_alive()
    assert row().grants == 0


def test_a_task_that_is_handed_out_to_a_worker_that_stops_is_given_back(
    service: Service, remote: TaskClient, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(echo)
    worker = Worker(remote, handlers, wait=5)

    def late(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        enqueued()
        response = send()
        response.read()
        worker.stop()
        return response

    service.network.faults = [late]
    worker.run()

    assert (row().status, row().attempts, row().grants) == ("ready", 0, 1)


def test_a_task_that_is_granted_while_the_wait_for_it_is_ended_is_given_back(
    service: Service, remote: TaskClient, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(echo)
    worker = Worker(remote, handlers, wait=30)
    granted, is_ended = threading.Event(), threading.Event()

    def slow(claim: Callable[..., list[Task]], *args: Any, **options: Any) -> list[Task]:
        if claimed := claim(*args, **options):
            granted.set()
            assert is_ended.wait(20)
        return claimed

    thread = threading.Thread(target=worker.run)
    with around("claim", slow):
        thread.start()
        wait_for(lambda: len(claimers("default")) == 1)
        enqueued()
        assert granted.wait(20)

        worker.stop()
        # The first has been answered once the second is sent.
        wait_for(lambda: [each.method for each in service.network.requests].count("DELETE") >= 2)
        is_ended.set()
        thread.join(20)

    assert not thread.is_alive()
    assert (row().status, row().attempts, row().grants) == ("ready", 0, 1)


def test_a_task_is_given_back_if_the_answer_of_an_ended_claim_is_lost(
    service: Service, remote: TaskClient, handlers: Handlers
) -> None:
    handlers.handler("jobs.echo")(echo)
    worker = Worker(remote, handlers, wait=5)

    def lost(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        enqueued()
        worker.stop()
        return swallowed(send, request)

    service.network.at, service.network.faults = "/tasks/next", [lost]
    worker.run()

    assert (row().status, row().attempts, row().grants) == ("ready", 0, 1)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["at work", "stopped"])
def test_a_claim_whose_tasks_were_lost_before_its_answer_arrived_is_no_error(
    service: Service,
    remote: TaskClient,
    handlers: Handlers,
    caplog: pytest.LogCaptureFixture,
    is_stopped: bool,
) -> None:
    worker = Worker(remote, handlers, concurrency=1, ttl=10, stop_timeout=6, wait=1)
    handlers.handler("jobs.echo")(echo)
    enqueued(2)

    def lost(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
        send().read()
        Task.objects.running().revoke(reason="its host is gone")
        if is_stopped:
            worker.stop()
        raise httpx.ReadTimeout("timed out", request=request)

    service.network.at, service.network.faults = "/tasks/next", [lost]

    worker.drain()

    assert Task.objects.succeeded().count() == (0 if is_stopped else 2)
    assert "was answered before" not in caplog.text


WRONG: dict[str, Fault] = {
    "HTML": answered(200, b"<!doctype html><title>Welcome to nginx!</title>"),
    "a redirect": answered(302, b"", Location="https://sso.example.com/"),
    "another address": answered(404, b"<html>"),
    "no way at a gateway": answered(404, b'{"message": "Not Found"}'),
    "another method": answered(405, b'{"message": "Not allowed"}'),
    "too late for a gateway": answered(408, b'{"message": "Request timed out"}'),
    "another version": answered(202, b'{"tasks": [{"id": 1}]}'),
    "a failure": answered(500, b"<html>"),
    "an expired token": answered(401, b'{"error": "This token is not valid."}'),
    "a swallowed answer": swallowed,
}


@pytest.mark.usefixtures("strikes_soon")
@pytest.mark.parametrize("at", ["/tasks/next", "/tasks/complete"])
def test_a_running_worker_outlives_whatever_is_answered(
    service: Service,
    running: Worker,
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.05)
    runs: Counter[str] = Counter()

    @handlers.handler("jobs.echo")
    def count(ctx: Context, word: str) -> None:
        runs[word] += 1

    enqueued(3)
    wait_for(ended("succeeded", 3))
    service.network.at, service.network.faults = at, list(WRONG.values())
    enqueued(60)

    wait_for(lambda: not service.network.faults)
    wait_for(ended("succeeded", 63))
    assert sum(runs.values()) == 63


@pytest.mark.parametrize("longest", [0, 0.2])
def test_a_worker_waits_as_long_as_the_service_allows(
    service: Service, worker: Worker, handlers: Handlers, settings: Settings, longest: float
) -> None:
    settings.LEASING = {**settings.LEASING, "API_MAX_WAIT": longest}

    @handlers.handler("jobs.echo")
    def last(ctx: Context, word: str) -> None:
        worker.stop()

    enqueued()

    worker.run()

    assert row().status == "succeeded"
    claims = [json.loads(each.content) for each in service.network.requests if each.content]
    assert [each.get("wait", 0) for each in claims if "wait" in each or longest == 0][-1] == longest


@pytest.mark.slow
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
