"""Connections that outlast CONN_MAX_AGE, for what a worker asks again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections

from leasing.conf import leasing_settings
from leasing.db.dialects import patience, use_private_connection


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


def lasting_thread(name: str, work: Callable[[], object]) -> threading.Thread:
    """A thread that has begun to ``work`` with a lasting connection, and keeps no process alive."""

    def with_connection() -> None:
        with lasting_connection():
            work()

    thread = threading.Thread(target=with_connection, name=name, daemon=True)
    thread.start()
    return thread
