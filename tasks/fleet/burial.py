"""What is to be done after the death of a child, one after the other, without waiting anywhere:

groups    the process groups that its handlers ran in are killed, until none of their processes
          is left
writer    a process hands the tasks back. If it is killed itself, another does
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

from leasing.runtime.clock import clock
from tasks.fleet import birth, hand_back
from tasks.fleet.hand_back import Remains
from tasks.fleet.loop import Loop
from tasks.log import log

#: Seconds between looks if a killed group has ended, and for how long that is waited for: a process
#: that the kernel does not let go of ends with what it waits for.
LOOK_EVERY, GROUPS_PATIENCE = 0.005, 10.0
#: Seconds until the next writer, where one has died.
NEXT_WRITER = 0.1


class Burial:
    """One dead child.

    Args:
        loop: The parent's.
        remains: What the child has left.
        groups: The process groups that its handlers ran in.
        ttl: Seconds after which its tasks are recovery's.
        done: Called with this when all is done.
    """

    def __init__(
        self,
        loop: Loop,
        remains: Remains,
        groups: list[int],
        ttl: float,
        done: Callable[[Burial], object],
    ) -> None:
        self._loop = loop
        self._remains = remains
        self._groups = groups
        self._until = clock() + ttl
        self._groups_until = clock() + GROUPS_PATIENCE
        self._done = done
        self._writer: int | None = None
        # Not at once: the caller may yet have to note that there is this burial.
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
            self._writer = start_writer(self._loop, self._remains, self._until)
        except OSError as error:  # there can be no process more now
            log.fleet_no_process(worker=self._remains.holder, error=error)
            self._loop.call_later(NEXT_WRITER, self._start_writer)

    def ended(self, pid: int, code: int) -> None:
        """Note that a process of the parent has ended."""
        if pid != self._writer:
            return
        self._writer = None
        if code == 0:
            self._done(self)
        else:
            self._loop.call_later(NEXT_WRITER, self._start_writer)

    def abandon(self) -> None:
        """Leave the rest to recovery: the parent ends now."""
        self._until = 0.0
        if self._writer is not None:
            with suppress(ProcessLookupError):
                os.kill(self._writer, signal.SIGKILL)


def kill_group(group: int) -> bool:
    """Kill the process group, and reap what of it is this process's child. Return True if something
    of it may be left."""
    try:
        if birth.is_subreaper:
            # What a dead child has left is ours to reap. A group without any such process has
            # ended, and its number may be another's.
            os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(group, signal.SIGKILL)
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ProcessLookupError:
        return False
    except ChildProcessError:  # none is ours
        return not birth.is_subreaper
    return True


def start_writer(loop: Loop, remains: Remains, until: float) -> int:
    """Start the process that hands back. Returns its pid.

    Args:
        loop: The parent's, which is to be left alone.
        remains: What is to be handed back.
        until: The moment at which the tasks are recovery's.
    """
    if birth.reason_against_fork():
        with tempfile.TemporaryFile() as file:
            file.write(remains.as_json(until).encode())
            file.flush()
            code = hand_back.START.format(path=sys.path, descriptor=file.fileno())
            return birth.start_python(code, [file.fileno()])
    birth.close_connections()
    with birth.signals_held_back():
        pid = os.fork()
        if pid == 0:
            loop.abandon()
            hand_back.run(remains, until)
    return pid
