"""A worker in this process: claims, runs, keeps, stops."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import InterfaceError, OperationalError
from pytest_django import Settings

from leasing.holding.keeper import Keeper, keeper
from leasing.models import Lease
from tasks import registry
from tasks.models import TaskStatus, Worker, WorkerQuerySet
from tasks.registry import Kind
from tasks.worker.poller import Poller
from tasks.worker.process import WorkerProcess
from tests.factories import make_task, make_tasks, make_worker
from tests.leasing.support import expire
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.support import (
    Handlers,
    around,
    attempt,
    attempts,
    make_due,
    refusals,
    refusing,
    row_of,
)
from tests.tasks.workers import PATIENCE, ended, patient, states, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


class Gate:
    """A handler that works until the test lets it end."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.saw_stop: list[bool] = []
        self._open = threading.Event()

    def __call__(self, ctx: Any, **data: Any) -> dict[str, int]:
        self.began.append(ctx.task.pk)
        assert self._open.wait(PATIENCE)
        self.saw_stop.append(ctx.stopping)
        return {"attempt": ctx.attempt}

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(handlers: Handlers) -> Iterator[Gate]:
    gate = Gate()
    handlers["jobs.gate"] = gate
    yield gate
    gate.open()
    wait_for(lambda: len(gate.saw_stop) == len(gate.began))


# Running tasks


def test_a_worker_runs_what_is_there_and_what_comes() -> None:
    before = make_tasks(5, name="jobs.echo", data={"x": 1})

    with working(name="ann") as worker:
        wait_for(lambda: states() == ["succeeded"] * 5)
        later = make_task(name="jobs.echo", data={"x": 2})
        wait_for(lambda: row_of(later)["status"] == TaskStatus.SUCCEEDED)

    assert worker.name == "ann"
    assert {row_of(task)["holder"] for task in (*before, later)} == {"ann"}
    assert row_of(later)["task_output"] == {"x": 2}
    assert all(row_of(task)["attempts"] == 1 for task in before)


def test_as_many_tasks_run_at_a_time_as_there_are_threads(gate: Gate) -> None:
    tasks = make_tasks(5, name="jobs.gate", data={})

    with working(threads=3):
        wait_for(lambda: len(gate.began) == 3)
        assert states() == ["running"] * 3 + ["ready"] * 2
        gate.open()
        wait_for(lambda: states() == ["succeeded"] * 5)

    assert sorted(gate.began) == [task.pk for task in tasks]


def test_only_the_workers_queues_are_served() -> None:
    others = make_task(name="jobs.echo", data={}, queue="mail", priority=9)
    mine = make_task(name="jobs.echo", data={}, queue="reports")

    with working(queues=["reports"]):
        wait_for(lambda: row_of(mine)["status"] == TaskStatus.SUCCEEDED)

    assert row_of(others)["status"] == TaskStatus.READY


def test_a_task_is_renewed_for_as_long_as_it_runs(gate: Gate, settings: Settings) -> None:
    settings.LEASING = {"RENEW_EVERY": 0.1}
    task = make_task(name="jobs.gate", data={})

    with working(ttl=60):
        wait_for(lambda: row_of(task)["renewals"] >= 3)
        renewed = row_of(task)
        gate.open()
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)

    assert renewed["ttl"] == timedelta(seconds=60)
    assert renewed["expires_at"] > renewed["acquired_at"] + timedelta(seconds=60.2)
    assert attempts(task) == []


def test_a_worker_that_recovers_a_task_claims_it_without_waiting_for_its_next_look(
    settings: Settings,
) -> None:
    settings.TASK_QUEUE = {
        "SWEEP_EVERY": 0.05,
        "POLL_EVERY": 1000,
        "BACKOFF": {"base": 0, "cap": 0},
    }
    task = make_task(name="jobs.echo", data={}, state="running", holder="gone")

    with working() as worker:
        wait_for(known(worker))
        expire(task)
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)

    assert row_of(task)["attempts"] == 2


def test_a_worker_that_lost_a_task_and_has_it_again_keeps_count_of_both(gate: Gate) -> None:
    """The lost attempt still has its thread: there is no room for a third."""
    task = make_task(name="jobs.gate", data={})
    with working(threads=2) as worker:
        wait_for(lambda: gate.began == [task.pk])
        expire(task)
        wait_for(lambda: gate.began == [task.pk] * 2)
        make_task(name="jobs.gate", data={})

        assert len(worker.attempts) == 2
        assert worker.executors[Kind.THREAD].room == 0
        gate.open()
        wait_for(lambda: states() == ["succeeded"] * 2)
        wait_for(lambda: refusals(task) == ["complete"])

    assert row_of(task)["task_output"] == {"attempt": 2}


