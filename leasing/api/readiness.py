"""Readiness of this process: its database answers, and all migrations are applied.

Probes ask often, and nobody has to sign in for the answer. So requests share one that is a second
old, one of them at a time asks the database, and none waits for a database that hangs: the
connection is a private one on a thread of its own. While a question is not answered, no other is
asked, so that an outage costs one thread: the question ends with the connection
(``leasing.db.connection_watchdog``), or with what keeps that from being opened. Not every driver's
connections can be cut off, and one that hangs for good must not hide that the database is back:
after a minute another question is asked.
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
#: Seconds after which a question without an answer no longer keeps another from being asked.
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
        #: The connection of the latest question.
        self._question: SideConnection | None = None
        self._read_at = self._asked_at = float("-inf")

    def read(self) -> Readiness:
        """Return the state of this process, soon in any case."""
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


#: That of this process.
probe = Probe()
