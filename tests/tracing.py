"""Helpers of tests of traces: the spans of a test, without a global provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import leasing.tracing
import tasks.tracing


class Spans:
    """The spans that have ended, in the order in which they began."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


class Faulty:
    """A provider of a ``tracer`` that has a fault."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def get_tracer(self, *args: Any, **options: Any) -> Any:
        return self._tracer


@contextmanager
def traced() -> Iterator[Spans]:
    """The spans of leases and tasks in this block."""
    spans = Spans()
    leasing.tracing.instrument(spans.provider)
    tasks.tracing.instrument(spans.provider)
    try:
        yield spans
    finally:
        leasing.tracing.uninstrument()
        tasks.tracing.uninstrument()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def is_in(child: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return True if ``child`` is directly below ``parent``."""
    assert parent.context is not None
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def links_to(span: ReadableSpan, other: ReadableSpan) -> bool:
    """Return True if the only link of ``span`` leads to ``other``."""
    assert other.context is not None
    return [link.context.span_id for link in span.links] == [other.context.span_id]


def current_span() -> int:
    """Return the id of the current span."""
    return trace.get_current_span().get_span_context().span_id
