"""One attempt of a remote worker, without a service: its handler begins only while the task is
held, and what it raises decides how the attempt ends.

``make mutants`` runs these tests, and none that needs a server.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from leasing.client.calls import Proof
from leasing.exceptions import LeaseLost
from leasing.holding.term import Term, keep_all
from leasing.runtime.clock import clock
from leasing.testing import ManualKeeper, manual_keeper
from tasks.client.calls import Claimed, RemoteTask
from tasks.client.completer import Outcome
from tasks.client.execution import Execution, Threads
from tasks.client.handlers import Handler
from tasks.exceptions import TaskCancelled


@pytest.fixture(autouse=True)
def keeper() -> Iterator[ManualKeeper]:
    """The keeper and the clocks, by hand."""
    with manual_keeper() as keeper:
        yield keeper


class Attempt:
    """A task that was claimed now, for 30 s. ``timeout`` is the task's, ``of_handler`` that of its
    handler."""

    def __init__(self, *, timeout: float | None = None, of_handler: float | None = None) -> None:
        task = RemoteTask(17, "jobs.echo", "default", "running", 1, 1, "", {"task_data": {}})
        grant = Term(
            key=Proof("17", "key"),
            grant_id=uuid.uuid4(),
            fencing_token=7,
            holder="remote-1",
            resource=task.resource,
            ttl=30.0,
            remaining=30.0,
            sent_at=clock(),
            expires_at=datetime.now(UTC),
            row=None,
        )
        self.calls: list[int] = []
        self.stored: list[Outcome] = []
        self.released: list[Any] = []
        self.stopping = threading.Event()
        nothing: Any = SimpleNamespace(is_metered=True, lost=lambda grant, reason: None)
        completer: Any = SimpleNamespace(put=self.stored.append)
        self.execution = Execution(
            Claimed(task, grant, None, timeout),
            Handler("jobs.echo", lambda ctx: self.calls.append(ctx.task.id), of_handler),
            nothing,
            nothing,
            completer,
            self.stopping,
            self.released.extend,
        )
        keep_all([self.execution.hold])

    def run(self) -> None:
        """Hand the task to a thread, and wait for its end."""
        ended = threading.Event()
        threads = Threads(1, ended.set)
        threads.submit(self.execution, 1)
        assert ended.wait(20)
        threads.close()


def test_a_task_that_is_held_is_begun() -> None:
    attempt = Attempt()

    attempt.run()

    assert attempt.calls == [17]
    assert [outcome.verb for outcome in attempt.stored] == ["complete"]


def test_a_task_whose_hold_ended_between_claim_and_begin_is_not_begun(
    keeper: ManualKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = Attempt()
    keeper.suspend(31)

    attempt.run()

    assert (attempt.calls, attempt.stored) == ([], [])
    assert attempt.released == [attempt.execution]
    assert "task:17 was lost: before it started" in caplog.text


def test_a_task_that_was_given_back_before_its_turn_is_not_begun() -> None:
    attempt = Attempt()
    attempt.execution.give_back("its worker was stopped", begun=False)

    attempt.run()

    assert attempt.calls == []
    assert [outcome.verb for outcome in attempt.stored] == ["give back"]
    assert not attempt.execution.has_begun


def test_a_worker_that_stops_begins_nothing_more() -> None:
    attempt = Attempt()
    attempt.stopping.set()

    attempt.run()

    assert attempt.calls == []
    (outcome,) = attempt.stored
    assert (outcome.verb, outcome.said["begun"]) == ("give back", False)


def end(attempt: Attempt, error: BaseException | None = None) -> tuple[str, str | None]:
    """End the attempt as if its handler had raised ``error``. Returns the verb and the text of what
    is stored."""
    assert attempt.execution.begin()
    attempt.execution.judge(error=error)
    (outcome,) = attempt.stored
    said = outcome.said
    return outcome.verb, said["reason"] if isinstance(said, dict) else said and said[0]


def test_a_handler_that_gave_its_task_back_fails_it_only_by_an_error() -> None:
    attempt, failed = Attempt(), Attempt()
    for each in (attempt, failed):
        each.execution.context.give_back("not today", delay=5)

    assert end(attempt) == ("give back", "not today")
    assert end(failed, ValueError("a bug")) == ("fail", "ValueError: a bug")


def test_a_cancelled_task_is_given_back_by_the_error_of_a_cancellation_alone() -> None:
    itself, coroutine, failed, other = (Attempt() for _ in range(4))
    for each in (coroutine, failed):
        each.execution.cancelled_by = "ann"

    assert end(itself, TaskCancelled("enough")) == ("give back", "cancelled by its handler")
    assert end(coroutine, asyncio.CancelledError()) == ("give back", "cancelled by ann")
    assert end(failed, ValueError("a bug"))[0] == "fail"
    # Nobody asked for it: a library within the handler was cancelled.
    assert end(other, asyncio.CancelledError())[0] == "fail"


def test_a_stop_gives_back_what_it_interrupts_and_no_failure() -> None:
    interrupted, failed = Attempt(), Attempt()
    for each in (interrupted, failed):
        assert each.execution.begin()
        each.stopping.set()

    interrupted.execution.judge(error=asyncio.CancelledError())
    failed.execution.judge(error=ValueError("a bug"))

    assert [each.stored[0].verb for each in (interrupted, failed)] == ["give back", "fail"]


def test_a_lost_task_is_not_reported_and_the_loss_of_another_lease_is_an_error(
    keeper: ManualKeeper,
) -> None:
    lost, failed, other = Attempt(), Attempt(), Attempt()
    assert end(other, LeaseLost("reports", "it expired"))[0] == "fail"
    for each in (lost, failed):
        assert each.execution.begin()
    keeper.suspend(31)

    lost.execution.judge(error=LeaseLost("task:17", "it expired"))
    failed.execution.judge(error=ValueError("a bug"))

    assert (lost.stored, lost.released) == ([], [lost.execution])
    assert [outcome.verb for outcome in failed.stored] == ["fail"]


@pytest.mark.parametrize(
    ("timeout", "of_handler", "limit"), [(5.0, 9.0, 5.0), (5.0, None, 5.0), (None, 9.0, 9.0)]
)
def test_the_timeout_of_a_task_goes_before_that_of_its_handler(
    timeout: float | None, of_handler: float | None, limit: float
) -> None:
    attempt = Attempt(timeout=timeout, of_handler=of_handler)
    now = clock()

    assert end(attempt) == ("complete", None)

    assert attempt.execution.deadline == now + limit


def test_a_handler_goes_on_until_its_timeout_and_while_its_task_is_held(
    keeper: ManualKeeper,
) -> None:
    attempt = Attempt(timeout=1.0)
    context = attempt.execution.context
    context.ensure()
    attempt.execution.deadline = clock() + 1
    context.ensure()
    attempt.execution.deadline = clock()
    with pytest.raises(TimeoutError):
        context.ensure()

    attempt.execution.deadline = None
    keeper.suspend(31)
    for go_on in (context.ensure, lambda: context.wait(0), lambda: context.checkpoint(1)):
        with pytest.raises(LeaseLost):
            go_on()


def test_a_coroutine_that_loads_its_task_runs_at_both_ends() -> None:
    context = Attempt().execution.context

    assert asyncio.run(context.load()) is context.task
