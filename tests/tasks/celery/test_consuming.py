"""Messages in a Celery worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from leasing.functions import after
from tasks import registry
from tasks.celery import consuming
from tasks.celery.consuming import consume
from tasks.execution.attempt import Attempt
from tasks.execution.context import Context
from tasks.models import Queue, Task, TaskStatus
from tasks.notifier import limiter
from tests.limits import Limits
from tests.tasks.celery.support import enqueue
from tests.tasks.support import (
    Handlers,
    Reported,
    around,
    end_well,
    grant_to,
    names_of,
    row_of,
    take_back,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nobody_waits(connection_stays: None, limits: Limits) -> None:
    """Nor is the connection closed, which has the transaction of the test."""
    limits(claim_pauses=())


@pytest.fixture(params=["one statement", "portable"])
def _form(request: pytest.FixtureRequest) -> None:
    if request.param == "portable":
        request.getfixturevalue("portable")


@pytest.mark.usefixtures("_form")
def test_a_message_runs_its_task_under_a_lease_and_stores_what_came_of_it(
    reported: Reported,
) -> None:
    other, key = enqueue(2)

    assert consume(key, "default", "ann")

    task = Task.objects.get(pk=key)
    assert (task.status, task.task_output, task.holder) == ("succeeded", {"n": 1}, "ann")
    assert (task.attempts, task.grants) == (1, 1)
    assert Task.objects.get(pk=other).status == TaskStatus.READY
    assert names_of(reported) == ["enqueued", "enqueued", "claimed", "completed"]


@pytest.mark.usefixtures("_form")
def test_a_message_that_comes_twice_runs_its_task_once(handlers: Handlers) -> None:
    runs: list[int] = []
    handlers["jobs.echo"] = lambda ctx, n: runs.append(n)
    (key,) = enqueue()

    assert [consume(key, "default", "ann"), consume(key, "default", "bob")] == [True, False]

    assert runs == [0]
    assert row_of(Task.objects.get(pk=key))["holder"] == "ann"


def test_the_end_of_a_task_with_a_key_notifies_for_the_next_of_it() -> None:
    plain, keyed = enqueue(), enqueue(concurrency_key="k", concurrency_limit=1)
    notified: list[str] = []

    with limiter.heard_by(notified.append):
        consume(plain[0], "default", "ann")
        assert notified == []
        consume(keyed[0], "default", "ann")

    assert notified == ["queue 0 default"]


def pause(task: Task) -> None:
    Queue.objects.pause("default")


def put_off(task: Task) -> None:
    Task.objects.filter(pk=task.pk).update(scheduled_at=timezone.now() + timedelta(hours=1))


def move(task: Task) -> None:
    Task.objects.filter(pk=task.pk).reschedule(queue="mail")


def fill(task: Task) -> None:
    """Run another task of its key."""
    keyed: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1}
    Task.objects.filter(pk=task.pk).update(**keyed)
    (other,) = enqueue(priority=1, **keyed)
    assert Task.objects.take_one(other, "bob", queue="default") is not None


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("why", [pause, put_off, move, fill])
def test_the_message_of_a_task_that_cannot_run_now_is_dropped_and_published_anew(why: Any) -> None:
    (key,) = enqueue()
    Task.objects.filter(pk=key).update(published_at=after(timedelta(0)))
    task = Task.objects.get(pk=key)
    why(task)

    assert not consume(key, "default", "ann")

    row = row_of(task)
    assert (row["status"], row["attempts"], row["published_at"]) == ("ready", 0, None)


def run_elsewhere(task: Task) -> None:
    grant_to(task, "bob")


def end(task: Task) -> None:
    grant_to(task, "bob")
    end_well(task)


def cancel(task: Task) -> None:
    Task.objects.filter(pk=task.pk).cancel()


def delete(task: Task) -> None:
    Task.objects.filter(pk=task.pk).delete()


@pytest.mark.usefixtures("_form")
@pytest.mark.parametrize("why", [run_elsewhere, end, cancel, delete])
def test_the_message_of_a_task_that_is_not_ready_changes_nothing(why: Any) -> None:
    (key,) = enqueue()
    Task.objects.filter(pk=key).update(published_at=after(timedelta(0)))
    why(Task.objects.get(pk=key))
    before = list(Task.objects.values())

    assert not consume(key, "default", "ann")

    assert list(Task.objects.values()) == before


def test_a_result_of_an_attempt_that_was_taken_back_meanwhile_is_refused(
    handlers: Handlers,
) -> None:
    (key,) = enqueue()
    ran: list[str] = []

    def slow(ctx: Context, n: int) -> str:
        ran.append("first")
        take_back(Task.objects.get(pk=key))
        handlers["jobs.echo"] = lambda ctx, n: "second"
        consume(key, "default", "bob")  # the message is sent again, by broker or relay
        return "first"

    handlers["jobs.echo"] = slow
    consume(key, "default", "ann")

    task = Task.objects.get(pk=key)
    assert ran == ["first"]
    assert (task.task_output, task.holder, task.attempts) == ("second", "bob", 2)


def test_what_raises_is_tried_again_and_what_is_unknown_goes_back(handlers: Handlers) -> None:
    failing, unknown = enqueue(2)
    Task.objects.filter(pk=unknown).update(name="jobs.of_another_release")

    def fail(ctx: Context, n: int) -> None:
        raise ValueError("no luck")

    handlers["jobs.echo"] = fail
    assert [consume(key, "default", "ann") for key in (failing, unknown)] == [True, True]

    rows = [row_of(Task.objects.get(pk=key)) for key in (failing, unknown)]
    assert [(row["status"], row["attempts"]) for row in rows] == [("ready", 1), ("ready", 0)]
    assert rows[0]["last_error"] == "ValueError: no luck"


def test_coroutines_and_handlers_of_processes_run_in_the_worker_too(
    handlers: Handlers,
) -> None:
    async def add(ctx: Context, n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    keys = enqueue(2)
    for key, function, process in [(keys[0], add, False), (keys[1], lambda ctx, n: n, True)]:
        del handlers["jobs.echo"]
        registry.handler("jobs.echo", process=process, timeout=timedelta(seconds=60))(function)
        assert consume(key, "default", "ann")

    assert [Task.objects.get(pk=key).task_output for key in keys] == [1, 1]


def test_a_coroutine_is_cancelled_at_its_await(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = enqueue()
    reached: list[str] = []

    async def wait(ctx: Context, n: int) -> None:
        attempts[0].cancel("alice")  # as its hold does when it hears of it
        await asyncio.sleep(60)
        reached.append("the end")

    call = consuming._call
    attempts: list[Attempt] = []

    def calling(attempt: Attempt, context: Context) -> Any:
        attempts.append(attempt)
        return call(attempt, context)

    monkeypatch.setattr(consuming, "_call", calling)
    handlers["jobs.echo"] = wait
    consume(key, "default", "ann")

    assert reached == []
    assert Task.objects.get(pk=key).status == TaskStatus.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_a_claim_is_tried_again_while_the_database_is_away(
    limits: Limits,
) -> None:
    (key,) = enqueue()
    failures = iter(range(2))

    def failing(take: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise OperationalError("away")
        return take(*args, **options)

    limits(claim_pauses=(0, 0, 0))
    with around("take_one", failing):
        assert consume(key, "default", "ann")

    assert Task.objects.get(pk=key).status == TaskStatus.SUCCEEDED
