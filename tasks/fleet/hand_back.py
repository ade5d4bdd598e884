"""Hand back the tasks of a worker that died: in a process of its own, which ends at once.

The parent starts it when the worker has been reaped and what its handlers ran in is gone. Whatever
runs under the worker's name, which no other process has, is one of two:

    not marked   its handler was not called: ready again at once, and no attempt is spent
    marked       it is lost as by recovery: ready after its back-off, or failed after its last
                 attempt

A claim may have been on its way to the database when the worker died. So it looks again a second
later. While the database is away it tries again, as long as the leases last; then recovery has
them.
"""

from __future__ import annotations

import json
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
from leasing.runtime.callbacks import apart, receiver_threads
from leasing.runtime.clock import clock
from leasing.runtime.exit_codes import ExitCode
from leasing.runtime.outage import Streak
from tasks.fleet import birth
from tasks.log import log
from tasks.models import Task, Worker
from tasks.runtime.connection import lasting_connection

#: Seconds until the second look, and between tries while the database is away.
SECOND_LOOK, RETRY_EVERY = 1.0, 0.25
#: Seconds that receivers of signals have to end.
RECEIVERS_PATIENCE = 5.0
#: The number of tasks that one statement gives back.
TOGETHER = 500


#: Starts it where the parent cannot be forked.
START = (
    "import sys; sys.path[:] = {path!r}; import django; django.setup(); "
    "from tasks.fleet.hand_back import main; main({descriptor})"
)


@dataclass(frozen=True)
class Remains:
    """The remains of a worker that has died."""

    #: Its name.
    holder: str
    #: How it died, for the history of its tasks.
    reason: str
    #: The grants of the tasks whose handlers it had called.
    begun: frozenset[uuid.UUID]

    def as_json(self, until: float) -> str:
        """Return this and a moment, for another process."""
        begun = [grant.hex for grant in self.begun]
        return json.dumps([self.holder, self.reason, begun, until, console.verbosity_shown])


def main(descriptor: int) -> NoReturn:
    """Be the writer, in a Python of its own: of the remains in this file."""
    with open(descriptor) as file:
        file.seek(0)
        holder, reason, begun, until, verbosity = json.load(file)
    remains = Remains(holder, reason, frozenset(map(uuid.UUID, begun)))
    with nullcontext() if verbosity is None else console.shown(verbosity):
        run(remains, until)


def run(remains: Remains, until: float) -> NoReturn:
    """Hand back now and once more, and end this process: with 0 unless it died of something that
    another may not die of.

    Args:
        remains: What is to be handed back.
        until: The moment at which the last lease of the worker is over.
    """
    code: int = ExitCode.FAILED
    try:
        # The parent is asked to stop, and waits for this.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, birth.SIGNALS)
        callbacks = receiver_threads()
        with lasting_connection(), apart(callbacks):
            _write(remains, until)
        callbacks.stop(RECEIVERS_PATIENCE)
        code = ExitCode.DONE
    except BaseException:
        log.fleet_writer_failed(exc_info=True)
    finally:
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)


def _write(remains: Remains, until: float) -> None:
    failures = Streak()
    for pause in (SECOND_LOOK, 0.0):
        while not _try(remains, failures):
            if clock() >= until:
                log.fleet_hand_back_left(worker=remains.holder)
                return
            time.sleep(RETRY_EVERY)
        time.sleep(pause)


def _try(remains: Remains, failures: Streak) -> bool:
    try:
        given, lost = hand_back(remains)
        Worker.objects.sign_off_dead(remains.holder, remains.reason.removeprefix("its worker "))
    except Error as error:
        failures.failed(error)
        log.fleet_hand_back_failed(level=failures.level, worker=remains.holder, error=error)
        connections[leasing_settings.DATABASE].close()
        return False
    failures.succeeded()
    if given or lost:
        log.fleet_handed_back(worker=remains.holder, given_back=given, lost=lost)
    return True


def hand_back(remains: Remains) -> tuple[int, int]:
    """Hand back what runs under the name of the worker. Returns the number of tasks that had not
    begun, and of those that are lost."""
    mine = Task.objects.home().running().filter(holder=remains.holder)
    unbegun = [row for row in mine.unexpired() if row.grant_id not in remains.begun]
    given = 0
    for start in range(0, len(unbegun), TOGETHER):
        some = unbegun[start : start + TOGETHER]
        back, _ = Task.objects.using(mine.db).give_back_many(some, remains.reason, begun=False)
        given += len(back)
    if not remains.begun:
        return given, 0
    lost = mine.filter(grant_id__in=remains.begun)
    return given, lost.take_from_dead(remains.reason, timedelta(seconds=leasing_settings.GRACE))
