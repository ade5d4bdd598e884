"""Hand-back of the tasks of a worker that died, in a separate, short-lived process.

The parent starts it once the worker was reaped and the process groups of its handlers have exited.
A task that still runs under the worker's name, which no other process has, is in one of two states:

    not marked   its handler was not called: ready again at once, without spending an attempt
    marked       lost, as by recovery: ready after its back-off, or failed after its last attempt

A claim may have been in flight when the worker died, so it checks again within a second, soon at
first. While the database is unavailable it retries until the leases have expired; then recovery
takes over.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

from django.db import Error, connections

from leasing.conf import leasing_settings
from leasing.management import console
from leasing.metrics import registry
from leasing.runtime.clock import clock
from leasing.runtime.shutdown import ExitCode
from leasing.runtime.threads import Streak, apart, receiver_threads
from tasks.fleet import start
from tasks.log import log
from tasks.models import Task, Worker
from tasks.notifier import notify_all
from tasks.runtime.connection import lasting_connection

#: Seconds between the checks: a statement that was in flight ends within milliseconds, or a second
#: where the server is busy.
LOOKS = (0.05, 0.1, 0.25, 0.6)
#: Seconds between retries while the database is unavailable.
RETRY_EVERY = 0.25
#: Seconds that receivers of signals have to finish.
RECEIVERS_PATIENCE = 5.0
#: Maximum number of tasks that one statement gives back.
TOGETHER = 500


@dataclass(frozen=True)
class DeadWorker:
    """A worker that died, and the tasks that it had begun."""

    #: Its name.
    holder: str
    #: The reason of its exit, for the history of its tasks.
    reason: str
    #: The grants of the tasks whose handlers it had called.
    begun: frozenset[uuid.UUID]
    #: True if its metrics are in a directory that several processes share.
    is_counted: bool = False


def run(dead: DeadWorker, until: float, verbosity: int | None = None) -> NoReturn:
    """Hand back, check again after each of LOOKS, and exit: with 0, unless it failed in a way that
    a retry may avoid.

    Args:
        dead: The worker whose tasks to hand back.
        until: The moment at which the last lease of the worker expires.
        verbosity: That of the parent's console, where this is a Python process of its own.
    """
    code: int = ExitCode.FAILED
    with nullcontext() if verbosity is None else console.shown(verbosity):
        try:
            # When the parent is asked to stop, it waits for this process.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, frame: None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, start.SIGNALS)
            if dead.is_counted:
                registry.connect()
            callbacks = receiver_threads()
            with lasting_connection(), apart(callbacks):
                _write(dead, until)
            callbacks.stop(RECEIVERS_PATIENCE)
            code = ExitCode.DONE
        except BaseException:
            log.fleet_writer_failed(exc_info=True)
        finally:
            logging.shutdown()
            sys.stderr.flush()
            os._exit(code)


def _write(dead: DeadWorker, until: float) -> None:
    failures = Streak()
    for pause in (*LOOKS, 0.0):
        while not _try(dead, failures):
            if clock() >= until:
                log.fleet_hand_back_left(worker=dead.holder)
                return
            time.sleep(RETRY_EVERY)
        time.sleep(pause)


def _try(dead: DeadWorker, failures: Streak) -> bool:
    try:
        given, lost = hand_back(dead)
        Worker.objects.sign_off_dead(dead.holder, dead.reason.removeprefix("its worker "))
    except Error as error:
        failures.failed(error)
        log.fleet_hand_back_failed(level=failures.level, worker=dead.holder, error=error)
        connections[leasing_settings.DATABASE].close()
        return False
    failures.succeeded()
    if given or lost:
        log.fleet_handed_back(worker=dead.holder, given_back=given, lost=lost)
    return True


def hand_back(dead: DeadWorker) -> tuple[int, int]:
    """Hand back the running tasks of the worker. Returns the numbers of tasks that were given back,
    not begun, and of those that are lost."""
    mine = Task.objects.home().running().filter(holder=dead.holder)
    unbegun = [row for row in mine.unexpired() if row.grant_id not in dead.begun]
    given = 0
    for place in range(0, len(unbegun), TOGETHER):
        some = unbegun[place : place + TOGETHER]
        back, _ = Task.objects.using(mine.db).give_back_many(some, dead.reason, begun=False)
        given += len(back)
    if given:
        notify_all(mine.db)
    if not dead.begun:
        return given, 0
    lost = mine.filter(grant_id__in=dead.begun)
    return given, lost.take_from_dead(dead.reason, timedelta(seconds=leasing_settings.GRACE))
