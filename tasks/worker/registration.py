"""Keeps the row of this worker, or controller, up to date while it lives."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import Error

from leasing.conf import leasing_settings
from leasing.functions import after, database_now
from leasing.humanize import span
from leasing.runtime.clock import clock
from leasing.runtime.events import happened, is_heard
from leasing.runtime.services import Service
from leasing.runtime.threads import apart
from tasks import registry
from tasks.exceptions import NameTaken
from tasks.log import log
from tasks.models import Worker, WorkerRole, WorkerState
from tasks.runtime.connection import lasting_connection
from tasks.runtime.process_identity import is_running, own_identity
from tasks.runtime.service_threads import ServiceThreads
from tasks.runtime.timing import USUAL

#: Tries to take a name whose row changes while it is looked at.
TRIES = 3
#: Seconds between looks whether a name that a process of another host has is free.
LOOK_EVERY = 1.0


class Presence:
    """Keeps the row of the worker called ``name`` up to date.

    Only one live process has a name. A process of this host that runs keeps it (NameTaken); one
    that has ended is replaced at once. A process of another host, or of another container, cannot
    be seen: its name is free once its row counts as gone. Two that start at the same time are told
    apart by one conditional update.

    The workers of a parent have names of their own. The name of the parent is taken in the same way
    as long as another parent of that name has a worker with the same number.

    Args:
        name: The name of the worker.
        news: Returns the columns that each heartbeat writes.
        on_taken: Called with the error when another process has taken the name meanwhile: this one
            was silent.
        every: Seconds between heartbeats.
        what: The columns that are written at the start.
    """

    def __init__(
        self,
        name: str,
        news: Callable[[], Mapping[str, Any]] = dict,
        on_taken: Callable[[NameTaken], object] = lambda taken: None,
        *,
        every: float = USUAL.seen_every,
        **what: Any,
    ) -> None:
        self._name = name
        self._news = news
        self._on_taken = on_taken
        self._every = every
        self._what = what
        self._is_known = self._is_taken = False
        #: The moment of its first registration, on this process's clock.
        self._began_at: float | None = None
        self._heartbeats = Service(
            self._tick,
            partial(log.worker_unseen, worker=name),
            close=lambda: sign_off(name),
            longest=every,
        )

    def begin(self, stopping: threading.Event) -> bool:
        """Take the name, when it is free. Returns False if ``stopping`` was set before. A database
        that is away is no hindrance: the heartbeats try again. Raises NameTaken."""
        logged_at: float | None = None
        while not stopping.is_set():
            try:
                other = self._rival() or self._take_name()
            except Error as error:
                self._heartbeats.fail(error)
                if logged_at is None:
                    return True
            else:
                if other is None:
                    return True
                if is_running(other.pid, other.process):
                    raise self._refusal(other)
                if logged_at is None or clock() - logged_at >= Worker.GONE_AFTER.total_seconds():
                    _log_wait(other)
                    logged_at = clock()
            stopping.wait(LOOK_EVERY)
        return False

    def service(self) -> Service:
        """Shows signs of life, and at its end notes that the worker has stopped."""
        return self._heartbeats

    def _tick(self) -> float:
        known = {"process": own_identity(), **self._news()}
        if not (self._is_known and Worker.objects.seen(self._name, **known)):
            other = self._take_name()
            if other is not None and not self._is_taken:
                log.worker_name_taken(worker=self._name, pid=other.pid, hostname=other.hostname)
                self._on_taken(self._refusal(other))
            self._is_taken = other is not None
        if is_heard("clock.read"):
            sent_at = clock()
            now = database_now(leasing_settings.DATABASE)
            happened("clock.read", now=now, took=clock() - sent_at)
        return self._every

    def _take_name(self) -> Worker | None:
        """Register under the name. Returns the row of the process that has it; None if this one
        has it now."""
        Worker.objects.forget_gone()
        found: Worker | None = None
        for _ in range(TRIES):
            found = Worker.objects.with_state().filter(name=self._name).first()
            if found is not None and _has_its_name(found):
                break
            if _register(self._name, found, self._what | self._start()):
                self._is_known = True
                return None
        return found

    def _rival(self) -> Worker | None:
        """Return the row of a live worker that has the number of this one under another parent of
        the same name; None if there is none, or no parent."""
        fleet = self._what.get("fleet")
        if fleet is None:
            return None
        same = Worker.objects.with_state().filter(
            fleet=fleet, fleet_index=self._what["fleet_index"], stopped_at=None
        )
        return next(filter(_has_its_name, same.exclude(name=self._name)), None)

    def _start(self) -> dict[str, Any]:
        """Return the column of the start, for a row that was deleted meanwhile: a task that is
        older than that looks as if its process had ended."""
        if self._began_at is None:
            self._began_at = clock()
            return {}
        return {"started_at": after(timedelta(seconds=self._began_at - clock()))}

    def _refusal(self, other: Worker) -> NameTaken:
        hostname = "" if is_running(other.pid, other.process) else other.hostname
        option = "--hostname" if self._what.get("role") == WorkerRole.CELERY else "--name"
        return NameTaken(self._what.get("fleet") or self._name, other.pid, hostname, option)


def _has_its_name(worker: Worker) -> bool:
    """Return True if the process of the row ``worker`` lives, or may live."""
    if worker.stopped_at is not None or worker.process == own_identity():
        return False  # workers of one process share their row, and one that was silent is back
    running = is_running(worker.pid, worker.process)
    state = worker.state  # type: ignore[attr-defined]
    return state != WorkerState.GONE if running is None else running


def _log_wait(other: Worker) -> None:
    log.worker_waits(
        worker=other.name,
        pid=other.pid,
        hostname=other.hostname,
        last_seen=span(other.now - other.last_seen_at),  # type: ignore[attr-defined]
        limit=span(Worker.GONE_AFTER),
    )


@contextmanager
def presented(
    name: str, ended: threading.Event, role: str, **what: Any
) -> Iterator[ServiceThreads]:
    """A block in which this process is shown among the workers, although it runs no tasks. Its
    thread has a lasting connection, and receivers are called apart. Waits until the name is free.
    Raises NameTaken, before the block or after it.

    Args:
        name: The name of the process.
        ended: Ends the wait for the name. Set when another process takes the name, and when the
            block is left.
        role: One of WorkerRole.
        what: Further columns of its row.
    """
    none: dict[str, Any] = {"queues": [], "handlers": {}, "slots": {}, "sweeps": False}
    threads = ServiceThreads(ended)
    losses: list[NameTaken] = []

    def stop(taken: NameTaken) -> None:
        losses.append(taken)
        ended.set()

    try:
        with lasting_connection(ended), apart(threads.callbacks):
            registration = Presence(name, on_taken=stop, **none | {"role": role} | what)
            registration.begin(ended)
            threads.start("registration", registration.service())
            yield threads
    finally:
        threads.stop()
    if losses:
        raise losses[0]


def sign_off(name: str) -> None:
    """Note that the worker called ``name`` has stopped, if the database is there."""
    try:
        Worker.objects.sign_off(name, process=own_identity())
    except Error as error:
        log.worker_sign_off_failed(worker=name, error=error)


def _register(name: str, instead_of: Worker | None, what: dict[str, Any]) -> bool:
    return Worker.objects.register(
        name,
        process=own_identity(),
        instead_of=instead_of,
        hostname=socket.gethostname()[:255],
        pid=os.getpid(),
        **{"handlers": registry.kinds(), "blocked": {}} | what,
    )
