"""Tasks over HTTP: enqueued once, claimed once, ended once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta

import httpx
import pytest

from leasing.exceptions import LeaseLost
from leasing.models import ApiToken
from leasing.validation.names import MAX_BODY
from tasks.client import AccessDenied, AsyncTaskClient, Claimed, RequestRefused, TaskClient
from tasks.exceptions import NotSerializable
from tasks.models import Task, TaskAttempt
from tests.processes import wait_for
from tests.remote import Service, answered, swallowed


def row() -> Task:
    return Task.objects.get()


def test_a_task_is_enqueued_once_although_the_answer_was_lost(
    service: Service, remote: TaskClient
) -> None:
    service.network.faults = [swallowed]

    task = remote.enqueue("jobs.echo", {"word": "hello"}, priority=3, delay=timedelta(seconds=60))

    stored = row()
    assert (task.id, task.name, task.status) == (stored.pk, "jobs.echo", "ready")
    assert (task.data, stored.priority) == ({"word": "hello"}, 3)
    assert stored.scheduled_at > stored.created_at + timedelta(seconds=50)
    assert remote.get(task.id) == task
    assert remote.get(task.id + 1) is None


def test_a_caller_may_name_its_request(remote: TaskClient) -> None:
    key = uuid.uuid4()

    first = remote.enqueue("jobs.echo", {"word": "a"}, idempotency_key=key)

    assert remote.enqueue("jobs.echo", {"word": "a"}, idempotency_key=key) == first
    with pytest.raises(RequestRefused, match="already used"):
        remote.enqueue("jobs.echo", {"word": "b"}, idempotency_key=key)


def test_what_the_service_refuses_is_an_error(remote: TaskClient) -> None:
    with pytest.raises(RequestRefused, match=r"jobs\.none") as refused:
        remote.enqueue("jobs.none")
    assert refused.value.status == 400
    with pytest.raises(NotSerializable):
        remote.enqueue("jobs.echo", {"word": object()})
    with pytest.raises(NotSerializable):
        remote.enqueue_many("jobs.echo", [{"word": float("nan")}])
    assert not Task.objects.exists()


def test_tasks_are_claimed_renewed_and_completed_together(
    service: Service, remote: TaskClient
) -> None:
    keys = remote.enqueue_many("jobs.echo", [{"word": str(n)} for n in range(250)])
    assert len(set(keys)) == 250
    service.network.faults, service.network.at = [swallowed], "/tasks/next"

    claimed = remote.claim(100, processor="worker-9", queues=["default"], ttl=30)

    assert Task.objects.running().count() == len(claimed) == 100
    assert claimed[0].task.attempts == 1
    service.network.requests.clear()
    assert len(remote.heartbeat(claimed).renewed) == 100
    service.network.faults, service.network.at = [swallowed], "/tasks/complete"
    assert remote.complete_many([(each, {"n": 1}) for each in claimed]) == {}
    assert len(service.network.requests) == 3
    assert Task.objects.filter(status="succeeded").count() == 100
    assert set(remote.heartbeat(claimed).lost) == {each.term.key for each in claimed}


def test_a_claim_that_the_service_still_makes_is_asked_for_again(
    service: Service, remote: TaskClient
) -> None:
    remote.enqueue("jobs.echo", {"word": "hello"})
    error = b'{"error": "This request was sent before, and still claims."}'
    under_way = answered(409, error, Retry_After="1")
    service.network.at, service.network.faults = "/tasks/next", [swallowed, under_way, under_way]

    (claimed,) = remote.claim()

    assert (claimed.task.attempts, row().attempts) == (1, 1)
    keys = {each.headers.get("Idempotency-Key") for each in service.network.requests[1:]}
    assert len(keys) == 1


def revoked(send: Callable[[], httpx.Response], request: httpx.Request) -> httpx.Response:
    """The answer does not arrive, and what was claimed is taken back meanwhile."""
    send().read()
    assert Task.objects.running().revoke(reason="its host is gone") == 1
    raise httpx.ReadTimeout("timed out", request=request)


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "coroutines"])
def test_a_claim_whose_task_was_lost_before_its_answer_arrived_is_made_anew(
    service: Service, remote: TaskClient, is_async: bool
) -> None:
    async def claim() -> Sequence[Claimed]:
        async with AsyncTaskClient(service.url, service.token) as coroutines:
            coroutines.calls.transport.aexchange = remote.transport.aexchange  # type: ignore[method-assign]
            return await coroutines.claim()

    first, second = remote.enqueue_many("jobs.echo", [{"word": "a"}, {"word": "b"}])
    service.network.at, service.network.faults = "/tasks/next", [revoked]

    (claimed,) = asyncio.run(claim()) if is_async else remote.claim()

    assert claimed.task.id in (first, second)
    assert Task.objects.running().get().pk == claimed.task.id
    keys = [each.headers.get("Idempotency-Key") for each in service.network.requests[1:]]
    assert [keys.count(key) for key in keys] == [2, 2, 1]


def test_a_claim_is_made_anew_for_no_other_refusal(service: Service, remote: TaskClient) -> None:
    service.network.at, service.network.faults = "/tasks/next", [answered(400)] * 2

    with pytest.raises(RequestRefused):
        remote.claim()

    assert len(service.network.faults) == 1


def test_a_token_that_may_not_read_payloads_is_told_so(
    service: Service, remote: TaskClient
) -> None:
    _, secret = ApiToken.objects.issue("blind", scopes=["leasing_tasks.view_task"])
    task_id = remote.enqueue("jobs.echo", {"word": "hello"}).id
    with TaskClient(service.url, secret) as blind:
        task = blind.get(task_id)
    assert task is not None and task.status == "ready"

    for read in (lambda: task.data, lambda: task.output):
        with pytest.raises(AccessDenied, match=r"needs the scope leasing_tasks\.view_payload"):
            read()
    seen = remote.get(task_id)
    assert seen is not None
    assert (seen.data, seen.output) == ({"word": "hello"}, None)


def test_batches_are_cut_to_the_size_that_the_service_takes(
    service: Service, remote: TaskClient
) -> None:
    text = "x" * 1500
    remote.enqueue_many("jobs.echo", [{"word": text}] * 100)
    claimed = remote.claim(100)

    assert remote.complete_many([(each, text) for each in claimed]) == {}

    sent = [each for each in service.network.requests if each.method != "GET"]
    assert [len(each.content) > MAX_BODY for each in sent] == [False] * 7
    assert Task.objects.filter(status="succeeded").count() == 100


def test_a_holder_reports_checkpoints_and_fails(remote: TaskClient) -> None:
    remote.enqueue("jobs.echo", {"word": "hello"}, timeout=90)
    (claimed,) = remote.claim()
    assert (claimed.checkpoint, claimed.timeout) == (None, 90.0)
    remote.progress(claimed, {"done": 3})
    remote.checkpoint(claimed, {"next": 4})
    assert (row().progress, row().checkpoint) == ({"done": 3}, {"next": 4})

    remote.fail(claimed, "the printer is out of paper")

    assert (row().status, row().last_error) == ("ready", "the printer is out of paper")
    for verb in (remote.complete, remote.progress):
        with pytest.raises(LeaseLost, match=f"task:{row().pk} was lost: "):
            verb(claimed)
    with pytest.raises(LeaseLost):
        remote.fail(claimed, "again")


def test_a_task_is_given_back_without_spending_its_attempt(remote: TaskClient) -> None:
    remote.enqueue("jobs.echo", {"word": "hello"})
    claimed = remote.claim()[0]

    remote.give_back(claimed, "its worker was stopped")

    assert (row().status, row().attempts) == ("ready", 0)
    assert TaskAttempt.objects.get().error == "its worker was stopped"
    with pytest.raises(LeaseLost):
        remote.give_back(claimed, "again")
    remote.give_back(remote.claim()[0], "not now", delay=60)
    assert row().scheduled_at > row().created_at + timedelta(seconds=50)
    assert remote.claim() == []


def test_coroutines_do_the_same(service: Service) -> None:
    async def work() -> None:
        async with AsyncTaskClient(service.url, service.token) as remote:
            task = await remote.enqueue("jobs.echo", {"word": "a"})
            await remote.enqueue_many("jobs.echo", [{"word": "b"}, {"word": "c"}])
            first, second, third = await remote.claim(3, wait=1)
            assert first.task.id == task.id
            assert len((await remote.heartbeat([first, second])).renewed) == 2
            await remote.progress(first, {"done": 1})
            await remote.checkpoint(first, 1)
            await remote.complete(first)
            await remote.complete_many([(second, None)])
            await remote.fail(third, "it broke")
            assert ((await remote.get(task.id)) or task).status == "succeeded"

    asyncio.run(work())


def test_a_cancelled_coroutine_leaves_no_task_claimed(service: Service, remote: TaskClient) -> None:
    remote.enqueue_many("jobs.echo", [{"word": "a"}, {"word": "b"}])

    async def work() -> None:
        claimed = asyncio.Event()

        async def swallow_claims(request: httpx.Request) -> httpx.Response:
            await asyncio.to_thread(service.network.handle_request, request)
            claimed.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody waits any more")

        options = {"async_transport": httpx.MockTransport(swallow_claims)}
        async with AsyncTaskClient(service.url, service.token, **options) as tasks:
            claiming = asyncio.create_task(tasks.claim(2))
            await claimed.wait()
            claiming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claiming

    asyncio.run(work())
    wait_for(lambda: Task.objects.filter(status="ready", attempts=0, grants=1).count() == 2)


def test_a_try_of_a_checkpoint_that_comes_late_overwrites_no_newer_one(
    service: Service, remote: TaskClient
) -> None:
    held_up: list[httpx.Request] = []

    def hold_up(send: object, request: httpx.Request) -> httpx.Response:
        held_up.append(request)
        raise httpx.ReadTimeout("timed out", request=request)

    remote.enqueue("jobs.echo", {"word": "hello"})
    claimed = remote.claim()[0]
    service.network.faults = [hold_up]
    remote.checkpoint(claimed, 1)
    remote.checkpoint(claimed, 2)

    answer = service.network.handle_request(held_up[0])
    answer.read()

    assert (answer.status_code, row().checkpoint, row().checkpoints) == (202, 2, 2)
    remote.fail(claimed, "once more")
    Task.objects.update(scheduled_at=row().created_at)
    (again,) = remote.claim()
    remote.checkpoint(again, 3)
    assert (again.checkpoint, row().checkpoint, row().checkpoints) == (2, 3, 3)
