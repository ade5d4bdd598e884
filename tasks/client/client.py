"""The clients of a task service, for threads and for coroutines."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from leasing.client.closing import AsyncClient, Client
from leasing.client.transport import AsyncTransport, Token, Transport
from leasing.runtime.aio import Steps, adrive, drive
from leasing.store import Renewals
from leasing.validation.names import default_holder
from tasks.client.calls import Claimed, Refused, RemoteTask, TaskCalls, claiming


class TaskClient(Client):
    """Enqueues tasks of a service over HTTP, and claims and ends them: ``Worker`` does the latter.

        with TaskClient("https://tasks.example.com/api", token=token) as tasks:
            tasks.enqueue("reports.build", {"report_id": 42})

    Any thread may use it. Arguments are those of ``leasing.client.transport.Transport``.
    """

    def __init__(self, url: str, token: Token | None = None, **options: Any) -> None:
        self.transport = Transport(url, token, **options)
        self.calls = TaskCalls(self.transport)

    def enqueue(
        self,
        name: str,
        data: Mapping[str, Any] | None = None,
        *,
        idempotency_key: uuid.UUID | None = None,
        **options: Any,
    ) -> RemoteTask:
        """Enqueue a task, and return it; where a task has its unique key, that one.

        Args:
            name: The name of a handler that the service knows.
            data: The keyword arguments of the handler.
            idempotency_key: The caller's own name of this request: with the same key the same task
                is stored once, also by another process. None: a new one, for the retries of this
                call.
            options: ``queue``, ``priority``, ``delay``, ``scheduled_at``, ``unique_key`` and the
                other fields of the API.
        """
        return drive(self.calls.enqueue(name, data, options, idempotency_key or uuid.uuid4()))

    def enqueue_many(
        self, name: str, items: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[int]:
        """Enqueue a task with each of ``items``, and return their ids. A hundred at most are sent
        together. Raises RequestRefused if one is refused: the others of its request, and all before
        that, are stored."""
        return drive(self.calls.enqueue_many(name, items, options))

    def get(self, task_id: int) -> RemoteTask | None:
        """Return a task; None: there is none."""
        return drive(self.calls.get(task_id))

    def claim(
        self,
        limit: int = 1,
        *,
        processor: str | None = None,
        queues: Sequence[str] | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        free: int | None = None,
    ) -> list[Claimed]:
        """Claim tasks. The caller renews and ends them.

        Args:
            limit: The number of tasks, at most.
            processor: The name of the holder; None: that of this process.
            queues: The queues to claim from; None: all that the token allows.
            ttl: Seconds of the leases; None: as the service is configured.
            wait: Seconds to wait for a task, at most.
            free: The number of tasks that begin at once; None: all. A task with one attempt, or
                that has run before, is claimed only if it is among the first so many.
        """
        holder = processor or default_holder()
        request = claiming(holder, limit, queues=queues, ttl=ttl, wait=wait, free=free)
        return drive(self.calls.claim_anew(request))[0]

    def heartbeat(self, claimed: Sequence[Claimed]) -> Renewals:
        """Renew the leases of ``claimed``: one request for each hundred."""
        return drive(self.calls.heartbeat_many([each.term.key for each in claimed]))

    def complete(self, claimed: Claimed, output: Any = None) -> None:
        """Complete a task with its output. Sent again, it changes nothing. Raises LeaseLost."""
        _raise(drive(self.calls.complete_many([(claimed, output)])))

    def complete_many(self, results: Sequence[tuple[Claimed, Any]]) -> Refused:
        """Complete many tasks, from pairs with their outputs. Returns the errors of those that are
        not completed, by their ids."""
        return drive(self.calls.complete_many(results))

    def fail(self, claimed: Claimed, error: str, *, retry: bool = True) -> None:
        """End the attempt of a task with an error. Without ``retry`` the task fails for good.
        Raises LeaseLost."""
        _raise(drive(self.calls.fail_many([(claimed, error, retry)])))

    def give_back(self, claimed: Claimed, reason: str, *, delay: float = 0.0) -> None:
        """Make a task ready again, in ``delay`` seconds, without spending the attempt. Raises
        LeaseLost."""
        _raise(drive(self.calls.give_back_many([(claimed, {"reason": reason, "delay": delay})])))

    def progress(self, claimed: Claimed, value: Any = None) -> None:
        """Report the progress of a task, any JSON. Raises LeaseLost."""
        drive(self.calls.progress(claimed, value))

    def checkpoint(self, claimed: Claimed, state: Any) -> None:
        """Store the state from which the next attempt continues. Raises LeaseLost."""
        drive(self.calls.checkpoint(claimed, state))


class AsyncTaskClient(AsyncClient):
    """``TaskClient`` for coroutines: the same methods, to be awaited, and ``async with``.

    Arguments are those of ``leasing.client.transport.AsyncTransport``.
    """

    def __init__(self, url: str, token: Token | None = None, **options: Any) -> None:
        self.transport = AsyncTransport(url, token, **options)
        self.calls = TaskCalls(self.transport)

    async def enqueue(
        self,
        name: str,
        data: Mapping[str, Any] | None = None,
        *,
        idempotency_key: uuid.UUID | None = None,
        **options: Any,
    ) -> RemoteTask:
        """Arguments are those of ``TaskClient.enqueue``."""
        key = idempotency_key or uuid.uuid4()
        return await adrive(self.calls.enqueue(name, data, options, key))

    async def enqueue_many(
        self, name: str, items: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[int]:
        """``TaskClient.enqueue_many``."""
        return await adrive(self.calls.enqueue_many(name, items, options))

    async def get(self, task_id: int) -> RemoteTask | None:
        """``TaskClient.get``."""
        return await adrive(self.calls.get(task_id))

    async def claim(
        self,
        limit: int = 1,
        *,
        processor: str | None = None,
        queues: Sequence[str] | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        free: int | None = None,
    ) -> list[Claimed]:
        """Arguments are those of ``TaskClient.claim``."""
        holder = processor or default_holder()
        request = claiming(holder, limit, queues=queues, ttl=ttl, wait=wait, free=free)
        return (await adrive(self.calls.claim_anew(request)))[0]

    async def heartbeat(self, claimed: Sequence[Claimed]) -> Renewals:
        """``TaskClient.heartbeat``."""
        return await adrive(self.calls.heartbeat_many([each.term.key for each in claimed]))

    async def complete(self, claimed: Claimed, output: Any = None) -> None:
        """``TaskClient.complete``."""
        await self._end(self.calls.complete_many([(claimed, output)]))

    async def complete_many(self, results: Sequence[tuple[Claimed, Any]]) -> Refused:
        """``TaskClient.complete_many``."""
        return await adrive(self.calls.complete_many(results))

    async def fail(self, claimed: Claimed, error: str, *, retry: bool = True) -> None:
        """``TaskClient.fail``."""
        await self._end(self.calls.fail_many([(claimed, error, retry)]))

    async def give_back(self, claimed: Claimed, reason: str, *, delay: float = 0.0) -> None:
        """``TaskClient.give_back``."""
        said = {"reason": reason, "delay": delay}
        await self._end(self.calls.give_back_many([(claimed, said)]))

    async def progress(self, claimed: Claimed, value: Any = None) -> None:
        """``TaskClient.progress``."""
        await adrive(self.calls.progress(claimed, value))

    async def checkpoint(self, claimed: Claimed, state: Any) -> None:
        """``TaskClient.checkpoint``."""
        await adrive(self.calls.checkpoint(claimed, state))

    async def _end(self, steps: Steps[Refused]) -> None:
        _raise(await adrive(steps))


def _raise(refused: Refused) -> None:
    """Raise the error of the one task that was refused."""
    for error in refused.values():
        raise error
