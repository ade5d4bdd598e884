"""List the modules that count in processes, and those that read figures from the database. None is
imported before metrics are collected, and nothing here needs the client library.

A module that counts has ``connect()`` and ``STATE``; a module of figures has ``figures()``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from leasing.metrics.database import Figure

#: The error of a command or page that needs metrics without the client library.
EXTRA = "Metrics need prometheus-client: pip install 'django-leasing[prometheus]'."

#: The variable that names the directory in which the processes of one server share their counts.
SHARED = "PROMETHEUS_MULTIPROC_DIR"

_counting = ["leasing.metrics.process"]
_reading = ["leasing.metrics.leases"]


def add(*, counting: str, reading: str) -> None:
    """Measure with these modules, too. An app says so when it is ready."""
    if counting not in _counting:
        _counting.append(counting)
        _reading.append(reading)


def can_count() -> bool:
    """Return True if the client library is installed."""
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
        yield import_module(name).STATE


def figures() -> Iterator[Figure]:
    """All that can be read from the database."""
    for name in _reading:
        yield from import_module(name).figures()


def is_shared() -> bool:
    """Return True if several processes share their counts."""
    return SHARED in os.environ
