"""Keeps the row of this worker, or of another process, up to date while it lives."""

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
from leasing.runtime.clock import clock
from leasing.runtime.events import happened, is_heard
from leasing.runtime.services import Service
from leasing.runtime.threads import apart
from tasks import registry
from tasks.log import log
from tasks.models import Worker
from tasks.runtime.connection import lasting_connection
from tasks.runtime.service_threads import ServiceThreads
from tasks.runtime.timing import USUAL


class WorkerRegistration:
    """Keeps the row of the worker called ``name`` up to date.

    The row takes the place of those that had its label on its host and have ended, also of one that
    counts as gone only a while after the start of this one.

    Args:
        name: The name of the worker, which no other process has.
        news: Returns the columns that each heartbeat writes.
        every: Seconds between heartbeats.
        what: The columns that are written at the start.
    """

    def __init__(
        self,
        name: str,
        news: Callable[[], Mapping[str, Any]] = dict,
        *,
        every: float = USUAL.seen_every,
        **what: Any,
    ) -> None:
        self._name = name
        self._news = news
        self._every = every
        self._what = {
            "hostname": socket.gethostname()[:255],
            "pid": os.getpid(),
            "handlers": registry.kinds(),
            **what,
        }
        #: The moment of its first registration, on this process's clock; None before.
        self._began_at: float | None = None
        #: Shows signs of life, and at its end notes that the worker has stopped.
        self.service = Service(
            self._tick, partial(log.worker_unseen, worker=name), close=self._sign_off, longest=every
        )

    def begin(self) -> None:
        """Register at once. A database that is away is no hindrance: the service tries again."""
        try:
            self.service.starts_in = self._tick()
        except Error as error:
            self.service.starts_in = self.service.fail(error)

    def _tick(self) -> float:
        if self._began_at is None or not Worker.objects.seen(self._name, **self._news()):
            self._register()
        elif clock() - self._began_at < Worker.GONE_AFTER.total_seconds() + 2 * self._every:
            Worker.objects.succeed(self._name)
        if is_heard("clock.read"):
            sent_at = clock()
            now = database_now(leasing_settings.DATABASE)
            happened("clock.read", now=now, took=clock() - sent_at)
        return self._every

    def _register(self) -> None:
        Worker.objects.forget_gone()
        began_at, start = self._began_at, {}
        if began_at is not None:
            # Its row was deleted. A task that is older than a start looks as if its process had
            # ended.
            start = {"started_at": after(timedelta(seconds=began_at - clock()))}
        Worker.objects.register(self._name, **self._what, **self._news(), **start)
        self._began_at = clock() if began_at is None else began_at

    def _sign_off(self) -> None:
        try:
            Worker.objects.sign_off(self._name)
        except Error as error:
            log.worker_sign_off_failed(worker=self._name, error=error)


@contextmanager
def registered(
    name: str, ended: threading.Event, role: str, **what: Any
) -> Iterator[ServiceThreads]:
    """A block in which this process is shown among the workers, although it runs no tasks. Its
    thread has a lasting connection, and receivers are called apart.

    Args:
        name: The name of the process.
        ended: Set when the block is left.
        role: One of WorkerRole.
        what: Further columns of its row.
    """
    none: dict[str, Any] = {"queues": [], "handlers": {}, "slots": {}, "sweeps": False}
    threads = ServiceThreads(ended)
    try:
        with lasting_connection(ended), apart(threads.callbacks):
            registration = WorkerRegistration(name, **none | {"role": role} | what)
            registration.begin()
            threads.start("registration", registration.service)
            yield threads
    finally:
        threads.stop()
