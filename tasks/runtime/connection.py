"""Connections that outlast CONN_MAX_AGE, for what a worker asks again and again, and how long an
answer may take: the network may have swallowed it.

CONN_MAX_AGE is 0 unless the project says otherwise: a connection for each request. A task is no
request; to connect for each would cost short ones a third of their time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from leasing.conf import leasing_settings
from leasing.db.connection_watchdog import (
    STOP_TIMEOUT,
    is_watched,
    unwatch_raw,
    watch_answers,
    watch_raw,
)
from leasing.db.dialects import patience, use_private_connection
from tasks.conf import task_settings

#: Seconds for which a thread keeps a connection from task to task.
KEPT = 10.0
LIMIT, HANDLERS_LIMIT = "ANSWER_TIMEOUT", "HANDLER_ANSWER_TIMEOUT"

_never = threading.Event()


class _Thread(threading.local):
    #: True to keep connections made on this thread from task to task.
    keeps = False


_thread = _Thread()


def keep_connections() -> None:
    """Keep the connections of this thread from task to task where CONN_MAX_AGE is 0. The thread
    calls ``close_kept`` when no task came for a while."""
    _thread.keeps = True


def close_kept() -> None:
    """Close the connections that this thread has kept."""
    for connection in connections.all(initialized_only=True):
        if _is_for_one_request(connection):
            connection.close()


@receiver(connection_created, dispatch_uid="tasks.runtime.connection")
def _keep(connection: Any, **_named: Any) -> None:
    if _thread.keeps and _is_for_one_request(connection):
        connection.close_at = time.monotonic() + KEPT  # Django's own clock for it


def _is_for_one_request(connection: Any) -> bool:
    # Of a pool it is only lent, and others may be waiting for it.
    options = connection.settings_dict["OPTIONS"]
    return connection.settings_dict["CONN_MAX_AGE"] == 0 and not options.get("pool")


@contextmanager
def lasting_connection(
    stopping: threading.Event = _never, *, limited_by: str = LIMIT
) -> Iterator[None]:
    """In this block the thread keeps one connection, also where CONN_MAX_AGE is 0. It is cut off
    where an answer takes longer than the setting ``limited_by`` says, or than STOP_TIMEOUT once
    ``stopping`` is set."""
    using = leasing_settings.DATABASE
    before = connections[using]
    if before.in_atomic_block:  # a test's, which sees what others do not
        yield
        return
    use_private_connection(using, patience())

    def limit() -> float | None:
        given: float | None = getattr(task_settings, limited_by)
        if not stopping.is_set():
            return given
        return STOP_TIMEOUT if given is None else min(STOP_TIMEOUT, given)

    if connections[using] is not before:
        watch_answers(connections[using], limit, _setting(limited_by))
    try:
        yield
    finally:
        connections[using].close()
        connections[using] = before


_limiting = threading.Lock()
#: The number of blocks of ``handlers_limited`` that this process is in.
_limited = 0


@contextmanager
def handlers_limited() -> Iterator[None]:
    """A block in which the connections of this thread, and those that handlers and other code of
    this process open, are cut off where an answer takes longer than
    HANDLER_ANSWER_TIMEOUT. A process may be in several at once."""
    _count_limited(1)
    opened = [each for each in connections.all(initialized_only=True) if each.connection]
    watched = [raw for each in opened if (raw := _limit_handlers(each)) is not None]
    try:
        yield
    finally:
        _count_limited(-1)
        for raw in watched:
            unwatch_raw(raw)


def _count_limited(change: int) -> None:
    global _limited
    with _limiting:
        _limited += change
        if _limited:
            connection_created.connect(_limit_handlers)  # which is connected once at most
        else:
            connection_created.disconnect(_limit_handlers)


def _limit_handlers(connection: BaseDatabaseWrapper, **_named: Any) -> Any:
    """Return the connection of the driver's that is cut off from now on; None: none is."""
    if connection.vendor != "postgresql" or getattr(connection, "is_private_to_keeper", False):
        return None
    raw = connection.connection
    if is_watched(raw):  # since a task before, and for longer than this block
        return None
    watch_raw(
        raw,
        lambda: task_settings.HANDLER_ANSWER_TIMEOUT if _limited else None,
        _setting(HANDLERS_LIMIT),
        connection.alias,
    )
    return raw


def _setting(setting: str) -> str:
    return f"TASK_QUEUE[{setting!r}]"
