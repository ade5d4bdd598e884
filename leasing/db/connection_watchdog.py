"""Cuts off connections whose answers do not come.

A network that swallows a reply has acknowledged the request, so neither the server's timeouts nor
those of TCP end the wait: the thread that sent it would wait for good. A watched connection notes
since when it waits, and one thread of the process hangs up those that wait for longer than they
may, at this end. Its caller gets an OperationalError, as from any connection that
broke.

A handler's statement may take long, and so may its limit be. But the server knows if it is at work:
where nothing has come or gone for ASK_AFTER seconds, a second thread looks the connection's session
up in pg_stat_activity, over a connection of its own. The statement or its reply is lost, and the
connection is hung up, if

- the session is idle, by two looks that are ASK_EVERY apart, since the same moment. Between them
  both the server and the network worked, or there would be no second look; a session that has just
  read the statement, or just ended it, is not idle any more, or since another moment;
- this end waited all the while for one statement, whose last byte the other end has acknowledged,
  and not a byte came: neither a large statement nor a large result is on its way.

Behind a pooler the driver knows a process number that the pooler made up, as the looking connection
finds by its own; another server behind the same address has no session of that number and age. Then
nothing is known, and the limit decides.

The keeper's requests are cut off in the same way, by its own watchdog, which knows what else
depends on them (``leasing.holding.keeper``). Connections of psycopg 3 alone can be watched.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from django.db.backends.base.base import BaseDatabaseWrapper

from leasing.db.dialects import hang_up_raw, patience, private_connection
from leasing.runtime.clock import system_clock
from leasing.runtime.event_lines import log
from leasing.runtime.threads import LastingThread, start_thread

if sys.platform != "win32":
    import fcntl
    import termios

#: Seconds that an answer may take now; None: as long as it likes.
Limit = Callable[[], float | None]

#: Seconds that an answer may take once its caller was asked to stop.
STOP_TIMEOUT = 2.0
#: Looks of the thread in the time of the shortest limit; the longest pause between two, in seconds.
LOOKS, LONGEST_LOOK = 4, 1.0
#: Seconds of silence after which the server is asked if it is at work, and between two questions.
ASK_AFTER, ASK_EVERY = 5.0, 1.0
#: Seconds that an answer to such a question may take.
ASK_LIMIT = 5.0
#: Seconds by which the age of a session may differ from that of its connection, which begins later.
SAME_AGE = 10.0
THREAD, ASKING_THREAD = "leasing-answers", "leasing-lost-answers"

#: ``pg_backend_pid()`` is another than the driver knows where a pooler is between.
IDLE_SESSIONS = """
SELECT pid, state_change FROM pg_stat_activity JOIN unnest(%s::int[], %s::float[]) AS of (pid, age)
USING (pid) WHERE state LIKE 'idle%%' AND pg_backend_pid() = %s
  AND abs(extract(epoch FROM clock_timestamp() - backend_start) - age) < %s
"""


class Server(NamedTuple):
    """The server of a connection: of several that an alias names, the one that answered."""

    using: str
    host: str
    address: str
    port: int

    def connect(self) -> BaseDatabaseWrapper:
        """Return a connection to it, for this thread alone."""
        connection = private_connection(self.using, patience())
        settings = connection.settings_dict
        settings["HOST"], settings["PORT"] = self.host, self.port
        if self.address:
            settings["OPTIONS"]["hostaddr"] = self.address
        # A session's state is shown to the role that logged in.
        settings["OPTIONS"].pop("assume_role", None)
        connection.ensure_connection()
        watch_raw(connection.connection, lambda: ASK_LIMIT, "a question about another connection")
        return connection


class Silence(NamedTuple):
    """The silence of a connection: of the session ``pid``, opened ``age`` seconds ago, nothing has
    come ``since``."""

    server: Server
    pid: int
    age: float
    since: float


class WatchedConnection:
    """A connection of psycopg's to the database ``using``, and since when it waits for an answer.
    None: its server is never asked if it is at work."""

    def __init__(self, raw: Any, limit: Limit, setting: str, using: str | None) -> None:
        # The connection refers to this, which must not keep it open: nobody else closes it.
        self._raw = ref(raw)
        self._using = using
        self._opened_at = system_clock()
        self._waits_since: float | None = None
        #: The moment at which its socket was last ready: something has come, or could be sent.
        self._heard_at = self._opened_at
        #: By the latest question: that moment, and since when its session was idle.
        self._idle: tuple[float, datetime] | None = None
        self._limit = limit
        self._setting = setting
        self._is_unlimited = False
        wait = type(raw).wait

        def wait_watched(steps: Any, *args: Any, **options: Any) -> Any:
            self._waits_since = self._heard_at = system_clock()
            try:
                return wait(self._raw(), self._noted(steps), *args, **options)
            finally:
                self._waits_since = None

        raw.wait = wait_watched

    def _noted(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The same ``steps`` of the driver, which are sent what the socket is ready for."""
        ready = None
        try:
            while True:
                ready = yield steps.send(ready)
                if ready:
                    self._heard_at = system_clock()
        except StopIteration as end:
            return end.value

    @property
    def is_closed(self) -> bool:
        raw = self._raw()
        return raw is None or bool(raw.closed)

    def look(self) -> float:
        """Hang up, if it has waited too long. Return the seconds until the next look."""
        limit, since = self._read_limit(), self._waits_since
        if limit is None:
            return LONGEST_LOOK
        if since is not None and (waited := system_clock() - since) >= limit:
            log.connection_cut_off(seconds=waited, setting=self._setting)
            self._hang_up()
        return limit / LOOKS

    def _read_limit(self) -> float | None:
        try:
            limit = self._limit()
        except Exception:  # of this connection alone: the others are looked after all the same
            if not self._is_unlimited:
                log.connection_unlimited(setting=self._setting, exc_info=True)
            self._is_unlimited = True
            return None
        self._is_unlimited = False
        return limit

    def _hang_up(self) -> None:
        self._waits_since = None
        hang_up_raw(self._raw())

    # A lost answer

    @property
    def silence(self) -> Silence | None:
        """The silence that its server is to be asked about; None: there is none."""
        raw, heard_at = self._raw(), self._heard_at
        if raw is None or self._using is None or self._waits_since is None:
            return None
        now = system_clock()
        if now - heard_at < ASK_AFTER:
            return None
        with suppress(Exception):  # closed meanwhile
            info = raw.info
            # Not where it waits for notifications, and its session may be idle for long.
            if info.transaction_status.name == "ACTIVE" and not _unacknowledged(raw):
                server = Server(self._using, info.host, info.hostaddr, info.port)
                return Silence(server, info.backend_pid, now - self._opened_at, heard_at)
        return None

    def judge(self, silence: Silence, idle_since: datetime | None) -> None:
        """Hang up, if its session is idle in the same ``silence`` for the second time. None: it is
        at work, or nothing is known."""
        before = self._idle
        self._idle = None if idle_since is None else (silence.since, idle_since)
        if (
            self._idle is not None
            and self._idle == before
            and self._waits_since is not None
            and self._heard_at == silence.since
        ):
            log.connection_answer_lost(seconds=system_clock() - silence.since)
            self._hang_up()