# Stopping


def test_a_worker_that_is_idle_stops_at_once() -> None:
    with working(stop_timeout=1000) as worker:
        wait_for(lambda: Worker.objects.filter(name=worker.name).exists())
        worker.stop()
        wait_for(ended(worker))


def test_a_worker_that_is_asked_to_stop_lets_its_tasks_end_and_claims_no_more(
    gate: Gate,
) -> None:
    task = make_task(name="jobs.gate", data={})

    with working() as worker:
        wait_for(lambda: gate.began == [task.pk])
        worker.stop()
        next_task = make_task(name="jobs.echo", data={})
        assert not worker.ended.is_set()
        gate.open()
        wait_for(ended(worker))

    assert gate.saw_stop == [True]
    assert row_of(task)["status"] == TaskStatus.SUCCEEDED
    assert row_of(next_task)["status"] == TaskStatus.READY
    assert worker_row(worker).stopped_at is not None


def test_what_still_runs_at_the_deadline_is_given_back_and_costs_no_attempt(gate: Gate) -> None:
    tasks = make_tasks(2, name="jobs.gate", data={}, max_attempts=1)

    with working(stop_timeout=0.2) as worker:
        wait_for(lambda: len(gate.began) == 2)
        worker.stop()
        wait_for(ended(worker))

    for task in tasks:
        row = row_of(task)
        assert (row["status"], row["attempts"]) == (TaskStatus.READY, 0)
        assert attempts(task) == [(1, "returned")]
        assert attempt(task).error == "its worker was stopped"
    assert worker_row(worker).stopped_at is not None

    gate.open()
    wait_for(lambda: [refusals(task) for task in tasks] == [["complete"]] * 2)
    assert states() == ["ready"] * 2


def test_a_worker_that_is_asked_twice_does_not_wait(gate: Gate) -> None:
    task = make_task(name="jobs.gate", data={})

    with working(stop_timeout=1000) as worker:
        wait_for(lambda: gate.began == [task.pk])
        worker.stop()
        assert row_of(task)["status"] == TaskStatus.RUNNING
        worker.stop()
        wait_for(ended(worker))

    assert row_of(task)["attempts"] == 0


def test_what_cannot_be_given_back_does_not_keep_a_worker_from_stopping(
    gate: Gate, caplog: Any
) -> None:
    task = make_task(name="jobs.gate", data={})
    with database_away() as is_away, working(stop_timeout=0) as worker:
        wait_for(lambda: gate.began == [task.pk])
        is_away.set()
        worker.stop()
        wait_for(ended(worker))

    assert "task.return_failed" in logged(caplog, task_id=task.pk)
    assert "worker.sign_off_failed" in logged(caplog)


# Trouble


@contextmanager
def database_away() -> Iterator[threading.Event]:
    """The event that has the database answer no statement while it is set."""
    is_away = threading.Event()
    away = OperationalError("the database is away")
    with refusing(away, lambda sql, params: is_away.is_set()):
        yield is_away
        is_away.clear()


@pytest.mark.parametrize(
    "error", [OperationalError("the database is away"), InterfaceError("connection closed")]
)
def test_a_claim_that_fails_is_tried_again(error: Exception, caplog: Any) -> None:
    failures = iter(range(3))

    def failing(take: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise error
        return take(*args, **options)

    task = make_task(name="jobs.echo", data={})

    with around("take", failing), working():
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)

    events = [getattr(each, "event", "") for each in caplog.records]
    assert events.count("worker.claim_failed") == 1, "an outage is told once"
    assert events.count("outage.ended") == 1


def test_a_worker_whose_renewals_fail_claims_nothing_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draining = threading.Event()
    draining.set()
    asked = []

    def is_draining(self: Keeper) -> bool:
        asked.append(1)
        return draining.is_set()

    monkeypatch.setattr(Keeper, "draining", property(is_draining))
    task = make_task(name="jobs.echo", data={})

    with working():
        wait_for(lambda: len(asked) > 3)
        assert row_of(task)["status"] == TaskStatus.READY
        draining.clear()
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)


def test_a_task_without_a_handler_stops_no_worker(handlers: Handlers) -> None:
    handlers["jobs.new"] = lambda ctx: None
    unknown = make_task(name="jobs.new", data={}, priority=9)
    del handlers["jobs.new"]
    known = make_task(name="jobs.echo", data={})

    with working(threads=1):
        wait_for(lambda: row_of(known)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: attempts(unknown) == [(1, "returned")])
        handlers["jobs.new"] = lambda ctx: "found"
        make_due(unknown)
        wait_for(lambda: row_of(unknown)["status"] == TaskStatus.SUCCEEDED)


# Registration


