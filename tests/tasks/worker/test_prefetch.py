"""Tasks that a worker prefetches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models import F
from pytest_django import Settings

from leasing.holding.keeper import keeper
from tasks.models import Task, TaskAttempt, TaskStatus
from tasks.querysets import TaskQuerySet
from tasks.registry import Kind
from tasks.worker.process import Until, WorkerProcess
from tasks.worker.threads import Threads
from tests.factories import make_task, make_tasks
from tests.limits import Limits
from tests.processes import wait_for
from tests.tasks.support import Handlers, around, is_storing, refusing, row_of
from tests.tasks.workers import PATIENCE, ended, patient, states, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]


class Turnstile:
    """A handler that lets through as many as the test says."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self._passes = threading.Semaphore(0)

    def __call__(self, ctx: Any, **data: Any) -> None:
        self.began.append(ctx.task.pk)
        assert self._passes.acquire(timeout=PATIENCE)

    def let(self, count: int) -> None:
        self._passes.release(count)


@pytest.fixture
def turnstile(handlers: Handlers) -> Iterator[Turnstile]:
    turnstile = Turnstile()
    handlers["jobs.turn"] = turnstile
    yield turnstile
    turnstile.let(1000)


def threads_of(worker: WorkerProcess) -> Threads:
    executor = worker.executors[Kind.THREAD]
    assert isinstance(executor, Threads)
    return executor


def running() -> int:
    return Task.objects.running().count()


@pytest.fixture
def short(limits: Limits) -> None:
    """Tasks have been short so far: four may wait for their slot."""
    limits(prefetch=4)


def given_back() -> TaskQuerySet:
    """Return the tasks that were claimed and have not begun, and wait again."""
    return Task.objects.filter(grants__gt=F("attempts"), status=TaskStatus.READY)


# Claiming ahead


def test_tasks_that_wait_for_a_place_are_held_and_renewed_and_begin_in_their_turn(
    turnstile: Turnstile, short: None, settings: Settings
) -> None:
    settings.LEASING = {"RENEW_EVERY": 0.05}
    tasks = make_tasks(8, name="jobs.turn", data={})

    with working(threads=1) as worker:
        wait_for(lambda: len(worker.attempts) == 5)
        wait_for(lambda: len(turnstile.began) == 1)
        assert len(keeper.holds) == running() == 5
        wait_for(lambda: all(row_of(task)["renewals"] for task in tasks[:5]))
        turnstile.let(8)
        wait_for(lambda: states() == ["succeeded"] * 8)

    assert turnstile.began == [task.pk for task in tasks]
    assert {row_of(task)["attempts"] for task in tasks} == {1}


def test_what_waits_goes_back_at_once_when_the_worker_stops_and_costs_no_attempt(
    turnstile: Turnstile, short: None
) -> None:
    first, *rest = make_tasks(5, name="jobs.turn", data={})

    with working(threads=1) as worker:
        wait_for(lambda: turnstile.began == [first.pk] and len(worker.attempts) == 5)
        worker.stop()
        wait_for(lambda: states() == ["running"] + ["ready"] * 4)
        turnstile.let(1)
        wait_for(ended(worker))

    assert row_of(first)["status"] == TaskStatus.SUCCEEDED
    assert [row_of(task)["attempts"] for task in rest] == [0] * 4
    assert not TaskAttempt.objects.exists()  # none of them had begun
    assert turnstile.began == [first.pk]


@pytest.mark.parametrize("limit", ["slot_wait", "long_after"])
def test_what_waits_too_long_goes_back_for_others_and_no_more_is_claimed_ahead(
    limit: str, turnstile: Turnstile
) -> None:
    turnstile.let(1)
    tasks = make_tasks(8, name="jobs.turn", data={})

    with working(threads=1, timing=patient(**{limit: 0.1, "prefetch": 1e6})) as worker:
        wait_for(lambda: len(turnstile.began) == 2)
        # Which of them is not said: what did not begin in time goes back, and others come first.
        wait_for(lambda: sorted(states()) == ["ready"] * 6 + ["running", "succeeded"])
        assert threads_of(worker).prefetch == threads_of(worker).room == 0
        assert given_back().exists()
        turnstile.let(8)
        wait_for(lambda: states() == ["succeeded"] * 8)

    assert not TaskAttempt.objects.exists()
    assert {row_of(task)["attempts"] for task in tasks} == {1}


def test_a_worker_that_may_run_so_many_tasks_counts_what_it_gave_back_as_not_run(
    turnstile: Turnstile, short: None
) -> None:
    make_tasks(5, name="jobs.turn", data={})

    with working(threads=1, max_tasks=3, timing=patient(slot_wait=0.1)) as worker:
        wait_for(lambda: given_back().exists())
        turnstile.let(8)
        wait_for(ended(worker))

    assert sorted(states()) == ["ready"] * 2 + ["succeeded"] * 3


