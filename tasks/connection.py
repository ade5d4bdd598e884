"""Connections that outlast CONN_MAX_AGE, for what a worker asks again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from leasing.conf import leasing_settings
from leasing.dialects import use_private_connection
from leasing.rowstore import patience


@contextmanager
def lasting_connection() -> Iterator[None]:
    """In this block the thread keeps one connection, whatever CONN_MAX_AGE says."""
    using = leasing_settings.DATABASE
    before = connections[using]
    if before.in_atomic_block:  # a test's, which sees what others do not
        yield
        return
    use_private_connection(using, patience())
    try:
        yield
    finally:
        connections[using].close()
        connections[using] = before