def worker_row(worker: WorkerProcess) -> Any:
    return Worker.objects.with_state().get(name=worker.name)


def known(worker: WorkerProcess) -> Callable[[], bool]:
    return Worker.objects.filter(name=worker.name, stopped_at=None).exists


def test_a_worker_says_what_it_is_and_what_it_serves() -> None:
    with working(queues=["mail"], threads=3) as worker:
        wait_for(known(worker))
        row = worker_row(worker)

    assert (row.pid, row.hostname) == (os.getpid(), socket.gethostname())
    assert (row.queues, row.sweeps) == (["mail"], True)
    assert row.slots == worker.executors.slots == {"thread": 3, "coroutine": 100, "process": 1}
    assert row.handlers == registry.kinds()
    assert row.state == "live"
    assert worker_row(worker).state == "stopped"


def test_only_slots_for_handlers_that_there_are_count(handlers: Handlers) -> None:
    def drop(kind: registry.Kind) -> dict[str, int]:
        for name in [name for name in registry.names() if registry.find(name).kind is kind]:
            del handlers[name]
        return WorkerProcess(threads=3, processes=5).executors.slots

    assert drop(registry.Kind.COROUTINE) == {"thread": 3, "process": 5}
    assert drop(registry.Kind.PROCESS) == {"thread": 3}


def test_a_worker_whose_row_was_deleted_writes_another() -> None:
    with working(timing=patient(seen_every=0.02)) as worker:
        wait_for(known(worker))
        Worker.objects.all().delete()
        wait_for(known(worker))


def test_a_worker_that_could_not_say_so_works_all_the_same(caplog: Any) -> None:
    task = make_task(name="jobs.echo", data={})
    is_read_only = threading.Event()
    is_read_only.set()

    def refuses(sql: str, params: Any) -> bool:
        return is_read_only.is_set() and 'INSERT INTO "leasing_tasks_worker"' in sql

    timing = patient(seen_every=0.02)
    with refusing(OperationalError("the disk is full"), refuses), working(timing=timing) as worker:
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: "worker.unseen" in logged(caplog))
        is_read_only.clear()
        wait_for(known(worker))


def test_a_sign_of_life_under_way_does_not_undo_the_signing_off() -> None:
    stops, under_way = threading.Event(), threading.Event()

    def slow(seen: Callable[..., int], *args: Any, **news: Any) -> int:
        if stops.is_set():
            under_way.set()
            threading.Event().wait(0.3)
        return seen(*args, **news)

    timing = patient(seen_every=0.02)
    with around("seen", slow, of=WorkerQuerySet), working(timing=timing) as worker:
        wait_for(known(worker))
        stops.set()
        assert under_way.wait(PATIENCE)
        worker.stop()
        wait_for(ended(worker))
        wait_for(lambda: not registration_threads())

    assert worker_row(worker).state == "stopped"


def registration_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "services"]


def test_workers_that_have_been_gone_for_a_day_are_forgotten() -> None:
    make_worker(name="gone", state="gone")
    make_worker(name="stopped", state="stopped")
    Worker.objects.filter(name="stopped").update(last_seen_at="2020-01-01T00:00:00Z")

    with working(name="ann") as worker:
        wait_for(known(worker))

    assert set(Worker.objects.values_list("name", flat=True)) == {"ann", "gone"}


def test_a_worker_that_ends_leaves_alone_what_others_in_its_process_hold() -> None:
    make_task(name="jobs.echo", data={})

    with Lease.objects.hold("crane:1", ttl=6) as outer:
        call_command("run_worker", once=True)
        assert states() == ["succeeded"]
        assert len(keeper.holds) == 1
        trusted_until = outer.trusted_until
        wait_for(lambda: outer.trusted_until > trusted_until)

    assert keeper.holds == []


# At rest


@pytest.fixture
def poller() -> Poller:
    """The poller of an idle worker that hears notifications."""
    poller = Poller(["default"], threading.Event(), print)
    poller.listener.hears = True
    return poller


def test_a_worker_at_rest_asks_one_query_a_look(
    poller: Poller, django_assert_num_queries: Any
) -> None:
    make_task(name="jobs.echo", delay=30)
    idle = iter([True, True, False])

    with django_assert_num_queries(2):
        poller.rest(0.05, lambda: next(idle))
    # A claim follows a wait for what is known, and one without notifications.
    poller.listener.hears = False
    with django_assert_num_queries(0):
        poller.rest(0.01, lambda: True)
        poller.rest(0.05, lambda: True)


def test_a_worker_at_rest_looks_when_a_task_is_due_that_nobody_announced(poller: Poller) -> None:
    def is_idle() -> bool:
        make_task(name="jobs.echo")
        return True

    poller.rest(0.05, is_idle)
