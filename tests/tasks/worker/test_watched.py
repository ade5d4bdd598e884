"""Threads of a worker that end: they are started again, and nothing they carried is kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from leasing.holding.keeper import Keeper, keeper
from leasing.runtime import threads as runtime_threads
from leasing.runtime.clock import clock
from leasing.runtime.services import Service
from leasing.runtime.threads import MAX_THREADS, LastingThread, replaced, start_thread
from leasing.store import Renewal
from tasks.execution import completer, runner
from tasks.execution.completer import Completer
from tasks.maintenance import housekeeping, recovery, scheduler
from tasks.models import TaskStatus, Worker, WorkerQuerySet
from tasks.registry import Kind
from tasks.runtime.service_threads import ServiceThreads
from tasks.worker import process
from tasks.worker.executors import Executors
from tasks.worker.hand_back import abandoned
from tasks.worker.process import WorkerProcess
from tasks.worker.timeouts import Timekeeper
from tests.factories import make_task
from tests.leasing.support import FakeClock, expire
from tests.limits import Limits
from tests.logs import logged
from tests.processes import wait_for
from tests.tasks.support import Handlers, attempts, kept, row_of
from tests.tasks.workers import PATIENCE, ended, patient, states, working

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def watched(**seconds: float) -> AbstractContextManager[WorkerProcess]:
    """A worker whose watcher looks often."""
    return working(timing=patient(tend_every=0.02, **seconds))


def once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: BaseException) -> None:
    """Make the first call of the function raise ``error``."""
    real = getattr(where, name)
    errors = [error]

    def first(*args: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*args, **named)

    monkeypatch.setattr(where, name, first)


@pytest.mark.parametrize("name", ["jobs.thread", "jobs.coroutine"])
@pytest.mark.parametrize("error", [SystemExit(), MemoryError()], ids=repr)
@pytest.mark.parametrize(
    "where", [(runner, "begin"), (runner, "judge"), (Completer, "put")], ids=lambda each: each[1]
)
def test_what_escapes_a_place_ends_neither_it_nor_its_task(
    name: str,
    error: BaseException,
    where: tuple[Any, str],
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(ctx: Any) -> str:
        return "done"

    handlers["jobs.thread"], handlers["jobs.coroutine"] = lambda ctx: "done", answer
    kind = Kind.THREAD if name == "jobs.thread" else Kind.COROUTINE
    count = abandoned[kind]
    once(monkeypatch, *where, error)
    task = make_task(name=name, data={}, max_attempts=1)

    with working(threads=1, coroutines=1, timing=patient(tend_every=0.02)):
        wait_for(lambda: states() == ["succeeded"])

    assert attempts(task) == [(1, "returned")]
    assert abandoned[kind] == count + 1
    assert "task.abandoned" in logged(caplog, task_id=task.pk)


@pytest.mark.parametrize("how", ["exits", "stops"])
def test_a_loop_that_ends_goes_on_with_what_it_had(how: str, handlers: Handlers) -> None:
    began = asyncio.Event()

    async def exits() -> None:
        raise SystemExit

    async def ends(ctx: Any) -> str:
        if how == "stops":
            asyncio.get_running_loop().stop()
        else:
            asyncio.create_task(exits())
        await asyncio.sleep(0.01)
        began.set()
        return "ended"

    async def waits(ctx: Any) -> str:
        await began.wait()
        return "waited"

    handlers["jobs.ends"], handlers["jobs.waits"] = ends, waits
    tasks = [make_task(name=name, data={}, max_attempts=1) for name in ("jobs.waits", "jobs.ends")]
    with working(coroutines=2, timing=patient(tend_every=0.02)):
        wait_for(lambda: states() == ["succeeded"] * 2)

    assert [row_of(task)["task_output"] for task in tasks] == ["waited", "ended"]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("services", (recovery, "_sweep")),
        ("housekeeping", (housekeeping, "once")),
        ("services", (WorkerQuerySet, "seen")),
        ("services", (scheduler, "_look")),
        ("watcher", (process.WorkerProcess, "ensure_running")),
        ("task-results", (process.WorkerProcess, "_stored")),
    ],
    ids=lambda each: each if isinstance(each, str) else each[1],
)
def test_a_thread_of_a_worker_that_ends_is_started_again(
    name: str, where: tuple[Any, str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TASK_QUEUE = {**settings.TASK_QUEUE, "EXAMINE_EVERY": 0.01}
    count = replaced[name]
    once(monkeypatch, *where, SystemExit())

    with watched(seen_every=0.1) as worker:
        for number in range(2):
            make_task(name="jobs.echo", data={})
            wait_for(lambda: states() == ["succeeded"] * (number + 1))  # noqa: B023
        wait_for(lambda: replaced[name] == count + 1)
        wait_for(lambda: Worker.objects.filter(name=worker.name).exists())


def test_schedules_that_take_long_to_look_at_get_a_thread_and_recovery_waits_no_more(
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    limits(longest_tick=0.0)
    looked_on: set[str] = set()

    def look() -> tuple[int, float]:
        looked_on.add(threading.current_thread().name)
        return 0, 0.01

    monkeypatch.setattr(scheduler, "_look", look)
    task = make_task(name="jobs.echo", data={}, state="running", holder="gone")
    with watched() as worker:
        wait_for(lambda: "scheduler" in looked_on)
        looked_on.clear()
        wait_for(lambda: looked_on)
        expire(task)
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)
        wait_for(Worker.objects.filter(name=worker.name).exists)

    assert looked_on == {"scheduler"}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has connections for nothing")
def test_an_idle_worker_has_three_connections() -> None:
    """To claim, for services, and to listen."""

    def opened() -> int:
        """Those of an earlier test may end at any moment, and autovacuum begin at any."""
        since = "backend_type = 'client backend' AND backend_start > %s"
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                f"WHERE datname = current_database() AND {since}",
                [began],
            )
            count: int = cursor.fetchone()[0]
        return count

    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        began = cursor.fetchone()[0]
    task = make_task(name="jobs.echo", data={})
    with watched(completer_idle=0.1, slot_idle=0.1) as worker:
        wait_for(lambda: worker.poller.listener.hears)
        wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED)
        wait_for(Worker.objects.filter(name=worker.name).exists)
        wait_for(lambda: opened() == 3)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="there is no network to SQLite")
def test_what_is_given_up_waits_no_longer_for_an_answer_than_the_engine_does(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.TASK_QUEUE |= {"ANSWER_TIMEOUT": 0.5, "HANDLER_ANSWER_TIMEOUT": None}
    limits(longest_look=0.01)
    given_up: list[Any] = [["a task"]]
    monkeypatch.setattr(
        Executors, "ensure_running", lambda executors: given_up.pop() if given_up else []
    )
    asked = threading.Event()

    def give_up(attempts: list[Any]) -> None:
        with connection.cursor() as cursor:
            asked.set()
            cursor.execute("SELECT pg_sleep(%s)", [PATIENCE])

    monkeypatch.setattr(process, "give_up", give_up)
    with watched():
        assert asked.wait(PATIENCE)
        wait_for(lambda: "worker.tending_failed" in logged(caplog))
    assert "connection.cut_off" in logged(caplog, setting="TASK_QUEUE['ANSWER_TIMEOUT']")


def test_timeouts_are_watched_again_when_their_thread_has_ended(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    handlers["jobs.long"] = lambda ctx: let_go.wait(PATIENCE)
    once(monkeypatch, Timekeeper, "due", SystemExit())
    task = make_task(name="jobs.long", data={}, max_attempts=1, timeout=0.05)
    with watched():
        wait_for(lambda: row_of(task)["status"] == TaskStatus.FAILED)
        let_go.set()


@pytest.mark.parametrize("error", [SystemExit(), ValueError("ours")], ids=repr)
def test_what_escapes_the_main_thread_ends_the_worker_in_good_order(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerProcess(stop_timeout=0)
    raised: list[BaseException] = []
    once(monkeypatch, worker.executors, "submit", error)
    task = make_task(name="jobs.echo", data={})

    def run() -> None:
        try:
            worker.run()
        except BaseException as failure:
            raised.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)

    assert raised == [error]
    row = row_of(task)
    assert (row["status"], row["grants"], row["attempts"]) == (TaskStatus.READY, 1, 0)
    assert attempts(task) == []
    # A service that was at it may take its lease as the worker ends.
    wait_for(lambda: keeper.holds == [])
    assert Worker.objects.get(name=worker.name).stopped_at is not None


# The proof


class Carrier:
    """A carrier of a task, for as long as it is set to."""

    alive = True

    def is_alive(self) -> bool:
        return self.alive


@pytest.mark.django_db
def test_a_task_is_renewed_as_long_as_what_carries_it_goes_on(manual_keeper: Keeper) -> None:
    task = make_task(name="jobs.echo", data={}, state="running")
    attempt = kept(task, manual_keeper)
    attempt.carrier = carrier = Carrier()
    attempt.due_at = 0.0
    manual_keeper.renew_due()
    assert manual_keeper.renewals == 1

    carrier.alive = False
    attempt.due_at = 0.0
    manual_keeper.renew_due()

    assert manual_keeper.renewals == 1
    assert attempt.is_over
    assert manual_keeper.holds == []


@pytest.mark.parametrize("heard", ["loss", "cancellation"])
def test_a_task_hears_of_its_end_though_receivers_of_users_hang(heard: str) -> None:
    threaded, let_go = Keeper(), threading.Event()
    task = make_task(name="jobs.echo", data={}, state="running")
    attempt = kept(task, threaded)
    for _ in range(MAX_THREADS + 2):
        threaded.call(partial(let_go.wait, PATIENCE))

    if heard == "loss":
        attempt.mark_lost("somebody took it")
    else:
        attempt.renewed(clock(), Renewal(timezone.now(), 30.0, "ann"))

    try:
        wait_for(lambda: attempt.is_notified, timeout=5)
    finally:
        let_go.set()
        threaded.stop()


def test_a_worker_whose_loop_is_blocked_for_three_ttl_ends_to_be_started_again(
    handlers: Handlers, holder_clock: FakeClock
) -> None:
    began, release = threading.Event(), threading.Event()

    async def block(ctx: Any) -> None:
        began.set()
        release.wait(PATIENCE)

    handlers["jobs.block"] = block
    make_task(name="jobs.block", data={})
    with working(stop_timeout=0, ttl=10) as worker:
        assert began.wait(PATIENCE)
        wait_for(lambda: worker.executors[Kind.COROUTINE].room == 99)  # asks the loop
        holder_clock.advance(30)
        assert worker.executors[Kind.COROUTINE].blocked
        assert not worker.executors.stuck_reason
        holder_clock.advance(0.1)
        wait_for(lambda: worker.failed)
        release.set()
        wait_for(ended(worker))


def test_a_result_that_was_stored_as_its_thread_ended_is_not_stored_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = replaced["task-results"]
    once(monkeypatch, completer, "detach_all", SystemExit())
    task = make_task(name="jobs.echo", data={"x": 1})

    with watched() as worker:
        wait_for(lambda: replaced["task-results"] == count + 1 and not worker.attempts)

    assert (row_of(task)["status"], row_of(task)["task_output"]) == ("succeeded", {"x": 1})
    assert attempts(task) == []


# A thread that is to last


def test_a_lasting_thread_ends_with_its_work_and_not_before() -> None:
    steps: list[Callable[[], object]] = [lambda: _raise(SystemExit()), lambda: None]
    thread = LastingThread("work", lambda: steps.pop(0)())

    def ensure_running() -> bool:
        thread.ensure_running()
        return not steps and not thread.is_alive()

    wait_for(ensure_running)
    thread.ensure_running()
    assert not thread.is_alive()


def test_a_lasting_thread_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    thread = LastingThread("work", done.set)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda each: _raise(RuntimeError("no more")))
        for _ in range(3):
            thread.ensure_running()
    assert [record.levelname for record in caplog.records] == ["ERROR"]

    thread.ensure_running()

    assert done.wait(PATIENCE)
    thread.join(PATIENCE)


def test_a_lasting_thread_that_two_tend_at_a_time_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, over = threading.Barrier(2), threading.Event()
    started: list[str] = []

    def start(name: str, work: Callable[[], object]) -> threading.Thread:
        started.append(name)
        with suppress(threading.BrokenBarrierError):  # none other comes here
            both.wait(0.05)
        return start_thread(name, work)

    monkeypatch.setattr(runtime_threads, "start_thread", start)
    thread = LastingThread("work", lambda: over.wait(PATIENCE))
    tending = [threading.Thread(target=thread.ensure_running) for _ in range(2)]
    for each in tending:
        each.start()
    for each in tending:
        each.join(PATIENCE)
    over.set()
    thread.join(PATIENCE)

    assert started == ["work"]


class Ends:
    """Is watched, and raises what it was given, one after the other."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.was_watched = threading.Event()

    def ensure_running(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.was_watched.set()


@pytest.fixture
def threads() -> Iterator[Callable[..., ServiceThreads]]:
    """Makes threads for services, which end with the test."""
    made: list[ServiceThreads] = []

    def make(*watched: Any) -> ServiceThreads:
        made.append(ServiceThreads(threading.Event(), *watched))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def ticks(*errors: BaseException) -> Service:
    """Raises ``errors`` first."""
    left = list(errors)

    def tick() -> float:
        if left:
            raise left.pop(0)
        return 0.02

    return Service(tick, Mock())


def test_what_cannot_be_watched_keeps_nothing_else_from_being(
    threads: Callable[..., ServiceThreads], caplog: pytest.LogCaptureFixture
) -> None:
    count, fails, ends = replaced["work"], Ends(ValueError("odd"), MemoryError()), Ends()
    threads(fails, ends).start("work", ticks(SystemExit()))

    wait_for(lambda: replaced["work"] == count + 1)
    assert ends.was_watched.wait(PATIENCE)
    assert fails.was_watched.wait(PATIENCE)
    assert "worker.tending_failed" in logged(caplog, error="odd")


def _raise(error: BaseException) -> None:
    raise error
