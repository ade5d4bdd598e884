"""What there is to be measured: which modules count in processes, and which read figures from the
database. Neither is imported before somebody asks, and nothing here needs the client library.

A module that counts has ``connect()`` and ``metrics()``; a module of figures has ``figures()``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from leasing.metrics.database import Figure

#: What asks for metrics needs this.
EXTRA = "Metrics need prometheus-client: pip install 'django-leasing[prometheus]'."

#: Where the processes of one server leave what they count, for whoever of them is asked.
SHARED = "PROMETHEUS_MULTIPROC_DIR"

_counting = ["leasing.metrics.process"]
_reading = ["leasing.metrics.leases"]


def add(*, counting: str, reading: str) -> None:
    """Measure with these modules, too. An app says so when it is ready."""
    if counting not in _counting:
        _counting.append(counting)
        _reading.append(reading)


def can_count() -> bool:
    """Whether the client library is installed."""
    return util.find_spec("prometheus_client") is not None


def connect() -> None:
    """Count in this process from now on. Raises ImproperlyConfigured without the library."""
    if not can_count():
        raise ImproperlyConfigured(EXTRA)
    for name in _counting:
        import_module(name).connect()


def states() -> Iterator[Any]:
    """Collectors of how this process stands, which no directory has."""
    for name in _counting:
        yield import_module(name).metrics().state


def figures() -> Iterator[Figure]:
    """All that can be read from the database."""
    for name in _reading:
        yield from import_module(name).figures()


def is_shared() -> bool:
    """Whether several processes leave what they count in one place."""
    return SHARED in os.environ
