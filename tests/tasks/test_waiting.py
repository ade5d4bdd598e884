"""Waiting for the end of a task: what comes of it, when it is refused, and who wakes whom."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from leasing.db.dialects import CHANNEL as RELEASED
from leasing.runtime import aio
from leasing.waiting.notifier import notifier as waiters
from leasing.waiting.waiter import Waiter
from tasks import await_for, notifier, wait_for, waiting
from tasks.exceptions import TaskFailed, WaitInTransaction, WaitTimeout
from tasks.models import Task
from tasks.notifier import limiter, notify_ended, waited_for
from tasks.worker.poller import Poller
from tests.factories import claimed, make_task, make_tasks
from tests.leasing.support import FakeClock
from tests.limits import Limits
from tests.logs import logged
from tests.processes import wait_for as wait_until
from tests.tasks.support import Handlers
from tests.tasks.test_notifier import notes_of
from tests.tasks.test_notifier import other as other
from tests.tasks.workers import PATIENCE, working

pytestmark = pytest.mark.django_db(transaction=True)

#: Runs in the pauses of a wait, in this order; each is given the pause.
Meanwhile = Callable[..., None]


@pytest.fixture
def clock(holder_clock: FakeClock) -> FakeClock:
    return holder_clock


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Meanwhile:
    def happens(*steps: Callable[[], object]) -> None:
        left = list(steps)

        def wait(waiter: Waiter) -> None:
            clock.advance(waiter._next_pause())
            if left:
                left.pop(0)()

        monkeypatch.setattr(Waiter, "wait", wait)

    return happens


@pytest.fixture(autouse=True)
def _nobody_waits() -> Iterator[None]:
    waited_for.forget()
    yield
    waited_for.forget()


@pytest.fixture
def worker_hears() -> Iterator[Poller]:
    """A worker of this process hears notifications."""
    poller = Poller(["default"], threading.Event(), lambda key: None)
    with limiter.heard_by(poller.hear):
        yield poller


def complete(task: Task, output: Any = None) -> Task:
    return Task.objects.complete(claimed(Task.objects.get(pk=task.pk), "ann"), output)


# The end


def test_a_wait_ends_with_the_task_and_returns_its_result(meanwhile: Meanwhile) -> None:
    task = make_task()
    meanwhile(lambda: None, lambda: complete(task, {"sent": 7}))

    assert wait_for(task, 10) == {"sent": 7}
    assert (task.status, task.result, task.holder) == ("succeeded", {"sent": 7}, "ann")


def test_a_failed_attempt_is_not_the_end_of_a_task_that_is_retried(meanwhile: Meanwhile) -> None:
    task = make_task(max_attempts=2)

    def fail() -> None:
        Task.objects.fail(claimed(task, "ann"), "no luck")
        Task.objects.filter(pk=task.pk).update(scheduled_at=task.created_at)

    meanwhile(fail, lambda: complete(task, 1))

    assert wait_for(task, 10) == 1
    assert task.attempts == 2


@pytest.mark.parametrize("wait", [wait_for, async_to_sync(await_for)])
def test_the_end_of_what_has_failed_or_was_cancelled_is_an_error(wait: Any) -> None:
    failed, cancelled, both = make_tasks(3, name="jobs.echo", max_attempts=1)
    Task.objects.fail(claimed(failed, "ann"), ValueError("no such invoice"))
    Task.objects.filter(pk=cancelled.pk).cancel(by="olga", reason="a mistake")
    running = claimed(both, "ann")
    Task.objects.filter(pk=both.pk).cancel(by="olga")
    Task.objects.fail(running, ValueError("no such invoice"))

    texts = []
    for task in (failed, cancelled, both):
        with pytest.raises(TaskFailed) as refusal:
            wait(task, 10)
        texts.append(str(refusal.value))
        again = pickle.loads(pickle.dumps(refusal.value))
        assert (str(again), again.task.status) == (texts[-1], task.status)

    assert texts == [
        f"task:{failed.pk} jobs.echo failed: ValueError: no such invoice",
        f"task:{cancelled.pk} jobs.echo was cancelled by olga: a mistake",
        f"task:{both.pk} jobs.echo was cancelled: ValueError: no such invoice",
    ]


def test_a_wait_in_vain_says_where_the_task_is(meanwhile: Meanwhile, clock: FakeClock) -> None:
    task = make_task(name="jobs.echo")
    before = clock()
    meanwhile()

    with pytest.raises(TimeoutError) as refusal:
        wait_for(task, 3)

    assert isinstance(refusal.value, WaitTimeout)
    assert clock() - before == pytest.approx(3)
    assert str(refusal.value) == (
        f"task:{task.pk} jobs.echo has not ended after 3 s. "
        "No worker that serves the queue default was seen recently."
    )
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


def test_a_wait_of_no_time_looks_once() -> None:
    task = make_task()
    with pytest.raises(WaitTimeout):
        wait_for(task, 0)
    complete(task, 1)

    assert wait_for(task, 0) == 1


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        wait_for(make_task(), timeout)


def test_none_waits_for_as_long_as_it_takes(meanwhile: Meanwhile, clock: FakeClock) -> None:
    task = make_task()
    meanwhile(lambda: clock.advance(1e9), lambda: complete(task, 1))

    assert wait_for(task, None) == 1


def test_a_task_that_is_retried_as_its_end_is_read_goes_on(
    meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(state="failed")
    refresh, retried = Task.refresh_from_db, list[int]()

    def after_a_retry(self: Task, *args: Any, **options: Any) -> None:
        if not retried:
            retried.append(Task.objects.filter(pk=task.pk).retry())
        refresh(self, *args, **options)

    meanwhile(lambda: complete(task, 2))
    monkeypatch.setattr(Task, "refresh_from_db", after_a_retry)

    assert wait_for(task, 600) == 2
    assert retried == [1]


# Refused


def test_inside_a_transaction_only_what_has_ended_can_be_waited_for() -> None:
    done = complete(make_task(), 1)

    with transaction.atomic():
        task = make_task()
        assert wait_for(done, 10) == 1
        with pytest.raises(WaitInTransaction, match="no worker sees it before the commit") as error:
            wait_for(task, None)

    assert pickle.loads(pickle.dumps(error.value)).task == task


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("wait", [wait_for, async_to_sync(await_for)])
def test_in_the_transaction_of_a_test_it_is_refused_too(
    wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "on_callers_thread", True)

    with pytest.raises(WaitInTransaction, match=r"In a test, run the task first"):
        wait(make_task(), None)


def test_a_task_that_is_gone_is_not_waited_for(meanwhile: Meanwhile) -> None:
    task = make_task()
    meanwhile(lambda: Task.objects.filter(pk=task.pk).delete())

    with pytest.raises(Task.DoesNotExist, match=r"it was deleted, or its enqueue was rolled back"):
        wait_for(task, 10)


# Notifications


@pytest.fixture
def no_polls(limits: Limits) -> None:
    """A wait looks once, and again when it is notified."""
    limits(pause=10 * PATIENCE)


@pytest.mark.usefixtures("no_polls")
def test_the_workers_of_a_process_wake_those_who_wait_in_it(
    handlers: Handlers, begin: Callable[[Any], None]
) -> None:
    go, answers = threading.Event(), []
    handlers["jobs.echo"] = lambda ctx, **data: go.wait(PATIENCE)
    task = make_task(name="jobs.echo")

    async def wait() -> None:
        answers.append(await await_for(task, PATIENCE))

    with working():
        begin(lambda: answers.append(wait_for(Task.objects.get(pk=task.pk), PATIENCE)))
        begin(lambda: asyncio.run(wait()))
        wait_until(lambda: len(waiters("default").waiters[task.lease_resource]) == 2)
        wait_until(lambda: bool(waited_for))
        go.set()
        wait_until(lambda: answers == [True, True])


@pytest.fixture
def begin() -> Iterator[Callable[[Any], None]]:
    """Runs something on a thread of its own."""
    threads: list[threading.Thread] = []

    def begin(work: Any) -> None:
        def run() -> None:
            try:
                work()
            finally:
                connection.close()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_wait_that_is_cancelled_leaves_nobody_behind() -> None:
    task = make_task()

    async def begin_and_cancel() -> None:
        wait = asyncio.create_task(await_for(task, None))
        while task.lease_resource not in waiters("default").waiters:
            await asyncio.sleep(0.01)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(begin_and_cancel())
    assert task.lease_resource not in waiters("default").waiters


def test_who_waits_asks_the_workers_now_and_then(
    meanwhile: Meanwhile, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, heard = make_task(), list[str]()
    again = lambda: clock.advance(waiting.ASK_EVERY)  # noqa: E731
    meanwhile(lambda: None, again, lambda: None, lambda: complete(task))

    with limiter.heard_by(heard.append):
        wait_for(task, 600)

    assert heard == [f"wait {task.lease_resource}"] * 2


def test_a_worker_forgets_who_has_not_asked_for_long(
    worker_hears: Poller,
    holder_clock: FakeClock,
) -> None:
    worker_hears.hear("wait /api/tasks/1")
    holder_clock.advance(notifier.WAITED_FOR)
    worker_hears.hear("wait /api/tasks/2")

    assert waited_for.take(["/api/tasks/1", "/api/tasks/2"]) == ["/api/tasks/2"]
    assert not waited_for


@pytest.fixture
def waiter(other: Any) -> Any:
    """Another process's connection that listens for the ends of tasks."""
    with other.cursor() as cursor:
        cursor.execute(f"LISTEN {RELEASED}")
    return other


