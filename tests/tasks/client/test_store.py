"""Renewals of the tasks that a remote worker has in hand."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest

from leasing.client import ServiceUnavailable, calls
from leasing.client.calls import Proof
from leasing.client.transport import Transport
from leasing.holding.term import Term
from leasing.runtime.clock import clock
from tasks.client import TaskClient, Worker
from tasks.client.calls import Claimed, RemoteTask, TaskCalls
from tasks.client.store import TaskStore
from tests.limits import Limits

URL = "http://localhost/api"


def test_the_renewing_thread_leaves_a_request_that_hangs() -> None:
    hangs = threading.Event()

    def hang(request: httpx.Request) -> httpx.Response:
        store.abort()  # however soon it comes
        hangs.wait(30)
        return httpx.Response(503)

    store = TaskStore(TaskCalls(Transport(URL, transport=httpx.MockTransport(hang))))
    store.open()
    try:
        with pytest.raises(ServiceUnavailable, match="No answer in time"):
            store.renew({Proof("17", "k" * 43): uuid.uuid4()}, timeout=60)
    finally:
        hangs.set()


def test_what_a_long_claim_brought_is_dropped_only_if_it_was_lost(
    limits: Limits,
) -> None:
    limits(stale_after=0.0)
    worker = Worker(TaskClient(URL, transport=httpx.MockTransport(answered(202, 409))))
    renewed, lost, unanswered = (claimed(number) for number in (17, 18, 19))
    limits(max_tasks=2)

    claimed_at = renewed.term.sent_at

    fresh = worker._fresh([renewed, lost, unanswered])

    assert [each.task.id for each in fresh] == [17, 19]
    assert fresh[0].term.sent_at > claimed_at
    assert fresh[1] is unanswered


def claimed(number: int) -> Claimed:
    """Return a task that was claimed a second ago."""
    task = RemoteTask(number, "jobs.echo", "default", "running", 1, 10, "", {"task_data": {}})
    proof, now = Proof(str(number), "k" * 43), datetime.now(UTC)
    grant = Term(proof, uuid.uuid4(), 7, "me", task.resource, 30, 30, now, clock() - 1)
    return Claimed(task, grant, None, None)


def answered(*statuses: int) -> Callable[[httpx.Request], httpx.Response]:
    """Return the handler of a service that answers one batch, and then none."""
    batches = [[{"status": status, "ttl": 30, "remaining": 30} for status in statuses]]

    def answer(request: httpx.Request) -> httpx.Response:
        if not batches:
            return httpx.Response(500)
        return httpx.Response(200, json={"results": batches.pop()})

    return answer


def test_all_requests_of_one_renewal_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, allowed = 100.0, []

    def slowly(request: httpx.Request) -> httpx.Response:
        nonlocal now
        now += 0.6
        allowed.append(request.extensions["timeout"]["read"])
        one = {"status": 202, "ttl": 30, "remaining": 30}
        return httpx.Response(
            200, json={"results": [one for _ in json.loads(request.content)["tasks"]]}
        )

    monkeypatch.setattr(calls, "clock", lambda: now)
    store = TaskStore(TaskCalls(Transport(URL, transport=httpx.MockTransport(slowly))))

    answer = store.renew(
        {Proof(str(number), "k" * 43): uuid.uuid4() for number in range(250)}, timeout=1.0
    )

    assert allowed == [pytest.approx(1.0), pytest.approx(0.4)]
    assert (len(answer.renewed), len(answer.lost)) == (200, 0)
