"""Readiness of this process: its database answers, and all migrations are applied.

Probes are frequent, and need no credentials. So requests share an answer for a second, only one
request at a time queries the database, and no request waits for a database that hangs: the query
uses a private connection on a thread of its own. While a query is not answered, no other is sent,
so that an outage costs one thread. The query ends with its connection (see
``leasing.db.connection_watchdog``), or when the attempt to open the connection ends. Not every
driver's connections can be cut off, and a connection that hangs for good must not hide that the
database is back: after a minute, another query is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from django.db import Error

from leasing.conf import leasing_settings
from leasing.db.side_connection import SideConnection
from leasing.db.unapplied import find_unapplied
from leasing.runtime.clock import system_clock

#: Seconds in which the database has to answer.
ANSWER_WITHIN = 2.0
#: Seconds after which a query without an answer no longer prevents another query.
FORGOTTEN_AFTER = 60.0
#: Seconds for which requests share an answer.
SHARED_FOR = 1.0


class Readiness(NamedTuple):
    """The state of this process: ``missing`` is a sentence for the client, empty if it is ready;
    ``error`` is that of the database, for the log alone."""

    missing: str
    error: str = ""


class Probe:
    """Asks the database for the state of this process.

    Args:
        ask: Return what is missing, and raise Error if the database does not answer.
        clock: Return the seconds of a clock that is never set.
        answer_within: Seconds in which the database has to answer.
    """

    def __init__(
        self,
        ask: Callable[[], str] = find_unapplied,
        clock: Callable[[], float] = system_clock,
        answer_within: float = ANSWER_WITHIN,
    ) -> None:
        self._ask, self._clock, self._answer_within = ask, clock, answer_within
        self._reading = threading.Lock()
        self._latest = Readiness("")
        #: The connection of the latest query.
        self._question: SideConnection | None = None
        self._read_at = self._asked_at = float("-inf")

    def read(self) -> Readiness:
        """Return the state of this process, even if the database hangs."""
        with self._reading:
            if self._clock() - self._read_at >= SHARED_FOR:
                self._latest = self._read()
                self._read_at = self._clock()
            return self._latest

    def _read(self) -> Readiness:
        using, now = leasing_settings.DATABASE, self._clock()
        away = f"The database {using!r} is not reachable."
        is_recent = now - self._asked_at < FORGOTTEN_AFTER
        if self._question is not None and self._question.is_busy and is_recent:
            return Readiness(away, "it has not answered an earlier question yet")
        self._question = SideConnection(using, seconds=self._answer_within)
        self._asked_at = now
        try:
            with self._question as connection:
                return Readiness(connection.run(self._ask))
        except Error as error:
            return Readiness(away, str(error).strip())


#: The probe of this process.
probe = Probe()
