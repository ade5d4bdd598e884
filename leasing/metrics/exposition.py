"""Puts together what is shown to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import (
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    REGISTRY,
    CollectorRegistry,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from leasing.metrics import registry as instruments
from leasing.metrics.database import read_all

#: How the names of our metrics begin.
OURS = ("leasing_", "tasks_")


def registry_of_process() -> CollectorRegistry:
    """What this process counts. Where it leaves that in a directory with others, what all of
    them have counted, and how this one stands."""
    if not instruments.is_shared():
        return REGISTRY
    registry = CollectorRegistry()
    registry.register(_Shared())
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, *instruments.states()):
        registry.register(collector)
    return registry


class _Shared:
    """What all processes of this server have counted."""

    def collect(self) -> Iterator[Metric]:
        collector: Any = MultiProcessCollector
        yield from collector(None).collect()


class OfDatabase:
    """How things stand in the database."""

    def collect(self) -> Iterator[Metric]:
        yield from read_all(instruments.figures())


class OfServer:
    """What all processes of this server have counted, of ours alone: the site may show its own
    elsewhere."""

    def collect(self) -> Iterator[Metric]:
        yield from (metric for metric in _Shared().collect() if metric.name.startswith(OURS))


def exposition(accept: str) -> tuple[bytes, str]:
    """What the web app shows, and its content type, for what the client says it accepts."""
    registry = CollectorRegistry()
    registry.register(OfDatabase())
    if instruments.is_shared():
        registry.register(OfServer())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
