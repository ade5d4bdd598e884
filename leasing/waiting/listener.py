"""Listening to PostgreSQL's notifications of releases: one thread and one connection of its own.

The connection is opened when the first caller waits and closed soon after the last stopped. A
notification that is missed meanwhile costs a poll. Behind a pooler in transaction mode LISTEN
succeeds and nothing ever arrives: so each connection is tried out first, over another one, and
without an answer the polls alone serve for a while.
"""

from __future__ import annotations

import math
import selectors
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Self

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from leasing.conf import leasing_settings
from leasing.db.connection_watchdog import watch_answers, watch_raw
from leasing.db.dialects import CHANNEL, private_connection
from leasing.runtime import clock
from leasing.runtime.event_lines import log
from leasing.runtime.services import Service
from leasing.runtime.threads import start_thread

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
            watch_raw(raw, lambda: ANSWERED_WITHIN, LIMITED_BY)
            raw.execute(f"LISTEN {channel}")
            yield raw
        return
    with _private_connection(using) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {channel}")
        yield connection.connection


@contextmanager
def _private_connection(using: str) -> Iterator[BaseDatabaseWrapper]:
    connection = private_connection(using, PATIENCE)
    watch_answers(connection, lambda: ANSWERED_WITHIN, LIMITED_BY)
    try:
        connection.set_autocommit(True)
        yield connection
    finally:
        connection.close()


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
    with _private_connection(using) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, trial])
    return trial


def can_listen(using: str) -> bool:
    """Return True if this process can wait for notifications of the database ``using``."""
    if using not in connections.settings or connections[using].vendor != "postgresql":
        return False
    if clock.stand_in is not None:
        return False  # a test by hand: nothing is committed, and the listener would outlive it
    return find_spec("psycopg") is not None  # the older driver cannot wait for notifications


#: Seconds between looks whether anybody still waits.
CHECK_EVERY = 1.0
#: Seconds in which what was sent to try a connection out has to arrive, and for which nobody
#: listens when it did not.
ARRIVAL, DEAFNESS = 5.0, 300.0


class Listener:
    """Passes the notifications of the database ``using`` to ``hear`` while ``is_wanted``, which
    is asked under ``lock``."""

    def __init__(
        self,
        using: str,
        hear: Callable[[str], object],
        is_wanted: Callable[[], bool],
        lock: threading.Lock,
        channel: str = CHANNEL,
    ) -> None:
        self.using = using
        self._hear = hear
        self._is_wanted = is_wanted
        self._lock = lock
        self._channel = channel
        self._thread: threading.Thread | None = None
        self._service = Service(
            self._listen_until_unwanted, log.notifications_failed, expected=(Exception,)
        )
        #: Until when nobody listens, since nothing arrives.
        self._deaf_until = 0.0
        #: True while it listens and notifications are known to arrive.
        self.arrives = False

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Listen from now on, where that is possible. To be called under the lock."""
        if self._thread is not None and self._thread.is_alive():
            return
        if clock.system_clock() >= self._deaf_until and can_listen(self.using):
            with suppress(RuntimeError):  # there can be no thread more: waiters poll
                self._thread = start_thread("leasing-listener", self._listen)

    def _listen(self) -> None:
        while self._goes_on():
            time.sleep(self._service.step())

    def _listen_until_unwanted(self) -> float:
        try:
            self._pass_on()
        finally:
            self.arrives = False
        return 0.0

    def _pass_on(self) -> None:
        with listening(self.using, self._channel) as raw, Notifications(raw) as notes:
            trial = notify_trial(self.using, self._channel)
            # Not before: LISTEN_URL may lead to a server that answers while the pooler is away.
            self._service.failures.succeeded()
            arrives_by = clock.system_clock() + ARRIVAL
            while self._goes_on(end=False):
                for payload in notes.within(CHECK_EVERY):
                    if payload == trial:
                        arrives_by, self.arrives = math.inf, True
                        if self._deaf_until:
                            log.notifications_arrive()
                        self._deaf_until = 0.0
                    self._hear(payload)
                if clock.system_clock() > arrives_by:
                    if not self._deaf_until:
                        log.notifications_swallowed()
                    self._deaf_until = clock.system_clock() + DEAFNESS
                    return

    def _goes_on(self, end: bool = True) -> bool:
        with self._lock:
            wanted = self._is_wanted() and clock.system_clock() >= self._deaf_until
            if not wanted and end:
                self._thread = None
            return wanted
