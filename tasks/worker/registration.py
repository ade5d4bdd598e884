"""Keeps the row of this worker, or controller, up to date while it lives."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import Error

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.runtime import probes
from leasing.runtime.callbacks import apart
from leasing.runtime.clock import clock
from leasing.runtime.services import Service
from tasks import registry
from tasks.log import log
from tasks.models import Worker
from tasks.runtime.connection import lasting_connection
from tasks.runtime.service_threads import ServiceThreads


class Presence:
    """Keeps the row of the worker called ``name``, with the ``what`` columns, up to date; ``news``
    returns the columns that each heartbeat writes."""

    def __init__(
        self, name: str, news: Callable[[], Mapping[str, Any]] = dict, **what: Any
    ) -> None:
        self._name = name
        self._news = news
        self._what = what
        self._is_known = False

    def service(self) -> Service:
        """Shows signs of life, and at its end notes that the worker has stopped."""
        return Service(
            self._tick,
            partial(log.worker_unseen, worker=self._name),
            close=lambda: sign_off(self._name),
            longest=Worker.SEEN_EVERY.total_seconds(),
        )

    def _tick(self) -> float:
        if not (self._is_known and Worker.objects.seen(self._name, **self._news())):
            _register(self._name, self._what)
        self._is_known = True
        if probes.comparing:
            _compare_clocks()
        return Worker.SEEN_EVERY.total_seconds()


@contextmanager
def presented(
    name: str, ended: threading.Event, role: str, **what: Any
) -> Iterator[ServiceThreads]:
    """A block in which the process called ``name`` is shown, which runs no tasks. Its thread has a
    lasting connection, and receivers are called apart; leaving the block sets ``ended``."""
    none: dict[str, Any] = {"queues": [], "handlers": {}, "slots": {}, "sweeps": False}
    threads = ServiceThreads(ended)
    try:
        with lasting_connection(ended), apart(threads.callbacks):
            threads.start("registration", Presence(name, **none | {"role": role} | what).service())
            yield threads
    finally:
        threads.stop()


def _compare_clocks() -> None:
    sent_at = clock()
    probes.compare_answer(database_now(leasing_settings.DATABASE), sent_at)


def sign_off(name: str) -> None:
    """Note that the worker called ``name`` has stopped, if the database is there."""
    try:
        Worker.objects.sign_off(name)
    except Error as error:
        log.worker_sign_off_failed(worker=name, error=error)


def _register(name: str, what: dict[str, Any]) -> None:
    Worker.objects.forget_gone()
    Worker.objects.register(
        name,
        hostname=socket.gethostname()[:255],
        pid=os.getpid(),
        **{"handlers": registry.kinds(), "blocked": {}} | what,
    )