def _unacknowledged(raw: Any) -> int:
    """Return the bytes that the other end of the connection has not acknowledged; 0 where the
    system does not tell."""
    if sys.platform == "win32":
        return 0
    try:
        count = fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


class AnswerWatch:
    """Looks after the watched connections of this process, on a thread while there are any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin again. In a forked child: the connections are the parent's."""
        self._wakes = threading.Condition()
        self._watched: WeakSet[WatchedConnection] = WeakSet()
        self._thread: LastingThread | None = None
        self._asking: threading.Thread | None = None

    def add(self, watched: WatchedConnection) -> None:
        """Look after ``watched`` for as long as its connection is there."""
        with self._wakes:
            self._watched.add(watched)
            self._wakes.notify()
        self.ensure_running()

    def ensure_running(self) -> None:
        """Start its thread, also again if that has ended before its work."""
        with self._wakes:
            if self._watched:
                self._thread = self._thread or LastingThread(THREAD, self._work)
                self._thread.ensure_running()

    def _work(self) -> None:
        while self._look():
            pass

    def _look(self) -> bool:
        with self._wakes:
            watched = [each for each in self._watched if not each.is_closed]
            if not watched:
                self._thread = None
                return False
        pause = LONGEST_LOOK
        for each in watched:
            pause = min(pause, each.look())
        if any(each.silence for each in watched) and not (self._asking and self._asking.is_alive()):
            with suppress(RuntimeError):  # there can be no thread more: the next look tries again
                self._asking = start_thread(ASKING_THREAD, self._ask)
        del each, watched  # or they would outlast their connections
        with self._wakes:
            self._wakes.wait(pause)
        return True

    def _ask(self) -> None:
        """Ask the servers of silent connections, until there is none: on a thread that others do
        not wait for, since these answers may be lost too."""
        connections: dict[Server, BaseDatabaseWrapper] = {}
        pause = threading.Event()
        try:
            while silent := self._silent():
                for server, watched in silent.items():
                    try:
                        if server not in connections:
                            connections[server] = server.connect()
                        idle = _idle_sessions(connections[server], list(watched.values()))
                    except Exception:  # nothing is known, and the limits decide
                        if server in connections:
                            connections.pop(server).close()
                        continue
                    for each, silence in watched.items():
                        each.judge(silence, idle.get(silence.pid))
                pause.wait(ASK_EVERY)
        finally:
            for connection in connections.values():
                connection.close()

    def _silent(self) -> dict[Server, dict[WatchedConnection, Silence]]:
        found: defaultdict[Server, dict[WatchedConnection, Silence]] = defaultdict(dict)
        with self._wakes:
            watched = list(self._watched)
        for each in watched:
            if (silence := each.silence) is not None:
                found[silence.server][each] = silence
        return found


def _idle_sessions(connection: Any, silences: list[Silence]) -> dict[int, datetime]:
    """Return since when the sessions of ``silences`` are idle, of those that are."""
    pids, ages = [each.pid for each in silences], [each.age for each in silences]
    own = connection.connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute(IDLE_SESSIONS, [pids, ages, own, SAME_AGE])
        return dict(cursor.fetchall())


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
        watch_raw(raw, limit, setting, connection.alias)
        return raw

    connection.get_new_connection = connect_watched  # type: ignore[method-assign, assignment]
    if connection.connection is not None:
        watch_raw(connection.connection, limit, setting, connection.alias)


def watch_raw(raw: Any, limit: Limit, setting: str, using: str | None = None) -> None:
    """``watch_answers``, of an open connection of the driver's. Unless ``using`` is its database,
    its server is not asked if it is at work."""
    if hasattr(raw, "wait"):
        answers.add(WatchedConnection(raw, limit, setting, using))


def is_watched(raw: Any) -> bool:
    """Return True if ``raw`` is cut off already."""
    return "wait" in vars(raw)


def unwatch_raw(raw: Any) -> None:
    """Cut the connection ``raw`` off no longer."""
    vars(raw).pop("wait", None)