def test_a_worker_that_runs_what_is_there_runs_what_it_gave_back_too(
    turnstile: Turnstile, short: None
) -> None:
    """It had found nothing more to claim, and was to end with what it had."""
    make_tasks(2, name="jobs.turn", data={})

    with working(threads=1, until=Until.ONCE, timing=patient(slot_wait=0.1)) as worker:
        wait_for(lambda: given_back().exists())
        turnstile.let(2)
        wait_for(ended(worker))

    assert states() == ["succeeded"] * 2


def test_a_worker_that_runs_what_is_there_runs_what_it_passed_over_too(
    turnstile: Turnstile, short: None
) -> None:
    """It came past a task with one attempt, which is claimed for a free slot alone."""
    make_task(name="jobs.turn", data={}, priority=1)
    make_task(name="jobs.echo", data={}, max_attempts=1)

    with working(threads=1, until=Until.ONCE) as worker:
        wait_for(lambda: turnstile.began)
        turnstile.let(1)
        wait_for(ended(worker))

    assert states() == ["succeeded"] * 2


def test_a_timeout_counts_from_where_a_task_begins(turnstile: Turnstile, short: None) -> None:
    tasks = make_tasks(2, name="jobs.turn", data={})
    Task.objects.update(timeout=timedelta(seconds=60))

    with working(threads=1) as worker:
        wait_for(lambda: len(worker.attempts) == 2)
        begun, waiting = sorted(worker.attempts, key=lambda each: each.claimed.id)
        wait_for(lambda: turnstile.began == [tasks[0].pk])
        assert begun.deadline is not None
        assert waiting.deadline is None
        turnstile.let(2)
        wait_for(lambda: states() == ["succeeded"] * 2)


def test_the_time_for_progress_counts_from_where_a_task_begins(
    turnstile: Turnstile, short: None, limits: Limits
) -> None:
    limits(progress_silence=0.0)
    _, second = make_tasks(2, name="jobs.turn", data={})
    Task.objects.update(progress_timeout=timedelta(seconds=60))

    with working(threads=1):
        wait_for(lambda: running() == 2)
        claimed_at = row_of(second)["progressed_at"]
        turnstile.let(1)
        wait_for(lambda: row_of(second)["progressed_at"] > claimed_at)
        turnstile.let(1)
        wait_for(lambda: states() == ["succeeded"] * 2)
    assert row_of(second)["attempts"] == 1


def test_a_task_that_was_lost_or_cancelled_while_it_waited_does_not_begin(
    turnstile: Turnstile, short: None
) -> None:
    _, lost, cancelled, last = make_tasks(4, name="jobs.turn", data={})

    with working(threads=1) as worker:
        wait_for(lambda: len(worker.attempts) == 4)
        known = {each.claimed.id: each for each in worker.attempts}
        known[lost.pk].mark_lost("thief has held it")
        known[cancelled.pk].cancel("ann")
        turnstile.let(2)
        wait_for(lambda: row_of(last)["status"] == TaskStatus.SUCCEEDED)
        wait_for(lambda: row_of(cancelled)["status"] == TaskStatus.CANCELLED)

    assert lost.pk not in turnstile.began
    assert cancelled.pk not in turnstile.began


@pytest.mark.parametrize("until", [Until.ONCE, Until.DRAINED])
def test_a_worker_that_claims_ahead_ends_when_all_is_done(until: Until, short: None) -> None:
    make_tasks(30, name="jobs.echo", data={})

    with working(threads=2, until=until) as worker:
        wait_for(ended(worker))

    assert states() == ["succeeded"] * 30


def test_coroutines_that_wait_begin_as_slots_become_free(handlers: Handlers) -> None:
    most: list[int] = []
    active = 0

    async def count(ctx: Any, **data: Any) -> int:
        nonlocal active
        active += 1
        most.append(active)
        await asyncio.sleep(0)
        active -= 1
        return len(most)

    handlers["jobs.count"] = count
    make_tasks(40, name="jobs.count", data={})

    with working(coroutines=2, threads=1):
        wait_for(lambda: states() == ["succeeded"] * 40)

    assert max(most) <= 2


# Priorities


def test_a_task_of_higher_priority_that_comes_goes_before_those_that_wait(
    turnstile: Turnstile, short: None
) -> None:
    first, *rest = make_tasks(8, name="jobs.turn", data={})
    urgent: list[Task] = []

    with working(threads=1) as worker:
        wait_for(lambda: turnstile.began == [first.pk] and len(worker.attempts) == 5)
        for priority in (5, 9):
            urgent.insert(0, make_task(name="jobs.turn", data={}, priority=priority))
            wait_for(lambda: urgent[0].pk in {each.claimed.id for each in worker.attempts})
        turnstile.let(10)
        wait_for(lambda: states() == ["succeeded"] * 10)

    assert turnstile.began == [task.pk for task in (first, *urgent, *rest)]


