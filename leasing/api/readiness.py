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
from typing import NamedTuple

from django.db import Error

from leasing.conf import leasing_settings
from leasing.db.side_connection import SideConnection
from leasing.db.unapplied import find_unapplied
from leasing.runtime.clock import system_clock
from leasing.web.cache import shared

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


_asking = threading.Lock()
#: The connection of the latest question, and the moment at which it was asked.
_latest: SideConnection | None = None
_asked_at = float("-inf")


def read_readiness() -> Readiness:
    """Return the state of this process, soon in any case."""
    with _asking:
        return shared("readiness", _read, fresh=False, seconds=SHARED_FOR)


def _read() -> Readiness:
    global _latest, _asked_at
    using = leasing_settings.DATABASE
    away = f"The database {using!r} is not reachable."
    is_recent = system_clock() - _asked_at < FORGOTTEN_AFTER
    if _latest is not None and _latest.is_busy and is_recent:
        return Readiness(away, "it has not answered an earlier question yet")
    _latest, _asked_at = SideConnection(using, seconds=ANSWER_WITHIN), system_clock()
    try:
        with _latest as connection:
            return Readiness(connection.run(find_unapplied))
    except Error as error:
        return Readiness(away, str(error).strip())
