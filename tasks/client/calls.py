"""The requests about tasks, each written once, as steps for threads and for coroutines."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from leasing.client.calls import (
    Proof,
    grant_id_of,
    moment_of,
    reason_of,
    refusal_of,
    renewing,
    results_of,
)
from leasing.client.exceptions import (
    AccessDenied,
    InvalidAnswer,
    RequestRefused,
    ServiceUnavailable,
)
from leasing.client.messages import (
    Answer,
    Request,
    batch_of,
    checked_field,
    checked_seconds,
    in_portions,
)
from leasing.client.transport import Transport
from leasing.exceptions import LeaseLost
from leasing.holding.term import Term
from leasing.runtime.aio import Steps, drive
from leasing.runtime.clock import clock
from leasing.runtime.terminal import TASKS
from leasing.store import Renewal, Renewals
from leasing.validation.names import MAX_BODY, MAX_TASKS
from leasing.waiting.waiter import Rest, pauses
from tasks.exceptions import NotSerializable


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """A task, as the service shows it."""

    id: int
    name: str
    queue: str
    #: ready, running, succeeded, failed or cancelled.
    status: str
    attempts: int
    max_attempts: int
    #: The error of the latest attempt that failed.
    last_error: str
    #: The whole answer.
    fields: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, data: Any) -> RemoteTask:
        """Return the task that the fields of an answer tell of. Raises InvalidAnswer."""
        checked_field(data, "task_data", dict, type(None))
        return cls(
            id=checked_field(data, "id", int),
            name=checked_field(data, "name", str),
            queue=checked_field(data, "queue", str),
            status=checked_field(data, "status", str),
            attempts=checked_field(data, "attempts", int),
            max_attempts=checked_field(data, "max_attempts", int),
            last_error=checked_field(data, "last_error", str),
            fields=data,
        )

    @property
    def data(self) -> dict[str, Any]:
        """The arguments of its handler. Raises AccessDenied if the token may not read them."""
        data: dict[str, Any] = self._payload("task_data")
        return data

    @property
    def output(self) -> Any:
        """The output of its handler, once it has succeeded. Raises AccessDenied if the token may
        not read it."""
        return self._payload("task_output")

    def _payload(self, name: str) -> Any:
        if self.fields["task_data"] is None:  # a task has data, if only an empty object
            raise AccessDenied(
                403,
                f"The token may not read the data and the output of {self.resource}: it needs the "
                "scope leasing_tasks.view_payload.",
            )
        return self.fields.get(name)

    @property
    def resource(self) -> str:
        """The name of its lease: ``task:17`` in logs."""
        return f"{TASKS}{self.id}"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task that this process has claimed, with the term that proves it."""

    task: RemoteTask
    term: Term
    #: The state that the latest attempt stored.
    checkpoint: Any
    #: Seconds that this attempt may run; None: no limit.
    timeout: float | None
    #: The numbers of its further checkpoints.
    numbers: Iterator[int] = field(default_factory=lambda: count(1), repr=False, compare=False)


@dataclass(slots=True)
class _Row:
    """The task of a term, as the log shows it."""

    lease_resource: str
    holder: str
    fencing_token: int
    grant_id: uuid.UUID


#: Statuses with which the service refuses what it was sent, rather than how or where.
REFUSALS: Final = frozenset({400, 413})
#: The error of each task of a batch that was not written, by its id.
Refused = dict[int, Exception]


