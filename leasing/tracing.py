"""OpenTelemetry traces of leases. Switched on by ``LEASING = {"TRACES": True}``, or ``instrument``.

    acquire    a try, with its waiting; ``leasing.outcome`` is its result
    hold       from the grant until the end of the block, with the events renewed and lost
    release    the release

The resource is an attribute, not a part of the name, because there may be many. An error in this
module never reaches the traced code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from django.core.exceptions import ImproperlyConfigured

from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.runtime.aio import Steps
from leasing.runtime.event_lines import log
from leasing.runtime.tracepoints import Held, points

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

#: Failures of tracing that were logged already.
_said: set[str] = set()


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace leases from now on, by ``tracer_provider`` or, without one, the global one, which may
    be set later."""
    points.tracer = Leases(tracer_of("leasing", tracer_provider))


def uninstrument() -> None:
    """Stop tracing leases."""
    points.tracer = None


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
    its methods raises.

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


def within(following: Following | None, call: Callable[[], Result]) -> Result:
    """``call``, in the span that ``following`` has made the current one, which ends with it."""
    if following is None:
        return call()
    try:
        return call()
    except BaseException as error:
        following.fail(error)
        raise
    finally:
        following.leave()
        following.end()


class Leases:
    """Follows leases with spans of ``tracer``."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def acquiring(self, resource: str, steps: Steps[Any]) -> Steps[Any]:
        # Now: the steps may be done on another thread.
        return self._acquiring(resource, steps, context.get_current())

    def _acquiring(self, resource: str, steps: Steps[Any], parent: Context) -> Steps[Any]:
        span = begin(self._tracer, "acquire", _attributes(resource), parent=parent)
        if span is None:
            return (yield from steps)
        try:
            row = yield from steps
            term = {"leasing.holder": row.holder, "leasing.fencing_token": row.fencing_token}
            span.note({"leasing.outcome": "acquired", **term})
            return row
        except LeaseHeld as held:
            # Nothing went wrong: that is what leases are for.
            span.note({"leasing.outcome": "held", "leasing.held_by": held.holder})
            raise
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            span.end()

    def releasing(self, resource: str, release: Callable[[], Result]) -> Result:
        span = begin(self._tracer, "release", _attributes(resource), inside=True)
        return within(span, release)

    def holding(self, hold: Held, inside: bool) -> Holding | None:
        attributes = {
            **_attributes(hold.resource),
            "leasing.holder": hold.holder,
            "leasing.fencing_token": hold.fencing_token,
            "leasing.ttl": hold.ttl,
        }
        following = begin(self._tracer, "hold", attributes, inside=inside)
        return None if following is None else Holding(following)


class Holding:
    """The span of one term of a hold."""

    def __init__(self, following: Following) -> None:
        self._following = following

    def renewed(self) -> None:
        self._following.event("renewed")

    def lost(self, reason: str) -> None:
        self._following.event("lost", {"leasing.reason": reason})
        self._following.err(LeaseLost.__qualname__, f"lost: {reason}")

    def close(self) -> None:
        self._following.leave()
        self._following.end()


def _attributes(resource: str) -> dict[str, Value]:
    return {"leasing.resource": resource}
