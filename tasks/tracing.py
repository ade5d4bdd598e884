"""OpenTelemetry traces of tasks. Switched on by ``LEASING = {"TRACES": True}``, or ``instrument``.

One task is one trace, by the conventions for messages; the row carries its context.

    send <queue>        the enqueue, a child of the caller's span
    publish <queue>     its message is sent to a broker, if there is one
    claim <queue>       a worker claims it; only for tasks whose enqueue was traced
    process <queue>     an attempt, with the events heartbeat and lost; linked to the attempt before
    complete <queue>    its outcome is stored; also fail, give back, snooze, cancel
    lost <queue>        an attempt whose worker is gone, written by the process that recovered it:
                        the worker's own span died with it

Spans contain no data and no outputs. An error in this module never reaches the traced code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

# First, for what it says where OpenTelemetry is missing.
from leasing.tracing import (  # isort: split
    Following,
    Value,
    begin,
    harmless,
    is_set_up,
    tracer_of,
    within,
)

from django.apps import apps
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from leasing.exceptions import LeaseLost
from leasing.functions import EPOCH
from leasing.runtime.clock import clock
from tasks.runtime.tracepoints import Send, points

if TYPE_CHECKING:
    from tasks.execution.attempt import Execution
    from tasks.execution.outcomes import Outcome, Refused
    from tasks.models import Task
    from tasks.querysets.claimed import ClaimedTask

Stored = TypeVar("Stored")

#: The name, next to the headers in a row, of the span of the latest attempt.
PREVIOUS = "previous"
#: The outcome of an attempt, by the verb that stores it.
OUTCOMES = {
    "complete": "succeeded",
    "fail": "failed",
    "give back": "returned",
    "snooze": "snoozed",
    "cancel": "cancelled",
}


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace tasks from now on, by ``tracer_provider`` or, without one, the global one, which may
    be set later. A process that a worker starts for a handler does so if the setting says so."""
    points.tracer = Tasks(tracer_of("tasks", tracer_provider))


def uninstrument() -> None:
    """Stop tracing tasks."""
    points.tracer = None


# What a row carries


def inject(current: Context | None = None) -> str | None:
    """The headers of ``current`` (None: the current context) as JSON: what ``Task.trace_context``
    holds. None where there is no trace."""
    headers: dict[str, str] = {}
    propagate.inject(headers, current)
    return json.dumps(headers) if headers else None


def extract(carried: str | None) -> Context:
    """The context of what ``inject`` brought, or of a task's ``trace_context``: for spans of your
    own that belong to it."""
    return _read(carried)[0] if carried else Context()


@lru_cache(maxsize=1024)
def _read(carried: str) -> tuple[Context, tuple[Link, ...]]:
    """Return the context in ``carried``, and the links to the attempt before."""
    # Cached: it is read at the claim and at the run, and is equal for all tasks of one enqueue.
    headers = _headers(carried)
    return propagate.extract(headers, Context()), _links(headers.get(PREVIOUS))


@contextmanager
def inside(carried: str | None) -> Iterator[None]:
    """A block that runs in the context ``carried``, which ``inject`` made in any process."""
    token = _attach(carried)
    try:
        yield
    finally:
        if token is not None:
            context.detach(token)


@harmless
def _attach(carried: str | None) -> Any:
    return context.attach(extract(carried))


def _headers(carried: str | None) -> dict[str, str]:
    headers = json.loads(carried) if carried else {}
    return headers if isinstance(headers, dict) else {}


def _links(header: str | None) -> tuple[Link, ...]:
    """Return a link to the span of ``header``, if that is valid."""
    if header is None:
        return ()
    found = TraceContextTextMapPropagator().extract({"traceparent": header}, Context())
    before = trace.get_current_span(found).get_span_context()
    return (Link(before, {"tasks.link": PREVIOUS}),) if before.is_valid else ()


def _with_previous(carried: str | None, span: SpanContext) -> str:
    flags = span.trace_flags & TraceFlags.SAMPLED
    header = f"00-{span.trace_id:032x}-{span.span_id:016x}-{flags:02x}"
    return json.dumps({**_headers(carried), PREVIOUS: header})