@pytest.mark.parametrize("end", ["complete", "complete claimed", "fail", "cancel"])
def test_an_end_that_is_waited_for_is_told_to_other_processes_and_no_other(
    waiter: Any, worker_hears: Poller, end: str
) -> None:
    one, two = (make_task(name="jobs.echo", max_attempts=1) for _ in range(2))
    notes_of(waiter)

    notifier.ask_for_end("default", one.lease_resource)
    assert notes_of(waiter) == [f"wait {one.lease_resource}"]

    match end:
        case "complete":
            complete(one), complete(two)
        case "complete claimed":
            taken = Task.objects.take("ann", limit=2)
            assert Task.objects.complete_claimed([(each, None) for each in taken]) == []
        case "fail":
            Task.objects.fail_many([(claimed(each, "ann"), "no luck") for each in (one, two)])
        case "cancel":
            Task.objects.cancel()

    assert notes_of(waiter) == [one.lease_resource]
    assert not waited_for


def test_an_end_that_nobody_waits_for_costs_no_query(worker_hears: Poller) -> None:
    task = claimed(make_task(), "ann")

    with CaptureQueriesContext(connection) as queries:
        Task.objects.complete(task)

    assert not [query for query in queries if "pg_notify" in query["sql"]]


def test_a_notification_of_an_end_that_fails_harms_nobody(
    on_postgresql: None, worker_hears: Poller, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        if "pg_notify" in sql:
            raise OperationalError("the server went away")
        return execute(sql, *rest)

    worker_hears.hear("wait /api/tasks/1")
    with connection.execute_wrapper(refuse):
        notify_ended("default", ["/api/tasks/1"])

    assert logged(caplog) == ["notifications.unsent"]
