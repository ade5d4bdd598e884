"""Hears of releases from PostgreSQL, on one connection for the whole process.

The connection is opened when the first caller waits and closed soon after the last stopped. What
is missed while it is away costs a poll, no more. Behind a pooler in transaction mode LISTEN
succeeds and nothing ever arrives: so each connection is tried out first, over another one, and
without an answer the polls alone serve for a while.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from leasing.conf import leasing_settings
from leasing.db.notifications import CHANNEL, Notes, can_listen, listening, notify_trial
from leasing.exceptions import LeaseHeld, LeaseTimeout
from leasing.runtime import clock, probes
from leasing.runtime.aio import Steps, Undoable
from leasing.runtime.event_logger import get_logger
from leasing.runtime.outage import Streak
from leasing.runtime.threads import start_thread
from leasing.validation.names import check_duration
from leasing.waiting import Waiter

logger = get_logger("leasing")

#: Seconds between looks whether anybody still waits, and of the first pause after a failure; of
#: the longest one.
TICK, LONGEST_PAUSE = 1.0, 5.0
#: Seconds in which what was sent to try a connection out has to arrive, and for which nobody
#: listens when it did not.
ARRIVAL, DEAFNESS = 5.0, 300.0


class Bell:
    """Rings the waiters of one database."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.forget()

    def forget(self) -> None:
        """Begin anew. In a forked child: the waiters are the parent's, and so is the thread."""
        self._lock = threading.Lock()
        self._waiters: defaultdict[str, list[Waiter]] = defaultdict(list)
        self._thread: threading.Thread | None = None
        #: Until when nobody listens, for want of anything to hear.
        self._deaf_until = 0.0

    def add(self, resource: str, waiter: Waiter) -> None:
        with self._lock:
            self._waiters[resource].append(waiter)
            is_heard = self._thread is not None and self._thread.is_alive()
            if not is_heard and self._hears and can_listen(self.using):
                with suppress(RuntimeError):  # there can be no thread more: waiters look again
                    self._thread = start_thread("leasing-bell", self._listen)

    def remove(self, resource: str, waiter: Waiter) -> None:
        with self._lock:
            waiting = self._waiters[resource]
            if waiter in waiting:
                waiting.remove(waiter)
            if not waiting:
                del self._waiters[resource]

    def ring(self, resource: str) -> None:
        """Wake the caller that has waited longest."""
        if not self._waiters:
            return  # nobody waits yet: as if whoever is just coming came after
        with self._lock:
            waiting = self._waiters.get(resource)
            if waiting:
                waiting[0].ring()

    @property
    def _hears(self) -> bool:
        return clock.system_clock() >= self._deaf_until

    def _listen(self) -> None:
        failures = Streak(TICK, LONGEST_PAUSE)
        while self._is_wanted():
            try:
                self._listen_once(failures)
            except Exception as error:
                pause = failures.failed(error)
                logger.log(
                    failures.level,
                    "releases are not heard for a moment: %s",
                    error,
                    event="notifications.failed",
                    error=error,
                )
                time.sleep(pause)

    def _listen_once(self, failures: Streak) -> None:
        with listening(self.using, CHANNEL) as raw, Notes(raw) as notes:
            failures.succeeded()
            trial = notify_trial(self.using, CHANNEL)
            arrives_by = clock.system_clock() + ARRIVAL
            while self._is_wanted(end=False):
                for payload in notes.within(TICK):
                    if payload == trial:
                        arrives_by = math.inf
                    self.ring(payload)
                if clock.system_clock() > arrives_by:
                    self._give_up()
                    return

    def _give_up(self) -> None:
        if not self._deaf_until:
            logger.warning(
                "PostgreSQL's notifications do not arrive, so who waits for a lease polls for it:"
                " is there a pooler in transaction mode? LEASING['LISTEN_URL'] leads around it",
                event="notifications.swallowed",
            )
        self._deaf_until = clock.system_clock() + DEAFNESS

    def _is_wanted(self, end: bool = True) -> bool:
        with self._lock:
            wanted = bool(self._waiters) and self._hears
            if not wanted and end:
                self._thread = None
            return wanted


_bells: dict[str, Bell] = {}
_bells_lock = threading.Lock()


def bell(using: str) -> Bell:
    """The bell of the database ``using``."""
    with _bells_lock:
        return _bells.setdefault(using, Bell(using))


@contextmanager
def waiting(
    using: str, resource: str, until: float, stopping: threading.Event | None = None
) -> Iterator[Waiter]:
    """A waiter for ``resource`` that hears of releases while the block runs; ``stopping`` ends
    its pauses."""
    waiter = Waiter(until, stopping, resource)
    bell(using).add(resource, waiter)
    try:
        yield waiter
    except BaseException:
        bell(using).remove(resource, waiter)
        # It may have been rung for and then not have come: let the next one look.
        bell(using).ring(resource)
        raise
    bell(using).remove(resource, waiter)


def taking(
    using: str,
    resource: str,
    wait: float | None,
    attempt: Undoable,
    *,
    say_wanted: Callable[[], object] = lambda: None,
    stopping: threading.Event | None = None,
) -> Steps[Any]:
    """The steps of taking ``resource``, for a driver: ``attempt``, and wait between attempts for
    ``wait`` seconds (None: the setting), or until ``stopping`` is set."""
    if wait is None:
        wait = leasing_settings.WAIT
    patience = check_duration(wait, "wait").total_seconds()
    try:
        taken = yield attempt
        return taken
    except LeaseHeld:
        if not patience:
            raise
    with waiting(using, resource, clock.clock() + patience, stopping) as waiter:
        while True:
            yield say_wanted
            yield waiter
            if waiter.stopped:
                raise LeaseTimeout(resource)
            try:
                taken = yield attempt
                return taken
            except LeaseHeld as held:
                if not waiter.left:
                    raise LeaseTimeout(resource, held.holder, held.expires_at) from held


def timed(model: type[Any], steps: Steps[Any]) -> Steps[Any]:
    """``steps`` of taking a row of ``model``, and how long they took, for those who measure."""
    began_at, outcome = clock.clock(), "other"
    try:
        taken = yield from steps
        outcome = "acquired" if taken.previous_expired_at is None else "taken_over"
        return taken
    except LeaseTimeout:
        outcome = "timed_out"
        raise
    except LeaseHeld:
        outcome = "held"
        raise
    finally:
        probes.acquiring(model, outcome, clock.clock() - began_at)


def _forget() -> None:
    global _bells_lock
    _bells_lock = threading.Lock()
    for known in _bells.values():
        known.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