# Storing together


def test_results_that_come_together_are_stored_by_few_statements(handlers: Handlers) -> None:
    sizes: list[int] = []

    def counting(complete: Callable[..., Any], results: Any) -> Any:
        sizes.append(len(results))
        return complete(results)

    barrier = threading.Barrier(8)
    handlers["jobs.meet"] = lambda ctx: barrier.wait(PATIENCE) and None
    make_tasks(8, name="jobs.meet", data={})

    timing = patient(batch_delay=PATIENCE)
    with around("complete_claimed", counting), working(threads=8, timing=timing):
        wait_for(lambda: states() == ["succeeded"] * 8)

    assert sum(sizes) == 8
    assert len(sizes) <= 2


def test_a_result_waits_for_others_for_a_moment_only(turnstile: Turnstile) -> None:
    make_task(name="jobs.turn", data={}, priority=9)
    task = make_task(name="jobs.echo", data={})

    with working(threads=2):
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)
        assert running() == 1
        turnstile.let(1)


def test_a_bad_output_among_many_sinks_none(handlers: Handlers) -> None:
    barrier = threading.Barrier(6)
    outputs: dict[str, Any] = {"set": {1}, "nul": "a\0b", "good": 7}

    def answer(ctx: Any, what: str) -> Any:
        barrier.wait(PATIENCE)
        if what == "raise":
            raise ValueError("no luck")
        return outputs[what]

    handlers["jobs.answer"] = answer
    for what in ("good", "set", "good", "raise", "nul", "good"):
        make_task(name="jobs.answer", data={"what": what}, max_attempts=1 if what == "raise" else 3)

    with working(threads=6, timing=patient(batch_delay=PATIENCE)):
        wait_for(lambda: {"ready", "running"}.isdisjoint(states()))

    assert states() == ["succeeded", "failed", "succeeded", "failed", "failed", "succeeded"]
    said = Task.objects.failed().order_by("pk").values_list("last_error", flat=True)
    assert [text.partition(":")[0] for text in said] == [
        "InvalidOutput",
        "ValueError",
        "InvalidOutput",
    ]


def test_a_result_that_the_database_never_takes_sinks_none_of_its_neighbours(
    handlers: Handlers,
) -> None:
    barrier = threading.Barrier(4)

    def answer(ctx: Any, what: str) -> str:
        barrier.wait(PATIENCE)
        return what

    handlers["jobs.answer"] = answer
    for what in ("good", "poison", "good", "good"):
        make_task(name="jobs.answer", data={"what": what})

    def refuses(sql: str, params: Any) -> bool:
        return "task_output" in sql and "poison" in str(params)

    timing = patient(batch_delay=PATIENCE, store_pauses=(0, 0))
    error = OperationalError("program limit exceeded")
    with refusing(error, refuses), working(threads=4, stop_timeout=0, timing=timing):
        wait_for(lambda: states() == ["succeeded", "running", "succeeded", "succeeded"])


def test_while_results_cannot_be_stored_nothing_is_claimed_and_none_is_lost() -> None:
    away, tries = threading.Event(), []
    away.set()

    def refuses(sql: str, params: Any) -> bool:
        tries.extend([sql] if is_storing(sql) else [])
        return away.is_set() and is_storing(sql)

    first = make_task(name="jobs.echo", data={})

    with (
        refusing(OperationalError("the database is away"), refuses),
        working(timing=patient(store_pauses=(0.01,) * 5000)) as worker,
    ):
        wait_for(lambda: worker.executors.completer.is_full)
        others = make_tasks(5, name="jobs.echo", data={})
        before = len(tries)
        wait_for(lambda: len(tries) > before + 40)
        assert states() == ["running"] + ["ready"] * 5
        away.clear()
        wait_for(lambda: states() == ["succeeded"] * 6)

    assert all(row_of(task)["attempts"] == 1 for task in (first, *others))


def test_a_result_that_waits_for_a_lock_does_not_hold_up_those_after_it(
    handlers: Handlers,
) -> None:
    handlers["jobs.answer"] = lambda ctx, what: what
    locked, let_go = threading.Event(), threading.Event()

    def storing(complete: Callable[..., Any], results: Any) -> Any:
        if any(output == "locked" for _, output in results):
            locked.set()
            let_go.wait(PATIENCE)
        return complete(results)

    make_task(name="jobs.answer", data={"what": "locked"})

    timing = patient(stuck_writer_after=0.02)
    with around("complete_claimed", storing), working(timing=timing):
        assert locked.wait(PATIENCE)
        after = make_task(name="jobs.answer", data={"what": "free"})
        wait_for(lambda: row_of(after)["status"] == TaskStatus.SUCCEEDED)
        let_go.set()
        wait_for(lambda: states() == ["succeeded"] * 2)
