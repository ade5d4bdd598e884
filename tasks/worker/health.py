"""The health of a worker, from what its threads have noted: see ``tasks.runtime.health``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from leasing.db.unapplied import find_unapplied
from leasing.holding.keeper import keeper
from leasing.runtime.clock import clock, system_clock
from leasing.runtime.services import Service
from tasks.conf import task_settings
from tasks.execution.completer import Completer
from tasks.log import log
from tasks.runtime.health import HUNG_AFTER, LATE_AFTER, Health

#: A thread counts as hung after HUNG_AFTER, and after so many times ANSWER_TIMEOUT at least: longer
#: than a database that does not answer keeps it.
ANSWERS = 4
#: Seconds between looks at the migrations, until all are applied and after.
MIGRATIONS_EVERY, APPLIED_FOR = 5.0, 3600.0


class WorkerHealth:
    """Judges one worker, without a query.

    Args:
        claiming: The service of the main thread.
        completer: Stores the results.
        stopping: Set when the worker is asked to stop.
        is_ending: Returns True once the worker claims no more.
    """

    def __init__(
        self,
        claiming: Service,
        completer: Completer,
        stopping: threading.Event,
        is_ending: Callable[[], bool],
    ) -> None:
        self._claiming = claiming
        self._completer = completer
        self._stopping = stopping
        self._is_ending = is_ending
        #: True if somebody asks: then the migrations are looked at.
        self.is_observed = False
        #: The services that tick every few seconds, by what they do.
        self.lasting: dict[str, Service] = {}
        #: The sentence about migrations; None: it is not known yet.
        self._unapplied: str | None = None
        self.migrations = Service(
            self._look_at_migrations, log.migrations_unread, longest=MIGRATIONS_EVERY
        )

    def read(self) -> Health:
        """Return the health of the worker now. Raises nothing."""
        return Health(tuple(self._hung()), tuple(self._stalled()), tuple(self._closed()))

    def _hung(self) -> Iterator[str]:
        limit = max(HUNG_AFTER, ANSWERS * task_settings.ANSWER_TIMEOUT)
        ages = {"its main thread": _age(self._claiming) if self._claiming.is_ticking else 0.0}
        ages |= {f"the thread for {each}": _age(self.lasting[each]) for each in self.lasting}
        for thread, seconds in ages.items():
            if seconds > limit:
                yield f"No sign of life from {thread} for {seconds:.0f} s."

    def _stalled(self) -> Iterator[str]:
        if self._claiming.is_failing:
            yield "Claims are failing."
        elif self._claiming.is_ticking and _age(self._claiming) > LATE_AFTER:
            yield f"A claim has had no answer for {_age(self._claiming):.0f} s."
        if any(each.is_failing for each in self.lasting.values()):
            yield "Heartbeats are failing."
        if keeper.draining:
            yield "Renewals are failing or late."
        waits_since = self._completer.waits_since
        is_late = waits_since is not None and clock() - waits_since > LATE_AFTER
        if self._completer.database_down or is_late:
            yield "Results cannot be stored."

    def _closed(self) -> Iterator[str]:
        if self._stopping.is_set():
            yield "Shutting down."
        elif self._is_ending():
            yield "Finishing its last tasks before it exits."
        elif not self._claiming.has_succeeded:
            yield "Starting: no claim has succeeded yet."
        if self._unapplied is None:
            yield "Migrations have not been checked yet."
        elif self._unapplied:
            yield self._unapplied

    def _look_at_migrations(self) -> float:
        self._unapplied = find_unapplied()
        return MIGRATIONS_EVERY if self._unapplied else APPLIED_FOR


def _age(service: Service) -> float:
    """Return the seconds since ``service`` last began a tick; 0 before its first."""
    return 0.0 if service.began_at is None else system_clock() - service.began_at
