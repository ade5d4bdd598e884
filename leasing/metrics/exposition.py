"""Puts together what is shown to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import PLATFORM_COLLECTOR, PROCESS_COLLECTOR, REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from leasing.metrics import registry as instruments
from leasing.metrics.database import read_all

#: Prefixes of this package's metrics.
OURS = ("leasing_", "tasks_")


def registry_of_process() -> CollectorRegistry:
    """Return the counts of this process. Where it shares a directory with others, the counts of all
    of them, and the state of this one."""
    if not instruments.is_shared():
        return REGISTRY
    registry = CollectorRegistry()
    registry.register(OfServer(""))
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, *instruments.states()):
        registry.register(collector)
    return registry


class OfDatabase:
    """Collect the figures of the database."""

    def collect(self) -> Iterator[Metric]:
        yield from read_all(instruments.figures())


class OfServer:
    """Collect the counts of all processes of this server whose names have one of ``prefixes``."""

    def __init__(self, *prefixes: str) -> None:
        self._prefixes = prefixes

    def collect(self) -> Iterator[Metric]:
        collector: Any = MultiProcessCollector
        for metric in collector(None).collect():
            if metric.name.startswith(self._prefixes):
                yield metric


def exposition(accept: str) -> tuple[bytes, str]:
    """Return the body of the web app's metrics and its content type, for the client's ``accept``
    header."""
    registry = CollectorRegistry()
    registry.register(OfDatabase())
    if instruments.is_shared():
        registry.register(OfServer(*OURS))  # the site may show its own elsewhere
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
