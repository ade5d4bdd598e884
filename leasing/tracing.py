"""OpenTelemetry traces of leases. Switched on by ``LEASING = {"TRACES": True}``, or ``instrument``.

    acquire    a try, with its waiting; ``leasing.outcome`` is its result
    hold       from the grant until the end of the block, with the events renewed and lost
    release    the release

The resource is an attribute, not a part of the name, because there may be many. An error in this
module never reaches the traced code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.runtime.event_lines import log
from leasing.runtime.events import Subscriber, followers, subscribe, unsubscribe

try:
    from opentelemetry import context, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as missing:
    raise ImproperlyConfigured(
        "Traces need OpenTelemetry, which is not installed: pip install 'django-leasing[otel]'."
    ) from missing

P = ParamSpec("P")
Result = TypeVar("Result")
Value = str | int | float | bool

#: The subscribers that trace leases, by the names of events.
_heard: dict[str, Subscriber] = {}
#: Failures of tracing that were logged already.
_said: set[str] = set()


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace leases from now on, by ``tracer_provider`` or, without one, the global one, which may
    be set later."""
    uninstrument()
    leases = Leases(tracer_of("leasing", tracer_provider))
    _heard.update(leases.heard)
    subscribe(_heard, log.tracing_failed)
    followers["lease.release"] = leases.releasing


def uninstrument() -> None:
    """Stop tracing leases."""
    unsubscribe(_heard)
    _heard.clear()
    followers.pop("lease.release", None)


def tracer_of(name: str, provider: TracerProvider | None) -> trace.Tracer:
    """The tracer that spans of ``name`` are made by."""
    return trace.get_tracer(name, tracer_provider=provider)


def is_set_up(tracer: trace.Tracer) -> bool:
    """Return True if ``tracer`` may make spans that are recorded: without a provider none is."""
    if not isinstance(tracer, trace.ProxyTracer):
        return True
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def harmless(method: Callable[P, Result]) -> Callable[P, Result | None]:
    """``method``, that returns None where it would raise. What went wrong is logged once."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Result | None:
        try:
            return method(*args, **kwargs)
        except Exception:
            if method.__qualname__ not in _said:
                _said.add(method.__qualname__)
                log.tracing_failed(exc_info=True)
            return None

    return guarded


class Following:
    """One span, and whether it is the current one of the thread or coroutine that began it. None of
    its methods raises. As a block it ends with that.

    Args:
        span: The span, which has begun.
        parent: The context of its parent; None: the current one.
        inside: True to make it the current span until ``leave``.
    """

    def __init__(self, span: Span, parent: Context | None, *, inside: bool) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span, parent)
        #: True if it is a recorded span of its own; False: it may be its parent's.
        self.is_own = span.is_recording()
        self.is_over = False
        self._token = context.attach(self.context) if inside else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)
        self.leave()
        self.end()

    @harmless
    def note(self, attributes: Mapping[str, Value]) -> None:
        if not self.is_over:
            self.span.set_attributes(attributes)

    @harmless
    def event(self, name: str, attributes: Mapping[str, Value] | None = None) -> None:
        if not self.is_over:
            self.span.add_event(name, attributes)

    @harmless
    def fail(self, error: BaseException) -> None:
        """The span is that of something that failed with ``error``."""
        if not self.is_over:
            self.span.record_exception(error)
            self.err(type(error).__qualname__, f"{type(error).__name__}: {error}")

    @harmless
    def err(self, kind: str, text: str) -> None:
        """The span is that of something that went wrong in a way called ``kind``."""
        if not self.is_over:
            self.span.set_attribute("error.type", kind)
            self.span.set_status(Status(StatusCode.ERROR, text))

    def lose(self, reason: str) -> None:
        """The span is that of a term that was lost for ``reason``."""
        self.event("lost", {"leasing.reason": reason})
        self.err(LeaseLost.__qualname__, f"lost: {reason}")

    @harmless
    def leave(self) -> None:
        """End its time as the current span. Called on the thread or coroutine where it began."""
        token, self._token = self._token, None
        if token is not None:
            context.detach(token)

    @harmless
    def end(self) -> None:
        """End the span. Further calls do nothing: the SDK would complain of them."""
        if not self.is_over:
            self.is_over = True
            self.span.end()


@harmless
def begin(
    tracer: trace.Tracer,
    name: str,
    attributes: Mapping[str, Value],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Context | None = None,
    links: Sequence[Link] = (),
    start: int | None = None,
    inside: bool = False,
) -> Following:
    """Begin a span.

    Args:
        tracer: The tracer that makes the span.
        name: The name of the span.
        attributes: The attributes that it begins with.
        kind: The kind of span; work inside this process by default.
        parent: The context of its parent; None: the current one.
        links: Spans that it refers to, none of them its parent.
        start: Nanoseconds since 1970; None: now.
        inside: True to make it the current span until ``leave``.
    """
    span = tracer.start_span(name, parent, kind, attributes, links, start)
    return Following(span, parent, inside=inside)


class Leases:
    """Follows leases with spans of ``tracer``."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._holds: WeakKeyDictionary[Any, Following] = WeakKeyDictionary()
        #: What it hears, by the names of events.
        self.heard: dict[str, Subscriber] = {
            "lease.asked": self._asked,
            "hold.begun": self._begun,
            "hold.renewed": self._renewed,
            "hold.lost": self._lost,
            "hold.ended": self._ended,
        }

    def releasing(self, row: Any) -> AbstractContextManager[object]:
        span = begin(self._tracer, "release", _attributes(row.lease_resource), inside=True)
        return span or nullcontext()

    def _asked(
        self,
        rows: Sequence[Any],
        *,
        resource: str,
        seconds: float,
        error: BaseException | None,
        is_campaign: bool,
        **details: Any,
    ) -> None:
        start = time.time_ns() - round(seconds * 1e9)
        span = (
            None
            if is_campaign
            else begin(self._tracer, "acquire", _attributes(resource), start=start)
        )
        if span is None:
            return
        for row in rows:
            term = {"leasing.holder": row.holder, "leasing.fencing_token": row.fencing_token}
            span.note({"leasing.outcome": "acquired", **term})
        if isinstance(error, LeaseHeld):
            # Nothing went wrong: that is what leases are for.
            span.note({"leasing.outcome": "held", "leasing.held_by": error.holder})
        elif error is not None:
            span.fail(error)
        span.end()

    def _begun(self, holds: Sequence[Any], *, inside: bool) -> None:
        for hold in holds:
            attributes = {
                **_attributes(hold.resource),
                "leasing.holder": hold.holder,
                "leasing.fencing_token": hold.fencing_token,
                "leasing.ttl": hold.ttl,
            }
            span = begin(self._tracer, "hold", attributes, inside=inside)
            if span is not None:
                self._holds[hold] = span

    def _renewed(self, holds: Sequence[Any]) -> None:
        for span in filter(None, map(self._holds.get, holds)):
            span.event("renewed")

    def _lost(self, holds: Sequence[Any], *, reason: str) -> None:
        for span in filter(None, map(self._holds.get, holds)):
            span.lose(reason)

    def _ended(self, holds: Sequence[Any]) -> None:
        for hold in holds:
            span = self._holds.pop(hold, None)
            if span is not None:
                span.leave()
                span.end()


def _attributes(resource: str) -> dict[str, Value]:
    return {"leasing.resource": resource}
