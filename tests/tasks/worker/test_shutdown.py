"""Workers that end by themselves, and handlers that give their task back."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from leasing.functions import DbNow
from tasks.execution.context import Context
from tasks.models import Queue, Task, TaskStatus, Worker
from tasks.worker.process import Until
from tests.factories import make_task, make_tasks
from tests.processes import wait_for
from tests.tasks.support import Handlers, attempt, row_of
from tests.tasks.workers import PATIENCE, ended, states, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


@pytest.mark.parametrize("until", [Until.ONCE, Until.DRAINED])
def test_a_worker_runs_what_is_ready_and_ends(until: Until) -> None:
    make_tasks(5, name="jobs.echo", data={})
    later = make_task(name="jobs.echo", data={}, state="scheduled")

    with working(until=until, stop_timeout=0) as worker:
        wait_for(ended(worker))
        assert not worker.stopping.is_set()

    assert states() == ["succeeded"] * 5 + ["ready"]
    assert row_of(later)["attempts"] == 0
    assert Worker.objects.get(name=worker.name).stopped_at is not None


def test_a_worker_that_runs_once_lets_its_tasks_end_however_long_they_take(
    handlers: Handlers,
) -> None:
    opened = threading.Event()
    handlers["jobs.long"] = lambda ctx: opened.wait(PATIENCE) and ctx.stopping
    task = make_task(name="jobs.long", data={})

    with working(until=Until.ONCE, stop_timeout=0) as worker:
        wait_for(lambda: worker.health.read().closed[0].startswith("Finishing"))
        assert worker.attempts
        opened.set()
        wait_for(ended(worker))

    assert (row_of(task)["status"], row_of(task)["task_output"]) == ("succeeded", False)


def test_nothing_of_a_worker_that_ran_once_is_left_in_its_process(handlers: Handlers) -> None:
    """As a test or a script has it that calls the command: with its signals, its threads and its
    descriptors as they were."""

    async def wink(ctx: Context) -> None: ...

    def run_once() -> None:
        make_task(name="jobs.echo", data={})
        make_task(name="jobs.wink", data={})
        call_command("run_worker", once=True)

    def descriptors() -> int:
        connection.close()
        return len(os.listdir("/proc/self/fd"))

    handlers["jobs.wink"] = wink
    signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads, opened = {*threading.enumerate()}, descriptors()
    for _ in range(2):
        run_once()

    assert states() == ["succeeded"] * 4
    assert signals == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    wait_for(lambda: {*threading.enumerate()} <= threads)
    wait_for(lambda: descriptors() <= opened)


def test_draining_waits_for_what_runs_elsewhere_and_takes_what_comes_of_it() -> None:
    task = make_task(name="jobs.echo", data={}, state="running", holder="elsewhere")
    paused = make_task(name="jobs.echo", data={}, queue="mail")
    Queue.objects.create(name="mail", paused_at=DbNow())

    with working(until=Until.DRAINED, queues=["default"]) as worker:
        wait_for(lambda: Worker.objects.filter(name=worker.name).exists())
        assert not worker.ended.is_set()
        Task.objects.give_back(task, "its worker was stopped")
        wait_for(ended(worker))

    assert row_of(task)["holder"] == worker.name
    assert row_of(task)["status"] == TaskStatus.SUCCEEDED
    assert row_of(paused)["status"] == TaskStatus.READY


def test_a_worker_that_may_run_so_many_tasks_claims_no_more() -> None:
    make_tasks(5, name="jobs.echo", data={})

    with working(max_tasks=3, stop_timeout=0) as worker:
        wait_for(ended(worker))

    assert states() == ["succeeded"] * 3 + ["ready"] * 2
    assert not worker.failed


def test_a_handler_that_sees_the_worker_stop_gives_its_task_back(handlers: Handlers) -> None:
    began = threading.Event()

    def polite(ctx: Any) -> str:
        began.set()
        while not ctx.wait(PATIENCE):
            pass
        ctx.give_back("saved at page 7", delay=60)
        return "dropped"

    handlers["jobs.polite"] = polite
    task = make_task(name="jobs.polite", data={}, max_attempts=1)

    with working(stop_timeout=PATIENCE) as worker:
        assert began.wait(PATIENCE)
        worker.stop()
        wait_for(ended(worker))

    row = row_of(task)
    assert (row["status"], row["attempts"], row["task_output"]) == ("ready", 0, None)
    assert list(Task.objects.scheduled()) == [task]
    assert attempt(task).error == "saved at page 7"
