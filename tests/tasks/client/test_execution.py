"""One attempt of a remote worker, without a service: a handler begins only while its task is held.

``make mutants`` runs these tests, and none that needs a server.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from leasing.client.calls import Proof
from leasing.runtime.clock import clock
from leasing.store import Grant
from leasing.testing import ManualKeeper, manual_keeper
from tasks.client.calls import Claimed, RemoteTask
from tasks.client.completer import Outcome
from tasks.client.execution import Execution, Threads
from tasks.client.handlers import Handler


@pytest.fixture(autouse=True)
def keeper() -> Iterator[ManualKeeper]:
    """The keeper and the clocks, by hand."""
    with manual_keeper() as keeper:
        yield keeper


class Attempt:
    """A task that was claimed now, for 30 s."""

    def __init__(self) -> None:
        task = RemoteTask(17, "jobs.echo", "default", "running", 1, 1, "", {"task_data": {}})
        grant = Grant(
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
        nothing: Any = SimpleNamespace()
        completer: Any = SimpleNamespace(put=self.stored.append)
        self.execution = Execution(
            Claimed(task, grant, None, None),
            Handler("jobs.echo", lambda ctx: self.calls.append(ctx.task.id), None),
            nothing,
            nothing,
            completer,
            self.stopping,
            self.released.extend,
        )
        self.execution.hold.keep()

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