class TaskCalls:
    """The requests about tasks of one service."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # Producers

    def enqueue(
        self, name: str, data: Mapping[str, Any] | None, options: Mapping[str, Any], key: uuid.UUID
    ) -> Steps[RemoteTask]:
        """Enqueue a task. ``options`` are those of the API."""
        body = {"name": name, "data": dict(data or {}), **_options(options)}
        request = Request("POST", "/tasks", body, key=key)
        answer: Answer = yield from self._sending(request)
        if answer.status not in (200, 201):
            raise RequestRefused(answer.status, answer.message)
        return RemoteTask.of(answer.data)

    def enqueue_many(
        self, name: str, items: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> Steps[list[int]]:
        """Enqueue a task with each of ``items``, and return their ids. Raises RequestRefused if one
        is refused: the others of its request, and all before that, are stored."""
        keys: list[int] = []
        bodies = [{"name": name, "data": dict(data), **_options(options)} for data in items]
        for portion in _portions(bodies):
            body = batch_of("tasks", portion)
            request = Request("POST", "/tasks/batch", body, key=uuid.uuid4())
            answer: Answer = yield from self._sending(request)
            if answer.status != 200:
                raise RequestRefused(answer.status, answer.message)
            for result in results_of(answer, len(portion)):
                status = checked_field(result, "status", int)
                if status not in (200, 201):
                    raise RequestRefused(status, str(result.get("error")))
                keys.append(checked_field(result, "id", int))
        return keys

    def get(self, task_id: int) -> Steps[RemoteTask | None]:
        """Return a task; None: there is none."""
        answer: Answer = yield from self._sending(Request("GET", f"/tasks/{int(task_id)}"))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise RequestRefused(answer.status, answer.message)
        return RemoteTask.of(answer.value("task", dict))

    # Holders

    def claim(
        self, request: Request, stopping: threading.Event | None = None
    ) -> Steps[tuple[list[Claimed], float]]:
        """Claim by a request that ``claiming`` made; ``stopping`` ends its repetitions. Returns the
        tasks, and the seconds for which the service asks to stay away if there are none. Raises
        RequestRefused with status 409 if the request was answered before, and holds nothing any
        more."""
        until = clock() + self.transport.patience
        for pause in pauses():
            answer: Answer = yield from self._sending(
                request, stopping=stopping, undo=self._give_back_unclaimed
            )
            if answer.status == 202:
                return [claimed_of(each, answer) for each in answer.value("tasks", list)], 0.0
            if answer.status == 200:
                return [], answer.pause
            if answer.status != 409 or not answer.retry_after:
                raise RequestRefused(answer.status, answer.message)
            # It was sent before and still claims: another request would not find what it gets.
            if clock() + pause > until or (stopping is not None and stopping.is_set()):
                raise ServiceUnavailable(f"{self.transport.url} still claims: {answer.message}")
            yield Rest(pause, stopping)
        raise AssertionError("the pauses have no end")

    def claim_anew(self, request: Request) -> Steps[tuple[list[Claimed], float]]:
        """``claim``, and once more with another key if the request was answered before, and holds
        nothing any more."""
        try:
            return (yield from self.claim(request))
        except RequestRefused as refusal:
            if refusal.status != 409:
                raise
        return (yield from self.claim(replace(request, key=uuid.uuid4())))

    def end_wait(self, request: Request) -> Steps[None]:
        """Have the service answer the claim ``request``, which waits there, at once. If it has not
        arrived there yet, nothing happens."""
        yield from self._sending(Request("DELETE", request.path, key=request.key), patience=0.0)

    @staticmethod
    def _give_back_unclaimed(transport: Transport, answer: Answer) -> None:
        """Give back what nobody waits for any more."""
        if answer.status == 202 or (answer.status == 409 and answer.retry_after):
            calls = TaskCalls(transport)
            claimed, _ = drive(calls.claim(answer.request))
            said = {"reason": "its claimer was cancelled", "begun": False}
            drive(calls.give_back_many([(each, said) for each in claimed]))

    def heartbeat_many(
        self, proofs: Sequence[Proof], timeout: float | None = None
    ) -> Steps[Renewals]:
        """Renew the leases of many tasks. Arguments are those of ``LeaseCalls.renew_many``."""
        portions = _portions(proof_of(each) for each in proofs)

        def ask(portion: list[bytes], timeout: float | None) -> Request:
            return Request("PUT", "/tasks/heartbeat", batch_of("tasks", portion), timeout=timeout)

        return renewing(self.transport, proofs, portions, ask, _note_heartbeat, timeout)

    def complete_many(
        self, results: Sequence[tuple[Claimed, Any]], patience: float | None = None
    ) -> Steps[Refused]:
        """Complete each task with its output, from pairs of both. Returns the errors of those that
        are not completed: LeaseLost, or RequestRefused."""
        items = [(each, {"task_output": output}) for each, output in results]
        return (yield from self._end_many("complete", items, patience))

    def fail_many(
        self, failures: Sequence[tuple[Claimed, str, bool]], patience: float | None = None
    ) -> Steps[Refused]:
        """End the attempt of each task with an error; the third says if it may be retried."""
        items = [(each, {"error": error, "retry": retry}) for each, error, retry in failures]
        return (yield from self._end_many("fail", items, patience))

    def give_back_many(
        self, returns: Sequence[tuple[Claimed, Mapping[str, Any]]], patience: float | None = None
    ) -> Steps[Refused]:
        """Give back each task; the second are ``reason``, ``delay`` and ``begun``."""
        return (yield from self._end_many("give-back", returns, patience))

    def _end_many(
        self, verb: str, items: Sequence[tuple[Claimed, Mapping[str, Any]]], patience: float | None
    ) -> Steps[Refused]:
        refused: Refused = {}
        left = [each for each, _ in items]
        for portion in _portions({**proof_of(each.term.key), **said} for each, said in items):
            batch, left = left[: len(portion)], left[len(portion) :]
            request = Request("PUT", f"/tasks/{verb}", batch_of("tasks", portion))
            answer: Answer = yield from self._sending(request, patience=patience)
            if answer.status != 200:
                if answer.status not in REFUSALS:  # what was sent may be stored yet
                    text = f"{self.transport.url}/tasks/{verb} answered with status {answer.status}"
                    raise InvalidAnswer(f"{text}: it is one of another version.")
                if len(portion) == 1:
                    refused[batch[0].task.id] = RequestRefused(answer.status, answer.message)
                    continue
                # A form that is refused as a whole: each alone, so that one does not sink others.
                for each, said in [pair for pair in items if pair[0] in batch]:
                    refused |= yield from self._end_many(verb, [(each, said)], patience)
                continue
            for each, result in zip(batch, results_of(answer, len(portion)), strict=True):
                if (error := _refusal(each, result)) is not None:
                    refused[each.task.id] = error
        return refused

    def progress(self, claimed: Claimed, value: Any) -> Steps[None]:
        """Report the progress of a task. Raises LeaseLost."""
        yield from self._write(claimed, "progress", {"progress": value})

    def checkpoint(self, claimed: Claimed, state: Any) -> Steps[None]:
        """Store the state of a task. A try that comes late, after the next one, changes nothing.
        Raises LeaseLost."""
        said = {"state": state, "number": next(claimed.numbers)}
        yield from self._write(claimed, "checkpoint", said)

    def _write(self, claimed: Claimed, verb: str, said: Mapping[str, Any]) -> Steps[None]:
        body = {"lease_key": claimed.term.key.lease_key, **said}
        request = Request("PUT", f"/tasks/{claimed.task.id}/{verb}", body)
        answer: Answer = yield from self._sending(request)
        if answer.status in (200, 404, 409):
            raise _lost(claimed, answer.message)
        if answer.status != 202:
            raise RequestRefused(answer.status, answer.message)

    def _sending(
        self,
        request: Request,
        patience: float | None = None,
        **options: Any,
    ) -> Steps[Answer]:
        try:
            return (yield from self.transport.sending(request, patience=patience, **options))
        except (TypeError, ValueError) as error:
            raise NotSerializable(f"The request is not JSON: {error}") from error


def claiming(
    processor: str,
    limit: int,
    *,
    queues: Sequence[str] | None = None,
    ttl: float | None = None,
    wait: float = 0.0,
    free: int | None = None,
) -> Request:
    """Return a request that claims tasks for the holder called ``processor``. Sent again, it finds
    what it has claimed. Arguments are those of ``TaskClient.claim``."""
    body: dict[str, Any] = {"processor": processor, "limit": min(limit, MAX_TASKS)}
    if queues is not None:
        body["queues"] = list(queues)
    if ttl is not None:
        body["ttl"] = ttl
    if wait:
        body["wait"] = wait
    if free is not None:
        body["free"] = min(free, MAX_TASKS)
    return Request("POST", "/tasks/next", body, key=uuid.uuid4(), wait=wait)


def claimed_of(data: Any, answer: Answer) -> Claimed:
    """Return a task that ``answer`` says was claimed. Raises InvalidAnswer."""
    lease_key = checked_field(data, "lease_key", str)
    del data["lease_key"]  # the fields of a task may be printed
    task = RemoteTask.of(data)
    token, holder = checked_field(data, "fencing_token", int), checked_field(data, "processor", str)
    resource, grant_id = task.resource, grant_id_of(lease_key)
    term = Term(
        key=Proof(str(task.id), lease_key),
        grant_id=grant_id,
        fencing_token=token,
        holder=holder,
        resource=resource,
        ttl=checked_seconds(data, "ttl"),
        remaining=checked_seconds(data, "remaining"),
        sent_at=answer.sent_at,
        expires_at=moment_of(checked_field(data, "must_heartbeat_before", str)),
        row=_Row(resource, holder, token, grant_id),
    )
    timeout = None if data.get("timeout") is None else checked_seconds(data, "timeout")
    stored = checked_field(data, "checkpoints", int)
    return Claimed(task, term, data.get("checkpoint"), timeout, count(stored + 1))


def proof_of(proof: Proof) -> dict[str, Any]:
    """Return the fields by which a batch names a task."""
    return {"id": int(proof.resource), "lease_key": proof.lease_key}


def _note_heartbeat(found: Renewals, proof: Proof, result: Any) -> None:
    status = checked_field(result, "status", int)
    if status == 202:
        found.renewed[proof] = _heartbeat_of(result)
    else:
        text = refusal_of(result, status)
        found.lost[proof] = reason_of(f"task:{proof.resource}", text)


def _heartbeat_of(result: Any) -> Renewal:
    # A batch does not tell the deadline, which only people read.
    remaining = checked_seconds(result, "remaining")
    return Renewal(
        expires_at=datetime.now().astimezone() + timedelta(seconds=remaining),
        remaining=remaining,
        yield_to=result.get("yield_to") or "",
        is_last=bool(result.get("is_last")),
    )


def _refusal(claimed: Claimed, result: Any) -> Exception | None:
    status = checked_field(result, "status", int)
    if status == 202:
        return None
    text = str(result.get("error") or result.get("message") or "")
    if status in (200, 404, 409):
        return _lost(claimed, text)
    return RequestRefused(status, text)


def _lost(claimed: Claimed, text: str) -> LeaseLost:
    return LeaseLost(claimed.task.resource, reason_of(f"task:{claimed.task.id}", text))


def _portions(items: Iterable[Mapping[str, Any]]) -> list[list[bytes]]:
    try:
        return list(in_portions(items, MAX_TASKS, MAX_BODY))
    except (TypeError, ValueError) as error:
        raise NotSerializable(f"The request is not JSON: {error}") from error


#: Conversions of arguments of ``enqueue`` to values that JSON has, by their type.
_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    datetime: lambda moment: moment.isoformat(),
    timedelta: lambda span: span.total_seconds(),
}


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return {
        name: _PLAIN.get(type(value), lambda same: same)(value) for name, value in given.items()
    }
