"""Cleanup after a child that died, in two steps, neither of which blocks the parent:

groups    kill the process groups in which its handlers ran, until all of their processes are gone
writer    start a process that hands its tasks back, and another one if that is killed
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from leasing.management import console
from leasing.runtime.clock import clock
from tasks.fleet import hand_back, start
from tasks.fleet.hand_back import DeadWorker
from tasks.log import log
from tasks.runtime.loop import Loop

#: Seconds between checks of a killed process group, and until giving up on it: a process in
#: uninterruptible sleep exits only when its system call returns.
LOOK_EVERY, GROUPS_PATIENCE = 0.005, 10.0
#: Seconds until another writer is started after one has died.
NEXT_WRITER = 0.1


class Cleanup:
    """The cleanup after one child.

    Args:
        loop: The parent's loop.
        dead: The worker that died.
        groups: The process groups in which its handlers ran.
        ttl: Seconds after which recovery takes back its tasks.
        done: Called with this cleanup when it has finished.
    """

    def __init__(
        self,
        loop: Loop,
        dead: DeadWorker,
        groups: list[int],
        ttl: float,
        done: Callable[[Cleanup], object],
    ) -> None:
        self._loop = loop
        self._dead = dead
        self._groups = groups
        self._until = clock() + ttl
        self._groups_until = clock() + GROUPS_PATIENCE
        self._done = done
        self._writer: int | None = None
        # Not immediately: the caller has not stored this object yet.
        loop.call_later(0.0, self._end_groups)

    def _end_groups(self) -> None:
        self._groups = [group for group in self._groups if kill_group(group)]
        if not self._groups:
            self._start_writer()
        elif clock() > self._groups_until:
            log.fleet_group_left(groups=", ".join(map(str, self._groups)))
            self._start_writer()
        else:
            self._loop.call_later(LOOK_EVERY, self._end_groups)

    def _start_writer(self) -> None:
        if clock() >= self._until:
            self._done(self)
            return
        try:
            if start.reason_against_fork():
                args = self._dead, self._until, console.verbosity_shown
                self._writer = start.start_python(hand_back.run, *args)
            else:
                write = partial(hand_back.run, self._dead, self._until)
                self._writer = start.fork(self._loop.abandon, write)
        except OSError as error:  # no further process can be started now
            log.fleet_no_process(worker=self._dead.holder, error=error)
            self._loop.call_later(NEXT_WRITER, self._start_writer)

    def ended(self, pid: int, code: int) -> None:
        """Take note of the exit of a process of the parent, which may be the writer."""
        if pid != self._writer:
            return
        self._writer = None
        if code == 0:
            self._done(self)
        else:
            self._loop.call_later(NEXT_WRITER, self._start_writer)

    def abandon(self) -> None:
        """Leave the rest to recovery: the parent exits now."""
        self._until = 0.0
        if self._writer is not None:
            with suppress(ProcessLookupError):
                os.kill(self._writer, signal.SIGKILL)


def kill_group(group: int) -> bool:
    """Kill the process group, and reap those of its processes that are children of this process.
    Return True if some may be left."""
    try:
        if start.is_subreaper:
            # Orphans of a dead child are children of this process. A group without any has
            # exited, and its id may have been reused.
            os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(group, signal.SIGKILL)
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ProcessLookupError:
        return False
    except ChildProcessError:  # none is a child of this process
        return not start.is_subreaper
    return True
