"""The transport of PostgreSQL's notifications: sending, listening, and trying a connection out.

Behind a pooler in transaction mode LISTEN succeeds and nothing ever arrives, so a listener sends
itself a trial over another connection.
"""

from __future__ import annotations

import selectors
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from leasing.conf import leasing_settings
from leasing.db.connection_watchdog import watch_answers, watch_raw
from leasing.db.dialects import private_connection
from leasing.runtime import clock

#: The channel of releases.
CHANNEL = "leasing_released"
#: Seconds that a connect, an unanswered packet or a trial of a listener may take.
PATIENCE = 1.0
#: Seconds until a listener is cut off whose statement is not answered.
ANSWERED_WITHIN = 15.0
LIMITED_BY = "a listener's"


def announce(using: str, resource: str) -> None:
    """Tell the waiters of all processes when this transaction commits."""
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, resource])


def notifications_arrive(using: str) -> bool:
    """Return True if a notification that is sent arrives: behind a pooler in transaction mode it
    does not. True where nobody listens anyway."""
    if not can_listen(using):
        return True
    with listening(using, "leasing_check") as raw:
        trial = notify_trial(using, "leasing_check")
        return any(note.payload == trial for note in raw.notifies(timeout=PATIENCE, stop_after=1))


@contextmanager
def listening(using: str, channel: str) -> Iterator[Any]:
    """A connection of psycopg's that listens, outside of any pool and any transaction."""
    url = leasing_settings.LISTEN_URL if using == leasing_settings.DATABASE else None
    if url:
        import psycopg

        patience: Any = {"connect_timeout": 2, "tcp_user_timeout": int(1000 * PATIENCE)}
        connected: Any = psycopg.connect(url, autocommit=True, **patience)
        with connected as raw:
            watch_raw(raw, _limit, LIMITED_BY)
            raw.execute(f"LISTEN {channel}")
            yield raw
        return
    connection = _private_connection(using)
    try:
        connection.set_autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {channel}")
        yield connection.connection
    finally:
        connection.close()


def _private_connection(using: str) -> BaseDatabaseWrapper:
    connection = private_connection(using, PATIENCE)
    watch_answers(connection, _limit, LIMITED_BY)
    return connection


def _limit() -> float:
    return ANSWERED_WITHIN


class Notifications:
    """Wait for notifications on the connection ``raw`` of psycopg, in a ``with`` block: by one
    system call, where psycopg wakes ten times a second."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        #: True if notifications may have been read along with the answer to LISTEN.
        self._is_fresh = True

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._raw.fileno(), selectors.EVENT_READ)
        return self

    def __exit__(self, *failure: object) -> None:
        self._selector.close()

    def within(self, seconds: float) -> list[str]:
        """Return the notifications that have arrived, or else the first to arrive within
        ``seconds``."""
        fresh, self._is_fresh = self._is_fresh, False
        if fresh and (came := self._read()):
            return came
        return self._read() if self._selector.select(max(0.0, seconds)) else []

    def _read(self) -> list[str]:
        return [note.payload for note in self._raw.notifies(timeout=0)]


def notify_trial(using: str, channel: str) -> str:
    """Notify ``channel`` of something that begins with a space, as nothing else does, and return
    it. Over another connection: one's own arrive where those of others do not."""
    trial = f" {uuid.uuid4()}"
    connection = _private_connection(using)
    try:
        connection.set_autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [channel, trial])
    finally:
        connection.close()
    return trial


def can_listen(using: str) -> bool:
    """Return True if this process can wait for notifications of the database ``using``."""
    if using not in connections.settings or connections[using].vendor != "postgresql":
        return False
    if clock.stand_in is not None:
        return False  # a test by hand: nothing is committed, and the listener would outlive it
    try:
        import psycopg  # noqa: F401 - the older driver cannot wait for notifications
    except ImportError:
        return False
    return True