class Tasks:
    """Follows tasks with spans of ``tracer``."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    # Producers

    def sending(self, columns: dict[str, Any], store: Callable[[], Stored]) -> Callable[[], Stored]:
        return partial(self._send, columns, store, context.get_current())

    def _send(
        self, columns: dict[str, Any], store: Callable[[], Stored], parent: Context
    ) -> Stored:
        name, queue = columns["name"], columns["queue"]
        attributes = {**_attributes("send", "send", queue), "tasks.name": name}
        span = begin(
            self._tracer,
            f"send {queue}",
            attributes,
            kind=SpanKind.PRODUCER,
            parent=parent,
            inside=True,
        )
        if span is None:
            return store()
        carried = _carried_by(span)
        if carried is not None:
            columns["trace_context"] = carried

        def stored() -> Stored:
            sent = store()
            _tell_sent(span, sent)
            return sent

        return within(span, stored)

    def publishing(self, send: Send, keys: Sequence[int]) -> Send:
        rows = self._rows(keys) or {}

        def publish(key: int, queue: str) -> object:
            name, carried = rows.get(key, ("", None))
            attributes = {
                **_attributes("publish", "send", queue),
                "messaging.message.id": str(key),
                "tasks.name": name,
            }
            span = _begin_of(
                self._tracer,
                f"publish {queue}",
                attributes,
                carried,
                kind=SpanKind.PRODUCER,
                inside=True,
            )
            return within(span, partial(send, key, queue))

        return publish

    @harmless
    def _rows(self, keys: Sequence[int]) -> dict[int, tuple[str, str | None]]:
        rows = apps.get_model("leasing_tasks", "Task").objects.home().filter(pk__in=keys)
        return {key: more for key, *more in rows.values_list("pk", "name", "trace_context")}

    # Workers

    @harmless
    def claimed(self, claimed: Sequence[Task | ClaimedTask]) -> None:
        now = time.time_ns()
        for task in claimed:
            if task.trace_context:
                began = now - int((clock() - task.sent_at) * 1e9)
                span = self._begin("claim", "receive", task, start=began)
                if span is not None:
                    span.end()

    def running(self, execution: Execution) -> Attempt | None:
        claimed = execution.claimed
        if not (claimed.trace_context or is_set_up(self._tracer)):
            return None
        span = self._begin(
            "process", "process", claimed, kind=SpanKind.CONSUMER, is_linked=True, inside=True
        )
        return None if span is None else Attempt(execution, span)

    def storing(
        self, store: Callable[[list[Outcome]], Refused], outcomes: list[Outcome]
    ) -> Refused:
        began = time.time_ns()
        for outcome in outcomes:
            _leave_trace(outcome)
        refused = store(outcomes)
        self._tell_stored(outcomes, refused, began)
        return refused

    @harmless
    def _tell_stored(self, outcomes: list[Outcome], refused: Refused, began: int) -> None:
        errors = {id(outcome): error for outcome, error in refused}
        for outcome in outcomes:
            attempt = outcome.execution.trace
            if not (isinstance(attempt, Attempt) and attempt.following.is_own):
                continue  # which no sampler would tell either
            span = begin(
                self._tracer,
                f"{outcome.verb} {outcome.execution.claimed.queue}",
                _attributes_of(outcome.verb, "settle", outcome.execution.claimed),
                kind=SpanKind.CLIENT,
                parent=attempt.following.context,
                start=began,
            )
            if span is None:
                continue
            error = errors.get(id(outcome))
            if error is not None:
                span.fail(error)
            span.end()

    # Recovery

    @harmless
    def lost(self, task: Task, reason: str) -> None:
        assert task.acquired_at is not None
        # In nanoseconds, and without the rounding of a float.
        start = (task.acquired_at - EPOCH) // timedelta(microseconds=1) * 1000
        span = self._begin(
            "lost", "process", task, kind=SpanKind.CONSUMER, start=start, is_linked=True
        )
        if span is None:
            return
        span.note({"tasks.outcome": "lost"})
        span.err(LeaseLost.__qualname__, reason)
        _keep(span, task, task.trace_context)
        span.end()

    def _begin(
        self,
        verb: str,
        kind_of_verb: str,
        task: Task | ClaimedTask,
        *,
        is_linked: bool = False,
        **options: Any,
    ) -> Following | None:
        return _begin_of(
            self._tracer,
            f"{verb} {task.queue}",
            _attributes_of(verb, kind_of_verb, task),
            task.trace_context,
            is_linked=is_linked,
            **options,
        )


class Attempt:
    """The span of one attempt."""

    def __init__(self, execution: Execution, following: Following) -> None:
        self.following = following
        self._execution = execution

    def renewed(self) -> None:
        self.following.event("heartbeat")

    def lost(self, reason: str) -> None:
        self.following.event("lost", {"leasing.reason": reason})
        self.following.err(LeaseLost.__qualname__, f"lost: {reason}")

    def leave(self, outcome: Outcome) -> None:
        self.following.leave()
        if not outcome.dropped:
            self.over(outcome)

    def over(self, outcome: Outcome) -> None:
        _leave_trace(outcome)
        # What its handler has completed itself has nothing to be stored, and what is lost has not.
        lost = not outcome.verb and self._execution.hold.is_lost
        named = "lost" if lost else OUTCOMES.get(outcome.verb, "succeeded")
        self.following.note({"tasks.outcome": named})
        if isinstance(outcome.value, BaseException):
            self.following.fail(outcome.value)
        self.following.end()

    def returned(self, reason: str) -> None:
        if not self.following.is_over:
            _keep(self.following, self._execution.task, self._execution.claimed.trace_context)
            self.following.note({"tasks.outcome": "returned", "tasks.reason": reason})
            self.following.end()

    def close(self) -> None:
        self.following.leave()
        self.following.end()

    def carrier(self) -> str | None:
        return _carried_by(self.following)


@harmless
def _begin_of(
    tracer: trace.Tracer,
    name: str,
    attributes: dict[str, Value],
    carried: str | None,
    *,
    kind: SpanKind = SpanKind.CLIENT,
    is_linked: bool = False,
    **options: Any,
) -> Following | None:
    """Begin a span of a task that carries ``carried``."""
    parent, links = _read(carried) if carried else (None, ())
    linked = links if is_linked else ()
    return begin(tracer, name, attributes, kind=kind, parent=parent, links=linked, **options)


@harmless
def _carried_by(following: Following) -> str | None:
    return inject(following.context)


@harmless
def _leave_trace(outcome: Outcome) -> None:
    """Keep the span of an attempt in its row, if another attempt may follow."""
    attempt, claimed = outcome.execution.trace, outcome.execution.claimed
    if outcome.verb not in ("", "complete") and isinstance(attempt, Attempt):
        _keep(attempt.following, claimed.task, claimed.trace_context)


@harmless
def _keep(following: Following, task: Task, carried: str | None) -> None:
    if task.traced is None and following.is_own:
        task.traced = _with_previous(carried, following.span.get_span_context())


@harmless
def _tell_sent(following: Following, sent: Any) -> None:
    if isinstance(sent, Sequence):
        following.note({"messaging.batch.message_count": len(sent)})
    else:
        following.note({"messaging.message.id": str(sent.pk)})
        if sent.is_duplicate:
            following.note({"tasks.is_duplicate": True})


def _attributes(verb: str, kind_of_verb: str, queue: str) -> dict[str, Value]:
    return {
        "messaging.system": "django-leasing",
        "messaging.operation.name": verb,
        "messaging.operation.type": kind_of_verb,
        "messaging.destination.name": queue,
    }


def _attributes_of(verb: str, kind_of_verb: str, task: Task | ClaimedTask) -> dict[str, Value]:
    return {
        **_attributes(verb, kind_of_verb, task.queue),
        "messaging.message.id": str(task.pk),
        "messaging.client.id": task.holder,
        "tasks.name": task.name,
        "tasks.attempt": task.attempts,
        "tasks.max_attempts": task.max_attempts,
        "leasing.fencing_token": task.fencing_token,
    }
