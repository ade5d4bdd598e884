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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

# First, for what it says where OpenTelemetry is missing.
from leasing.tracing import (  # isort: split
    Following,
    Value,
    begin,
    harmless,
    is_set_up,
    tracer_of,
)

from django.apps import apps
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from leasing.exceptions import LeaseLost
from leasing.functions import EPOCH
from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log
from leasing.runtime.events import Subscriber, followers, subscribe, unsubscribe
from tasks.registry import Kind

if TYPE_CHECKING:
    from tasks.execution.attempt import Attempt, Outcome, Refused
    from tasks.models import Task
    from tasks.querysets.claimed import ClaimedTask

#: The subscribers that trace tasks, by the names of events.
_heard: dict[str, Subscriber] = {}
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
    uninstrument()
    tracer = Tasks(tracer_of("tasks", tracer_provider))
    _heard.update(tracer.heard)
    subscribe(_heard, log.tracing_failed)
    followers.update({"task.send": tracer.sending, "task.publish": tracer.publishing})


def uninstrument() -> None:
    """Stop tracing tasks."""
    unsubscribe(_heard)
    _heard.clear()
    for name in ("task.send", "task.publish"):
        followers.pop(name, None)


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
        #: The spans of attempts, by these.
        self._attempts: WeakKeyDictionary[Any, Following] = WeakKeyDictionary()
        #: Name and trace context of tasks whose messages are about to be sent.
        self._publishing: dict[int, tuple[str, str | None]] = {}
        #: What it hears, by the names of events.
        self.heard: dict[str, Subscriber] = {
            "task.sent": self._sent,
            "tasks.sent": self._many_sent,
            "tasks.publishing": self._read_publishing,
            "task.claimed": self._claimed,
            "attempt.begun": self._begun,
            "hold.renewed": self._renewed,
            "hold.lost": self._lost,
            "attempt.left": self._left,
            "attempt.over": self._over,
            "attempt.returned": self._returned,
            "outcomes.storing": self._storing,
            "outcomes.stored": self._stored,
            "attempt.lost": self._recovered,
        }

    # Producers

    def sending(self, columns: dict[str, Any]) -> AbstractContextManager[object]:
        # Of now: it may be sent after the commit.
        return self._send(columns, context.get_current())

    @contextmanager
    def _send(self, columns: dict[str, Any], parent: Context) -> Iterator[None]:
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
            yield
            return
        carried = _carried_by(span)
        if carried is not None:
            columns["trace_context"] = carried
        with span:
            yield

    def _sent(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            span = trace.get_current_span()
            span.set_attribute("messaging.message.id", str(task.pk))
            if task.is_duplicate:
                span.set_attribute("tasks.is_duplicate", True)

    def _many_sent(self, tasks: Sequence[Task]) -> None:
        trace.get_current_span().set_attribute("messaging.batch.message_count", len(tasks))

    def publishing(self, key: int, queue: str) -> AbstractContextManager[object]:
        name, carried = self._publishing.pop(key, ("", None))
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
        return span or nullcontext()

    def _read_publishing(self, keys: Sequence[int]) -> None:
        rows = apps.get_model("leasing_tasks", "Task").objects.home().filter(pk__in=keys)
        read = rows.values_list("pk", "name", "trace_context")
        self._publishing = {key: (name, carried) for key, name, carried in read}

    # Workers

    def _claimed(self, claimed: Sequence[Task | ClaimedTask]) -> None:
        now = time.time_ns()
        for task in claimed:
            if task.trace_context:
                began = now - int((clock() - task.sent_at) * 1e9)
                span = self._begin("claim", "receive", task, start=began)
                if span is not None:
                    span.end()

    def _begun(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            claimed = attempt.claimed
            if not (claimed.trace_context or is_set_up(self._tracer)):
                continue
            span = self._begin(
                "process", "process", claimed, kind=SpanKind.CONSUMER, is_linked=True, inside=True
            )
            if span is not None:
                self._attempts[attempt] = span
                if attempt.kind is Kind.PROCESS:
                    attempt.trace_context = _carried_by(span)

    def _renewed(self, holds: Sequence[Any]) -> None:
        for span in filter(None, map(self._attempts.get, holds)):
            span.event("heartbeat")

    def _lost(self, holds: Sequence[Any], *, reason: str) -> None:
        for span in filter(None, map(self._attempts.get, holds)):
            span.lose(reason)

    def _left(self, attempts: Sequence[Attempt], *, outcome: Outcome) -> None:
        """The attempt has ended, on the thread or coroutine on which it began."""
        for attempt in attempts:
            if (span := self._attempts.get(attempt)) is not None:
                span.leave()
        if not outcome.dropped:
            self._over(attempts, outcome=outcome)

    def _over(self, attempts: Sequence[Attempt], *, outcome: Outcome) -> None:
        self._storing([outcome])
        for attempt in attempts:
            span = self._attempts.get(attempt)
            if span is None:
                continue
            # What its handler has completed itself has nothing to be stored, and what is lost has
            # not.
            lost = not outcome.verb and attempt.is_lost
            named = "lost" if lost else OUTCOMES.get(outcome.verb, "succeeded")
            span.note({"tasks.outcome": named})
            if isinstance(outcome.value, BaseException):
                span.fail(outcome.value)
            span.end()

    def _returned(self, attempts: Sequence[Attempt], *, reason: str) -> None:
        """The attempts were given back, while their handlers may still run."""
        for attempt in attempts:
            span = self._attempts.get(attempt)
            if span is not None and not span.is_over:
                _keep(span, attempt.claimed.task, attempt.claimed.trace_context)
                span.note({"tasks.outcome": "returned", "tasks.reason": reason})
                span.end()

    def _storing(self, outcomes: Sequence[Outcome]) -> None:
        """Keep the spans of attempts in their rows, if other attempts may follow."""
        for outcome in outcomes:
            span, claimed = self._attempts.get(outcome.attempt), outcome.attempt.claimed
            if span is not None and outcome.verb not in ("", "complete"):
                _keep(span, claimed.task, claimed.trace_context)

    def _stored(
        self,
        outcomes: Sequence[Outcome],
        *,
        refused: Refused,
        seconds: float,
    ) -> None:
        began = time.time_ns() - round(seconds * 1e9)
        errors = {id(outcome): error for outcome, error in refused}
        for outcome in outcomes:
            process = self._attempts.get(outcome.attempt)
            if process is None or not process.is_own:
                continue  # which no sampler would tell either
            span = begin(
                self._tracer,
                f"{outcome.verb} {outcome.attempt.claimed.queue}",
                _attributes_of(outcome.verb, "settle", outcome.attempt.claimed),
                kind=SpanKind.CLIENT,
                parent=process.context,
                start=began,
            )
            if span is None:
                continue
            error = errors.get(id(outcome))
            if error is not None:
                span.fail(error)
            span.end()

    # Recovery

    def _recovered(self, tasks: Sequence[Task], *, reason: str) -> None:
        """The attempt that each of ``tasks`` still names was taken from a holder that is gone, and
        the row is about to be written."""
        for task in tasks:
            assert task.acquired_at is not None
            # In nanoseconds, and without the rounding of a float.
            start = (task.acquired_at - EPOCH) // timedelta(microseconds=1) * 1000
            span = self._begin(
                "lost", "process", task, kind=SpanKind.CONSUMER, start=start, is_linked=True
            )
            if span is not None:
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
def _keep(following: Following, task: Task, carried: str | None) -> None:
    if task.traced is None and following.is_own:
        task.traced = _with_previous(carried, following.span.get_span_context())


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
