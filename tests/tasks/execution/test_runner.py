"""One task on one thread: whatever its handler does, the worker lives and the history tells."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, connections, transaction

from leasing.exceptions import LeaseLost
from leasing.functions import database_now
from leasing.holding.keeper import Keeper
from leasing.holding.term import keep_all
from leasing.runtime.clock import clock as holder_clock
from tasks import registry
from tasks.exceptions import GiveUp, Snooze, TaskCancelled, UnknownTask
from tasks.execution import runner
from tasks.execution.attempt import Attempt
from tasks.execution.completer import store_outcomes
from tasks.execution.context import Context
from tasks.models import Task, TaskStatus
from tasks.querysets.claimed import ClaimedTask
from tasks.runtime.timing import USUAL, Timing
from tests.factories import claimed, make_task
from tests.leasing.support import FakeClock, expire
from tests.logs import logged
from tests.tasks.support import (
    Handlers,
    Reported,
    around,
    attempt,
    attempts,
    is_storing,
    kept,
    make_due,
    names_of,
    refusals,
    refusing,
    row_of,
    take_over,
)

pytestmark = pytest.mark.django_db

#: For tests in which a connection is closed, and with it the transaction around a test.
transactional = pytest.mark.django_db(transaction=True)

Run = Callable[..., Task]
Verb = Callable[..., Any]


#: As many tries as usual, one after the other.
AT_ONCE = Timing(store_pauses=(0.0,) * len(USUAL.store_pauses))


@pytest.fixture(autouse=True)
def closings(connection_stays: list[str]) -> list[str]:
    """Return the moments at which old connections would have been closed."""
    return connection_stays


class Running:
    """A claimed task with a hold that renews only by hand."""

    def __init__(self, keeper: Keeper) -> None:
        self.stopping = threading.Event()
        self._keeper = keeper

    def attempt(self, task: Task) -> Attempt:
        return kept(task, self._keeper, self.stopping)

    def __call__(self, function: Callable[..., Any] | None = None, **options: Any) -> Task:
        """Run a task to its end, with ``function`` as its handler."""
        task: Task = make_task(name="jobs.echo", state="running", holder="ann", **options)
        runner.run(self.attempt(task), timing=AT_ONCE)
        assert self._keeper.holds == []
        task.refresh_from_db()
        return task


@pytest.fixture
def run(manual_keeper: Keeper, handlers: Handlers) -> Run:
    running = Running(manual_keeper)

    def run(function: Callable[..., Any], **options: Any) -> Task:
        handlers["jobs.echo"] = function
        return running(**options)

    return run


def raising(error: BaseException) -> Callable[..., Any]:
    def handler(ctx: Any, **data: Any) -> None:
        raise error

    return handler


# What is logged of an error


async def failing(ctx: Any, **data: Any) -> None:
    await asyncio.sleep(0)
    raise KeyError("printer")


@pytest.mark.parametrize("handler", [raising(KeyError("printer")), failing], ids=["plain", "async"])
def test_the_record_of_a_failed_attempt_has_the_error_with_its_traceback(
    run: Run, caplog: pytest.LogCaptureFixture, handler: Callable[..., Any]
) -> None:
    run(handler, max_attempts=2)
    run(handler, max_attempts=1)

    failures = {
        record.event: "".join(traceback.format_exception(*record.exc_info))
        for record in caplog.records
        if hasattr(record, "event") and record.exc_info
    }
    assert list(failures) == ["task.attempt_failed", "task.failed"]
    for printed in failures.values():
        assert f"in {handler.__name__}" in printed
        assert "KeyError: 'printer'" in printed


# What a handler returns


def test_a_handler_gets_its_data_and_what_it_returns_is_stored(run: Run) -> None:
    given: dict[str, Any] = {}

    def handler(ctx: Any, **data: Any) -> dict[str, int]:
        given.update(data, attempt=ctx.attempt, token=ctx.fencing_token, task=ctx.task.pk)
        ctx.ensure()
        assert not ctx.stopping
        return {"pages": 12}

    task = run(handler, data={"report_id": 42})

    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, {"pages": 12})
    assert given == {
        "report_id": 42,
        "attempt": 1,
        "token": task.fencing_token,
        "task": task.pk,
    }
    assert attempts(task) == []


@pytest.mark.parametrize(
    "output",
    [object(), {1, 2}, b"bytes", float("nan"), "a\0b", "\ud800", {"x": object()}],
    ids=["an object", "a set", "bytes", "NaN", "NUL", "a lone surrogate", "deep inside"],
)
def test_a_handler_that_returns_no_json_has_failed_and_is_told_so(run: Run, output: Any) -> None:
    task = run(lambda ctx, **data: output)

    assert (task.status, task.attempts, task.max_attempts) == (TaskStatus.FAILED, 1, 10)
    assert task.last_error.startswith("InvalidOutput: The output")
    assert attempts(task) == [(1, "failed")]


# What a handler raises


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no luck"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        RecursionError("too deep"),
        MemoryError(),
        OperationalError("the handler's own database is away"),
        UnknownTask("not ours"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_fails_its_attempt_and_nothing_else(
    run: Run, error: BaseException
) -> None:
    task = run(raising(error), max_attempts=2)

    assert (task.status, task.attempts) == (TaskStatus.READY, 1)
    assert task.last_error.startswith(type(error).__name__)
    assert type(error).__name__ in attempt(task).traceback
    assert "in handler" in attempt(task).traceback


@pytest.mark.parametrize("key", ["", "self", "class"])
def test_data_may_have_any_keys(run: Run, key: str) -> None:
    assert run(lambda ctx, **data: data, data={key: 1}).status == TaskStatus.SUCCEEDED


def test_a_lease_that_the_handler_lost_elsewhere_fails_its_attempt(run: Run) -> None:
    task = run(raising(LeaseLost("crane:1", "bob has held it")))

    assert task.last_error == "LeaseLost: crane:1 was lost: bob has held it."
    assert attempts(task) == [(1, "failed")]


# A handler that is missing


def test_a_task_whose_handler_is_missing_waits_and_spends_no_attempt(
    manual_keeper: Keeper, handlers: Handlers, caplog: pytest.LogCaptureFixture, reported: Reported
) -> None:
    """As during a deploy: a worker with the old code has claimed a task of the new."""
    task = make_task(name="jobs.echo", max_attempts=1)
    del handlers["jobs.echo"]
    mine = claimed(task, "old")
    running = Running(manual_keeper)
    start = database_now("default")

    runner.run(running.attempt(mine), timing=AT_ONCE)

    row = row_of(task)
    assert (row["status"], row["attempts"]) == (TaskStatus.READY, 0)
    wait = row["scheduled_at"] - start
    assert timedelta(seconds=60) <= wait < timedelta(seconds=75)
    assert attempts(task) == [(1, "returned")]
    assert "No handler is registered for 'jobs.echo'" in attempt(task).error
    assert "deploy" in attempt(task).error
    assert "task.no_handler" in logged(caplog, task_id=task.pk)
    assert names_of(reported)[-1] == "returned"
    assert Task.objects.claim("old") == []


def test_a_task_whose_data_the_handler_here_does_not_take_waits_and_spends_no_attempt(
    manual_keeper: Keeper, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    """As during a deploy: the new code has enqueued with an argument that the old does not know."""
    task = make_task(name="jobs.echo", data={"report_id": 42, "day": "mon"}, max_attempts=1)
    called: list[int] = []

    def build(ctx: Any, report_id: int) -> None:
        called.append(report_id)

    handlers["jobs.echo"] = build
    mine = claimed(task, "old")
    start = database_now("default")

    runner.run(Running(manual_keeper).attempt(mine), timing=AT_ONCE)

    row = row_of(task)
    assert (row["status"], row["attempts"], called) == (TaskStatus.READY, 0, [])
    assert row["scheduled_at"] - start >= timedelta(seconds=60)
    assert attempts(task) == [(1, "returned")]
    assert attempt(task).error == (
        "build(ctx, report_id) does not take this data: 'day' is unknown. Another release may have "
        "enqueued it, as during a deploy."
    )
    assert "task.no_handler" in logged(caplog, task_id=task.pk)


# A task that is lost while its handler runs


def lose(task: Task) -> None:
    expire(task)
    Task.objects.filter(pk=task.pk).recover()
    make_due(task)


def test_a_handler_that_asks_stops_when_its_task_is_lost(
    run: Run, manual_keeper: Keeper, clock: FakeClock, reported: Reported, caplog: Any
) -> None:
    steps = []

    def handler(ctx: Any, **data: Any) -> None:
        for step in range(3):
            steps.append(step)
            if step == 1:
                lose(ctx.task)
                clock.advance(15)
                manual_keeper.renew_due()
            ctx.ensure()

    task = run(handler)

    assert steps == [0, 1]
    assert (task.status, attempts(task)) == (TaskStatus.READY, [(1, "lost")])
    assert names_of(reported)[-3:] == ["claimed", "recovered", "lost"]
    assert "task.lost" in logged(caplog, task_id=task.pk)
    assert refusals(task) == [""]


def test_the_result_of_a_task_that_was_lost_is_refused_and_noted(
    run: Run, manual_keeper: Keeper, clock: FakeClock, reported: Reported, caplog: Any
) -> None:
    def handler(ctx: Any, **data: Any) -> dict[str, str]:
        lose(ctx.task)
        clock.advance(15)
        manual_keeper.renew_due()
        return {"late": "result"}

    task = run(handler)

    assert (task.status, task.task_output) == (TaskStatus.READY, None)
    assert refusals(task) == ["complete"]
    assert names_of(reported)[-3:] == ["recovered", "lost", "refused"]
    assert f"Discarded the result of task:{task.pk}: lease lost (" in caplog.text


def give_back(ctx: Any) -> None:
    ctx.give_back("mine")


def complete(ctx: Any) -> None:
    with ctx.completing():
        pass


@pytest.mark.parametrize(
    "end",
    [
        lambda ctx: {"late": "result"},
        lambda ctx: raising(ValueError("too late"))(ctx),
        lambda ctx: raising(Snooze(5))(ctx),
        lambda ctx: raising(TaskCancelled("no"))(ctx),
        lambda ctx: ctx.progress(done=1),
        lambda ctx: ctx.checkpoint({"page": 7}),
        give_back,
        complete,
    ],
    ids=["return", "raise", "snooze", "cancel", "progress", "checkpoint", "give back", "complete"],
)
def test_a_handler_that_reads_its_task_again_ends_no_attempt_of_somebody_else(
    end: Callable[..., Any], run: Run
) -> None:
    """Its writes prove its own grant, whatever grant the row has by now."""

    def handler(ctx: Any, **data: Any) -> Any:
        ctx.progress()
        take_over(ctx.task)
        ctx.task.refresh_from_db()
        return end(ctx)

    task = run(handler)

    assert (task.status, task.holder) == (TaskStatus.RUNNING, "thief")
    assert (task.task_output, task.progress, task.checkpoint) == (None, None, None)


def test_a_hold_that_is_lost_by_its_clock_alone_may_still_hand_in_its_result(
    run: Run, manual_keeper: Keeper, clock: FakeClock
) -> None:
    """The database decides, and nobody else has had the task."""

    def handler(ctx: Any, **data: Any) -> dict[str, bool]:
        clock.advance(100)
        manual_keeper.declare_lost()
        return {"late": True}

    task = run(handler)

    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, {"late": True})


def test_a_task_whose_lease_may_be_over_does_not_begin(
    manual_keeper: Keeper, clock: FakeClock, handlers: Handlers
) -> None:
    """The machine was suspended, and nobody has told of the loss yet."""
    called: list[Any] = []
    handlers["jobs.echo"] = lambda ctx, **data: called.append(data)
    task = make_task(name="jobs.echo", state="running", holder="ann")
    attempt = Running(manual_keeper).attempt(task)
    clock.advance(60)

    runner.run(attempt, timing=AT_ONCE)

    assert (called, attempt.is_lost) == ([], False)
    assert row_of(task)["status"] == TaskStatus.RUNNING


def test_a_renewal_under_way_while_the_task_completes_tells_of_no_loss(
    run: Run, manual_keeper: Keeper, clock: FakeClock, reported: Reported
) -> None:
    """The renewal finds the row completed, before the holder could say that it has let go."""

    def complete_then_renew(complete: Verb, results: Any) -> Any:
        refused = complete(results)
        clock.advance(15)
        manual_keeper.renew_due()
        return refused

    with around("complete_claimed", complete_then_renew):
        task = run(lambda ctx, **data: None)
    assert task.status == TaskStatus.SUCCEEDED
    assert names_of(reported) == ["enqueued", "claimed", "completed"]


def test_a_task_is_renewed_until_its_result_is_stored(
    run: Run, manual_keeper: Keeper, clock: FakeClock
) -> None:
    def renew_then_complete(complete: Verb, results: Any) -> Any:
        clock.advance(15)
        manual_keeper.renew_due()
        return complete(results)

    with around("complete_claimed", renew_then_complete):
        assert run(lambda ctx, **data: None).renewals == 1


# A database that is away


@contextmanager
def away(
    verb: str, times: int, error: BaseException, *, after: bool = False
) -> Iterator[list[int]]:
    """Make the next ``times`` of ``verb`` fail; ``after``: once its commit has arrived."""
    tries: list[int] = []

    def failing(store: Verb, *args: Any, **options: Any) -> Any:
        tries.append(1)
        answer = store(*args, **options) if after or len(tries) > times else None
        if len(tries) <= times:
            raise error
        return answer

    with around(verb, failing):
        yield tries


GONE = OperationalError("server closed the connection unexpectedly")


@transactional
@pytest.mark.parametrize("error", [GONE, InterfaceError("connection already closed")])
def test_a_result_is_stored_when_the_database_comes_back(
    run: Run, error: Exception, caplog: Any
) -> None:
    with away("complete_claimed", 5, error) as tries:
        task = run(lambda ctx, **data: {"kept": True})

    assert len(tries) == 6
    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, {"kept": True})
    assert logged(caplog).count("task.result_delayed") == 1, "that it waits is told once"
    assert refusals(task) == []


@transactional
def test_a_result_is_stored_over_a_new_connection_where_the_old_one_broke(run: Run) -> None:
    tries: list[Any] = []

    def break_first(complete: Verb, results: Any) -> Any:
        connection.ensure_connection()
        tries.append(connection.connection)
        if len(tries) == 1:
            tries[0].close()
        return complete(results)

    with around("complete_claimed", break_first):
        task = run(lambda ctx, **data: {"kept": True})

    assert len(tries) == 2
    assert (task.status, task.task_output) == (TaskStatus.SUCCEEDED, {"kept": True})


@transactional
def test_that_many_results_wait_is_told_in_one_line(
    manual_keeper: Keeper, handlers: Handlers, caplog: Any
) -> None:
    handlers["jobs.echo"] = lambda ctx, **data: None
    running = Running(manual_keeper)
    tasks = [make_task(name="jobs.echo", state="running", holder="ann") for _ in range(3)]
    done = [runner.work(running.attempt(task)) for task in tasks]

    me = threading.current_thread()  # not what threads of other tests still ask
    refused = iter([True, True])  # the results, and the question if the database is there

    def is_away(sql: str, params: Any) -> bool:
        return threading.current_thread() is me and is_storing(sql) and next(refused, False)

    with refusing(GONE, is_away):
        store_outcomes(done, pauses=AT_ONCE.store_pauses)

    said = [each for each in caplog.records if each.event == "task.result_delayed"]
    assert [(each.levelname, each.task_id, each.waiting) for each in said] == [
        ("WARNING", tasks[0].pk, 3)
    ]
    assert not Task.objects.running().exists()


@transactional
@pytest.mark.parametrize(
    ("verb", "handler", "status"),
    [
        ("complete_claimed", lambda ctx, **data: {"once": True}, "succeeded"),
        ("fail_many", raising(ValueError("no luck")), "ready"),
        ("fail_many", raising(GiveUp("no hope")), "failed"),
    ],
    ids=["complete", "fail", "give up"],
)
def test_a_result_whose_answer_was_lost_on_the_way_is_stored_once(
    run: Run,
    reported: Reported,
    verb: str,
    handler: Any,
    status: str,
) -> None:
    with away(verb, 1, GONE, after=True) as tries:
        task = run(handler)

    assert len(tries) == 1
    assert task.status == status
    assert names_of(reported).count("refused") == 0
    assert len(attempts(task)) == int(verb == "fail_many")
    assert set(refusals(task)) <= {""}


def completed_by_another(task: Task) -> None:
    lose(task)
    Task.objects.complete(claimed(task, "bob"), {"by": "bob"})


@transactional
@pytest.mark.parametrize(
    ("meanwhile", "status"), [(lose, "ready"), (completed_by_another, "succeeded")]
)
def test_a_task_that_was_lost_while_the_database_was_away_is_refused_and_noted(
    run: Run, meanwhile: Callable[[Task], None], status: str
) -> None:
    """Lost is not arrived: neither while the row still has the grant, nor when it has ended
    under another."""
    tries: list[Any] = []

    def away_and_lost(complete: Verb, results: Any) -> Any:
        ((claimed, output),) = results
        tries.append(output)
        if tries == [{"late": True}]:
            meanwhile(Task.objects.get(pk=claimed.id))
            raise GONE
        return complete(results)

    with around("complete_claimed", away_and_lost):
        task = run(lambda ctx, **data: {"late": True})

    assert tries.count({"late": True}) == 2
    assert task.status == status
    assert task.task_output != {"late": True}
    assert refusals(task) == ["complete"]


@transactional
def test_a_result_that_cannot_be_stored_is_left_to_recovery(run: Run, caplog: Any) -> None:
    with away("complete_claimed", 99, GONE) as tries:
        task = run(lambda ctx, **data: None)

    assert len(tries) == len(AT_ONCE.store_pauses) + 1
    assert task.status == TaskStatus.RUNNING
    assert "task.result_not_stored" in logged(caplog)
    expire(task)
    assert Task.objects.recover() == 1


@transactional
@pytest.mark.parametrize("loses_its_lease", [False, True])
def test_a_result_waits_for_the_database_while_its_lease_is_trusted(
    manual_keeper: Keeper, handlers: Handlers, *, loses_its_lease: bool
) -> None:
    handlers["jobs.echo"] = lambda ctx, **data: None
    task = make_task(name="jobs.echo", state="running", holder="ann")
    attempt = Running(manual_keeper).attempt(task)
    done = runner.work(attempt)
    me, statements = threading.current_thread(), list[str]()

    def is_away(sql: str, params: Any) -> bool:
        if threading.current_thread() is not me:
            return False
        statements.append(sql)
        if loses_its_lease and len(statements) == 30:
            attempt.mark_lost("the database is away")
        return len(statements) < 60

    with refusing(GONE, is_away):
        store_outcomes([done], pauses=AT_ONCE.store_pauses)

    assert (len(statements) < 60) is loses_its_lease
    assert row_of(task)["status"] == ("running" if loses_its_lease else "succeeded")


def test_the_pauses_between_the_tries_outlast_a_restart_of_the_database() -> None:
    assert 15 < sum(USUAL.store_pauses) < 60


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(1)])
def test_an_error_of_our_own_while_storing_reaches_no_worker(
    run: Run, caplog: Any, error: BaseException
) -> None:
    with away("complete_claimed", 1, error) as tries:
        task = run(lambda ctx, **data: None)

    assert len(tries) == 1
    assert task.status == TaskStatus.RUNNING
    assert "task.result_not_stored" in logged(caplog)


@transactional
def test_a_transaction_of_the_handlers_that_failed_is_over_when_the_result_is_stored(
    run: Run,
) -> None:
    def handler(ctx: Any, **data: Any) -> None:
        with transaction.atomic():
            Task.objects.filter(pk=ctx.task.pk).update(priority=7)
            raise ValueError("no luck")

    task = run(handler)

    assert (task.priority, task.status) == (0, TaskStatus.READY)
    assert not connection.in_atomic_block


def begin_and_forget() -> None:
    transaction.atomic().__enter__()


def turn_autocommit_off() -> None:
    transaction.set_autocommit(False)


@transactional
@pytest.mark.parametrize("leave", [begin_and_forget, turn_autocommit_off])
@pytest.mark.parametrize("raises", [False, True])
def test_a_transaction_that_the_handler_left_open_fails_its_attempt_and_no_other_task(
    run: Run, leave: Callable[[], None], raises: bool
) -> None:
    """Its own writes are rolled back, so a success would be a lie."""

    def handler(ctx: Any, **data: Any) -> dict[str, bool]:
        leave()
        Task.objects.filter(pk=ctx.task.pk).update(priority=7)
        if raises:
            raise ValueError("no luck")
        return {"lost": True}

    task = run(handler)

    assert (task.status, task.priority, task.task_output) == (TaskStatus.READY, 0, None)
    expected = "ValueError: no luck" if raises else "RuntimeError: The handler left a transaction"
    assert task.last_error.startswith(expected)
    assert run(lambda ctx, **data: "next").task_output == "next"


@transactional
@pytest.mark.parametrize("leave", [begin_and_forget, turn_autocommit_off])
def test_it_is_noticed_also_after_handlers_that_asked_for_no_connection(
    leave: Callable[[], None],
) -> None:
    task = make_task(name="jobs.echo", state="running", holder="ann")
    attempt = Attempt(ClaimedTask.of(task), threading.Event())
    said: list[str] = []

    def call(function: Callable[..., Any]) -> Any:
        known = registry.Handler("jobs.echo", function)
        return runner.call_handler(known, Context(attempt), {})

    def a_thread_of_its_own() -> None:
        try:
            assert call(lambda ctx: 1) == 1
            with pytest.raises(RuntimeError, match="left a transaction open"):
                call(lambda ctx: leave())
            assert call(lambda ctx: 2) == 2
            said.append("noticed")
        finally:
            connections.close_all()

    thread = threading.Thread(target=a_thread_of_its_own)
    thread.start()
    thread.join()

    assert said == ["noticed"]


# Holding what was claimed


@transactional
def test_a_claimed_task_is_held_from_the_moment_its_claim_was_sent() -> None:
    before = holder_clock()
    task = make_task(state="running", ttl=30)
    assert before <= task.sent_at <= holder_clock()
    task.sent_at = sent_at = before - 5

    hold = Attempt(ClaimedTask.of(task), threading.Event())
    keep_all([hold])

    try:
        assert hold.key == task.pk
        assert (hold.grant_id, hold.fencing_token) == (task.grant_id, task.fencing_token)
        assert hold.resource == task.lease_resource
        # The database's clock went on between the grant and its look at it.
        remaining = (task.expires_at - task.now).total_seconds()
        assert 0 < remaining <= 30
        assert hold.trusted_until == pytest.approx(sent_at + remaining - 0.6)
    finally:
        hold.detach()


def test_an_attempt_has_what_a_thread_looks_for_though_another_has_just_filled_it_in() -> None:
    attempt = Attempt(ClaimedTask.of(make_task(state="running", ttl=30)), threading.Event())
    assert attempt.ttl == 30

    # The thread had missed it before.
    assert attempt.__getattr__("ttl") == 30
    assert not hasattr(attempt, "nothing_of_the_kind")


def test_connections_that_are_too_old_are_closed_before_and_after(
    run: Run, closings: list[str]
) -> None:
    run(lambda ctx, **data: closings.append("worked"))

    assert closings == ["closed", "worked", "closed"]
