"""Cuts off connections whose answers do not come.

A network that swallows a reply has acknowledged the request, so neither the server's timeouts nor
those of TCP end the wait: the thread that sent it would wait for good. A watched connection notes
since when it waits, and one thread of the process hangs up those that wait for longer than they
may, at this end of the line. Its caller gets an OperationalError, as from any connection that
broke.

The keeper's requests are cut off in the same way, by its own watchdog, which knows what else
depends on them (``leasing.keeper``). Connections of psycopg 3 alone can be watched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet, ref

from django.db.backends.base.base import BaseDatabaseWrapper

from leasing.db.dialects import hang_up_raw
from leasing.runtime.clock import system_clock
from leasing.runtime.event_lines import log
from leasing.runtime.threads import LastingThread

#: Seconds that an answer may take now; None: as long as it likes.
Limit = Callable[[], float | None]

#: Seconds that an answer may take once its caller was asked to stop.
LAST_CALL = 2.0
#: Looks of the thread in the time of the shortest limit; the longest pause between two, in seconds.
LOOKS, LONGEST_LOOK = 4, 5.0
THREAD = "leasing-answers"


class Line:
    """A connection of psycopg's, and since when it waits for an answer."""

    __slots__ = ("__weakref__", "_is_unlimited", "_limit", "_raw", "_setting", "_waits_since")

    def __init__(self, raw: Any, limit: Limit, setting: str) -> None:
        # The connection has the line, and not the line the connection, which nobody else closes.
        self._raw = ref(raw)
        self._waits_since: float | None = None
        self._limit = limit
        self._setting = setting
        self._is_unlimited = False
        wait = type(raw).wait

        def wait_watched(*args: Any, **options: Any) -> Any:
            self._waits_since = system_clock()
            try:
                return wait(self._raw(), *args, **options)
            finally:
                self._waits_since = None

        raw.wait = wait_watched

    @property
    def is_closed(self) -> bool:
        raw = self._raw()
        return raw is None or bool(raw.closed)

    def look(self) -> float:
        """Hang up, if it has waited too long. Return the seconds until the next look."""
        limit, since = self._read_limit(), self._waits_since
        if limit is None:
            return LONGEST_LOOK
        if since is not None and system_clock() - since >= limit:
            self._waits_since = None
            self._hang_up(limit)
        return limit / LOOKS

    def _read_limit(self) -> float | None:
        try:
            limit = self._limit()
        except Exception:  # of this line alone: the others are looked after all the same
            if not self._is_unlimited:
                log.connection_unlimited(setting=self._setting, exc_info=True)
            self._is_unlimited = True
            return None
        self._is_unlimited = False
        return limit

    def _hang_up(self, limit: float) -> None:
        log.connection_cut_off(seconds=limit, setting=self._setting)
        hang_up_raw(self._raw())


class AnswerWatch:
    """Looks after the lines of this process, on a thread that there is while there are any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again. In a forked child: the connections are the parent's."""
        self._wakes = threading.Condition()
        self._lines: WeakSet[Line] = WeakSet()
        self._thread: LastingThread | None = None

    def add(self, line: Line) -> None:
        """Look after ``line`` for as long as its connection is there."""
        with self._wakes:
            self._lines.add(line)
            self._wakes.notify()
        self.tend()

    def tend(self) -> None:
        """Start its thread, also again if that has ended before its work."""
        with self._wakes:
            if self._lines:
                self._thread = self._thread or LastingThread(THREAD, self._work)
                self._thread.tend()

    def _work(self) -> None:
        while self._look():
            pass

    def _look(self) -> bool:
        with self._wakes:
            lines = [line for line in self._lines if not line.is_closed]
            if not lines:
                self._thread = None
                return False
        pause = LONGEST_LOOK
        for line in lines:
            pause = min(pause, line.look())
        del line, lines  # or they would outlast their connections
        with self._wakes:
            self._wakes.wait(pause)
        return True


answers = AnswerWatch()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=answers.forget)


def watch_answers(connection: BaseDatabaseWrapper, limit: Limit, setting: str) -> None:
    """Cut a connection off whenever an answer takes too long.

    Args:
        connection: The connection, which may be open, or be opened later.
        limit: Returns the seconds that an answer may take.
        setting: The name of that limit in the log.
    """
    if connection.vendor != "postgresql":
        return  # no network is between
    connect = connection.get_new_connection

    def connect_watched(params: dict[str, Any]) -> Any:
        raw = connect(params)
        watch_raw(raw, limit, setting)
        return raw

    connection.get_new_connection = connect_watched  # type: ignore[method-assign, assignment]
    if connection.connection is not None:
        watch_raw(connection.connection, limit, setting)


def watch_raw(raw: Any, limit: Limit, setting: str) -> None:
    """``watch_answers``, of an open connection of the driver's."""
    if hasattr(raw, "wait"):
        answers.add(Line(raw, limit, setting))


def unwatch_raw(raw: Any) -> None:
    """Cut the connection ``raw`` off no longer."""
    vars(raw).pop("wait", None)
