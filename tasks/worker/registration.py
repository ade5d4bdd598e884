"""Keeps the row of this worker, or controller, up to date while it lives."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, close_old_connections, connections

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.runtime import probes
from leasing.runtime.clock import clock
from leasing.runtime.event_logger import get_logger
from leasing.runtime.outage import Streak
from leasing.runtime.threads import LastingThread, Tended, look_after
from tasks import registry
from tasks.models import Worker
from tasks.runtime.connection import lasting_thread

logger = get_logger("tasks.worker")

#: Seconds that an end waits for a sign of life under way, which would undo the signing off.
PRESENCE_PATIENCE = 5.0


def keep_present(name: str, ended: threading.Event, **what: Any) -> None:
    """Show signs of life of the worker called ``name``, with the ``what`` columns, until
    ``ended``; then note that it has stopped, if the database is there."""
    known = False
    every = Worker.SEEN_EVERY.total_seconds()
    failures = Streak(every / 2, every)
    while not ended.is_set():
        try:
            close_old_connections()
            known = (known and bool(Worker.objects.seen(name))) or _register(name, what)
            if probes.comparing:
                _compare_clocks()
            failures.succeeded()
            pause = every
        except Error as error:
            pause = failures.failed(error)
            connections.close_all()
            logger.log(
                failures.level,
                "the row of %s could not be kept up to date: %s",
                name,
                error,
                event="worker.unseen",
                worker=name,
                error=error,
            )
        ended.wait(pause)
    connections.close_all()


@contextmanager
def present_beside(
    name: str, ended: threading.Event, role: str, *beside: Tended, **what: Any
) -> Iterator[None]:
    """A block in which the process called ``name`` is shown, which runs no tasks, and in which the
    threads ``beside`` it go on; leaving it sets ``ended``."""
    what = {"queues": [], "handlers": [], "concurrency": 0, "sweeps": False, "role": role} | what
    presence = lasting_thread("presence", lambda: keep_present(name, ended, **what), ended)
    tended: list[Tended] = [presence, *beside]
    LastingThread("caretaker", lambda: look_after(tended, ended)).tend()
    try:
        yield
    finally:
        ended.set()
        presence.join(PRESENCE_PATIENCE)
        sign_off(name)


def _compare_clocks() -> None:
    sent_at = clock()
    probes.compare_answer(database_now(leasing_settings.DATABASE), sent_at)


def sign_off(name: str) -> None:
    """Note that the worker called ``name`` has stopped, if the database is there."""
    try:
        Worker.objects.sign_off(name)
    except Error as error:
        logger.warning(
            "%s could not sign off: %s",
            name,
            error,
            event="worker.sign_off_failed",
            worker=name,
            error=error,
        )


def _register(name: str, what: dict[str, Any]) -> bool:
    Worker.objects.forget_gone()
    Worker.objects.register(
        name,
        hostname=socket.gethostname()[:255],
        pid=os.getpid(),
        **{"handlers": registry.names()} | what,
    )
    return True
