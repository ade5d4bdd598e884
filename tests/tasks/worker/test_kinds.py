"""A worker whose handlers are of several kinds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from tasks import registry
from tasks.models import Task, TaskStatus
from tasks.registry import Kind
from tasks.runtime.marks import Marks
from tasks.worker import poller as tasks_poller
from tasks.worker.poller import ASK_AFTER, ASK_EVERY, Poller
from tasks.worker.process import WorkerProcess
from tests.factories import make_task, make_tasks
from tests.leasing.support import FakeClock
from tests.limits import Limits
from tests.processes import wait_for
from tests.tasks.support import Handlers, attempts, row_of
from tests.tasks.workers import PATIENCE, ended, patient, states, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


@pytest.fixture
def ran_on(handlers: Handlers) -> list[str]:
    """The thread of each task that ran, of a function and a coroutine function."""
    names: list[str] = []

    async def fetch(ctx: Any, **data: Any) -> None:
        names.append(threading.current_thread().name)

    def count(ctx: Any, **data: Any) -> None:
        names.append(threading.current_thread().name)

    handlers["jobs.fetch"] = fetch
    handlers["jobs.count"] = count
    return names


def test_threads_stay_busy_while_coroutines_are_looked_for_in_vain(
    ran_on: list[str], settings: Settings, limits: Limits
) -> None:
    """Were it not woken when a thread is free, it would look again after a minute."""
    settings.TASK_QUEUE = {"POLL_EVERY": 60}
    limits(prefetch=0)
    make_tasks(12, name="jobs.count", data={})

    with working(threads=2):
        wait_for(lambda: states() == ["succeeded"] * 12)

    assert len(ran_on) == 12


def test_a_task_that_becomes_due_while_another_kind_has_no_room_runs_when_it_is_due(
    ran_on: list[str], handlers: Handlers, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TASK_QUEUE = {"POLL_EVERY": 60}
    gate = threading.Event()
    handlers["jobs.gate"] = lambda ctx: gate.wait(3 * PATIENCE) and None
    monkeypatch.setattr(tasks_poller, "can_listen", lambda using: False)
    make_tasks(3, name="jobs.gate", data={})
    later = make_task(name="jobs.fetch", data={}, delay=0.3)
    # It has no slot either, and is nothing to wake up for.
    make_task(name="jobs.count", data={}, delay=0.1)

    with working(threads=1) as worker:
        worker.poller.listener.hears = True
        worker.poller.wake()  # it may wait already, as one does that hears nothing
        try:
            wait_for(lambda: row_of(later)["status"] == TaskStatus.SUCCEEDED)
        finally:
            gate.set()


def test_what_is_due_is_asked_a_few_times_a_second_however_often_a_slot_becomes_free(
    holder_clock: FakeClock, django_assert_num_queries: Any
) -> None:
    poller = Poller(["default"], threading.Event(), print)
    poller.listener.hears = True
    short, coroutines = ASK_AFTER + 0.01, [Kind.COROUTINE.number]

    with django_assert_num_queries(0):
        poller.wait_busy(ASK_AFTER, coroutines)
        poller.wait_busy(short, [])
        poller.wake()
        poller.wait_busy(60, coroutines)
    poller.begin_look()
    with django_assert_num_queries(1) as asked:
        for _ in range(3):
            poller.wait_busy(short, coroutines)
    assert '"kind" IN' in asked[0]["sql"]
    holder_clock.advance(ASK_EVERY)
    with django_assert_num_queries(1):
        poller.wait_busy(short, coroutines)
    with django_assert_num_queries(1):
        poller.wait_busy(short, [Kind.THREAD.number])


@pytest.mark.parametrize(("name", "thread"), [("jobs.fetch", "event-loop"), ("jobs.count", "task")])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_task_runs_where_its_handler_says_whatever_its_row_does(
    name: str, thread: str, kind: Kind, ran_on: list[str]
) -> None:
    make_tasks(3, name=name, data={}, kind=kind.number)

    with working(threads=1, coroutines=1):
        wait_for(lambda: states() == ["succeeded"] * 3)

    assert all(each.startswith(thread) for each in ran_on)


def test_tasks_for_which_there_is_no_slot_of_their_kind_go_back_as_that(
    ran_on: list[str], handlers: Handlers
) -> None:
    """One for each slot after a while, in which it is the next to run."""
    gate = threading.Event()
    handlers["jobs.gate"] = lambda ctx: gate.wait(PATIENCE) and None
    make_task(name="jobs.gate", data={}, priority=9)
    tasks = make_tasks(2, name="jobs.count", data={}, kind=Kind.COROUTINE.number)

    with working(threads=1, coroutines=5, timing=patient(slot_wait=0.3)):
        wait_for(lambda: [row_of(task)["kind"] for task in tasks] == [Kind.THREAD.number] * 2)
        assert [row_of(task)["status"] for task in tasks] == ["ready"] * 2
        gate.set()
        wait_for(lambda: states() == ["succeeded"] * 3)

    assert {row_of(task)["attempts"] for task in tasks} == {1}


def test_of_another_kind_than_its_row_says_only_what_must_not_wait_goes_back_at_once(
    ran_on: list[str], handlers: Handlers
) -> None:
    gate = threading.Event()
    handlers["jobs.gate"] = lambda ctx: gate.wait(PATIENCE) and None
    make_task(name="jobs.gate", data={}, priority=9)
    moved, single = make_tasks(2, name="jobs.count", data={}, kind=Kind.COROUTINE.number)
    Task.objects.filter(pk=single.pk).update(max_attempts=1)

    with working(threads=1, coroutines=5):
        wait_for(lambda: row_of(single)["kind"] == Kind.THREAD.number)
        assert [row_of(task)["status"] for task in (moved, single)] == ["running", "ready"]
        gate.set()
        wait_for(lambda: states() == ["succeeded"] * 3)


def test_a_task_that_nobody_here_knows_is_given_back_for_a_while_from_its_own_kind(
    ran_on: list[str], handlers: Handlers
) -> None:
    """The threads are all busy too: else it would be claimed time and again."""
    gate = threading.Event()
    handlers["jobs.gate"] = lambda ctx: gate.wait(PATIENCE) and None
    make_task(name="jobs.gate", data={}, priority=9)
    unknown = make_task(name="jobs.fetch", data={})
    Task.objects.filter(pk=unknown.pk).update(name="jobs.gone")

    with working(threads=1, coroutines=5):
        wait_for(lambda: attempts(unknown) == [(1, "returned")])
        assert row_of(unknown)["kind"] == Kind.COROUTINE.number
        assert row_of(unknown)["scheduled_at"] > unknown.scheduled_at
        gate.set()


def test_a_worker_without_slots_of_a_kind_leaves_its_tasks_to_others(
    ran_on: list[str],
) -> None:
    async def draw(ctx: Any, **data: Any) -> None: ...

    registry.handler("jobs.draw", process=True)(draw)
    other = make_task(name="jobs.draw", data={}, priority=9)
    mine = make_task(name="jobs.count", data={})

    with working(threads=1, processes=0):
        wait_for(lambda: row_of(mine)["status"] == TaskStatus.SUCCEEDED)

    assert (row_of(other)["status"], row_of(other)["attempts"]) == (TaskStatus.READY, 0)


def test_neither_rows_of_kinds_without_a_handler_here_nor_others_always_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker of others may have a backlog of them, and so may threads."""
    monkeypatch.setattr(registry, "kinds_in_use", lambda: [Kind.THREAD])
    pool = WorkerProcess(threads=1).executors

    firsts = {pool.find_room()[0][1][0] for _ in range(200)}

    assert firsts == {kind.number for kind in Kind}


def test_a_worker_that_may_run_so_many_tasks_runs_them_of_whatever_kind(
    ran_on: list[str],
) -> None:
    """Also where all that it may still run would fit in its threads."""
    make_tasks(3, name="jobs.fetch", data={})

    with working(threads=2, max_tasks=2) as worker:
        wait_for(ended(worker))

    assert len(ran_on) == 2
    assert sorted(states()) == ["ready"] + ["succeeded"] * 2


def test_what_has_one_attempt_is_claimed_ahead_by_workers_of_a_parent(
    handlers: Handlers,
    limits: Limits,
    use_marks: Callable[[Marks | None], None],
) -> None:
    """Which gives back what has not begun, should they die."""
    limits(prefetch=4)
    use_marks(Marks(100, 0))
    gate = threading.Event()
    handlers["jobs.gate"] = lambda ctx: gate.wait(PATIENCE) and None
    make_tasks(9, name="jobs.gate", data={}, max_attempts=1)

    with working(threads=2):
        wait_for(lambda: Task.objects.running().count() == 6)
        gate.set()
        wait_for(lambda: states() == ["succeeded"] * 9)


def test_what_has_one_attempt_begins_with_it_and_what_has_more_may_wait(
    handlers: Handlers, limits: Limits
) -> None:
    """A worker that dies now costs an attempt of what it runs and of what could do without."""
    limits(prefetch=4)
    gate, began = threading.Event(), list[int]()

    def stay(ctx: Any, **data: Any) -> None:
        began.append(ctx.task.pk)
        assert gate.wait(PATIENCE)

    handlers["jobs.stay"] = stay
    once = make_tasks(4, name="jobs.stay", data={}, max_attempts=1)
    fresh = make_tasks(9, name="jobs.stay", data={})

    with working(threads=2):
        wait_for(lambda: len(began) == 2 and Task.objects.running().count() == 4)
        counted = set(Task.objects.filter(attempts=1).values_list("pk", flat=True))
        assert set(began) == {task.pk for task in once[:2]}
        assert counted == {*began, *(task.pk for task in fresh[:2])}
        gate.set()
        wait_for(lambda: states() == ["succeeded"] * 13)
