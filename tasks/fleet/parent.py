"""The parent of a fleet: starts workers, replaces those that end, and hands back what they held.

It is one thread around a loop (``loop``) and **never opens a connection**: what it has to write, a
short-lived process writes (``hand_back``). So it can fork at any time, needs no patience for the
database, and nothing but its own death ends it before its children.

What happens to a child
    born      forked, or started by exec where this process has other threads (``birth``)
    ready     it has reported that it serves. A child that ends before is a failed start; after
              MAX_FAILED_STARTS in a row of one index the fleet ends
    ended     reaped. If it ended otherwise than well: what is left in the process groups that its
              handlers ran in is killed and waited for, then a writer hands its tasks back
    replaced  at once if it ended well (``--max-tasks``), else after a short pause that grows while
              children of this index end soon after their start; never under ``--once``, ``--drain``

SIGTERM and SIGINT stop all children, a second one at once. A child that does not end within
``--stop-timeout`` and KILL_AFTER is killed.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from leasing.runtime.exit_codes import ExitCode
from tasks.fleet import birth
from tasks.fleet.birth import Birth
from tasks.fleet.burial import Burial
from tasks.fleet.channel import HURRY, STOP, ReportReader
from tasks.fleet.hand_back import Remains
from tasks.fleet.loop import Loop
from tasks.fleet.status import ChildStatus, Member
from tasks.log import log
from tasks.runtime.marks import Marks

#: The number of children of one index that may end in a row before they were ready.
MAX_FAILED_STARTS = 5
#: Seconds until it is tried again to start a child, where there could be no process more.
NEXT_TRY = 1.0
#: Seconds after the end of its stop timeout until a child is killed.
KILL_AFTER = 15.0


@dataclass(frozen=True)
class Plan:
    """The fleet to be."""

    #: The name of the fleet.
    name: str
    #: The number of children.
    workers: int
    #: The options of the command, for children that are started by exec.
    options: Mapping[str, Any]
    #: The greatest number of tasks in the executors of a child, and of its handlers' processes.
    inside: int
    groups: int
    #: Seconds of a lease, and seconds that running tasks have to end after a stop.
    ttl: float
    stop_timeout: float
    #: True if a child that ends is replaced.
    restarts: bool = True


@dataclass
class Living:
    """The parent's means to a child that was not reaped yet."""

    member: Member
    status: ChildStatus
    reader: ReportReader
    marks: Marks
    is_killed: bool = False


class Parent:
    """Keeps a fleet. ``loop`` is the loop of this process, to which others may add readers and
    timers before ``run``; ``members`` is what is known of the children."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = Loop()
        self.members = [Member(index + 1) for index in range(plan.workers)]
        self.exit_code: int = ExitCode.DONE
        #: True once it was asked to stop, or ends by itself.
        self.is_stopping = False
        self._hurried = False
        self._due: list[Member] = list(self.members)
        self._living: dict[int, Living] = {}
        self._burials: list[Burial] = []
        self._said_why_exec = False

    def run(self) -> Birth | None:
        """Keep the fleet until it has ended. Returns None then; in a forked child its birth, at
        once: the child goes on from there, and nothing of the parent is left in it."""
        birth.close_connections()
        gc.collect()
        try:
            with birth.signals_held_back():
                self.loop.on_signal([signal.SIGCHLD], self._reap)
                self.loop.on_signal([signal.SIGTERM, signal.SIGINT], self.stop)
            birth.become_subreaper()
            while True:
                while self._due:
                    born = self._start_or_retry(self._due.pop(0))
                    if born is not None:
                        return born
                if not (self._living or self._burials or self._is_waiting):
                    return None
                self.loop.step()
        finally:
            self.loop.abandon()

    @property
    def _is_waiting(self) -> bool:
        """Return True if a child is yet to be started."""
        return not self.is_stopping and any(
            each.child is None and each.is_awaited for each in self.members
        )

    # Births

    def _start_or_retry(self, member: Member) -> Birth | None:
        if self.is_stopping:
            return None
        try:
            return self._start(member)
        except OSError as error:  # there can be no process more now
            log.fleet_no_process(worker=self.plan.name, error=error)
            self.loop.call_later(NEXT_TRY, partial(self._due.append, member))
            return None

    def _start(self, member: Member) -> Birth | None:
        name = f"{self.plan.name}:{member.index}:{secrets.token_hex(4)}"
        against = birth.reason_against_fork()
        if against and not self._said_why_exec:
            self._said_why_exec = True
            log.fleet_starts_by_exec(worker=self.plan.name, reason=against)
        birth.close_connections()
        gc.freeze()  # a child that looked it all through for garbage would copy it
        ours, theirs = socket.socketpair()
        with theirs, _closed_on_error(ours):
            if against:
                pid, shared = self._execute(member, name, theirs)
            else:
                shared = Marks(self.plan.inside, self.plan.groups)
                with birth.signals_held_back():
                    pid = os.fork()
                    if pid == 0:
                        return self._be_born(member, name, ours, theirs.dup(), shared)
        status = ChildStatus(member.index, name, pid)
        member.child, member.is_awaited = status, False
        reader = ReportReader(ours, status.hear)
        self._living[pid] = Living(member, status, reader, shared)
        self.loop.add_reader(ours, partial(self._read, reader))
        log.fleet_child_started(worker=name, pid=pid)
        return None

    def _be_born(
        self, member: Member, name: str, ours: socket.socket, theirs: socket.socket, marks: Marks
    ) -> Birth:
        """In the forked child: keep nothing of the parent."""
        # Also the ends of its siblings' channels: open here, they would outlive the parent.
        self.loop.abandon()
        ours.close()
        birth.ignore_interrupts()
        return Birth(self.plan.name, member.index, name, theirs, marks, member.restarts)

    def _execute(self, member: Member, name: str, theirs: socket.socket) -> tuple[int, Marks]:
        file = birth.open_map_file(self.plan.inside, self.plan.groups)
        try:
            shared = Marks(self.plan.inside, self.plan.groups, file)
            born = Birth(self.plan.name, member.index, name, theirs, shared, member.restarts)
            return birth.execute(born, file, theirs, self.plan.options), shared
        finally:
            os.close(file)

    # Deaths

    def _read(self, reader: ReportReader) -> None:
        if not reader.read():  # its process ends, which is another event
            self.loop.remove(reader.channel)

    def _reap(self) -> None:
        """Take the exit codes of all that has ended: children, writers, and as process 1 of a
        container, or for processes that a dead child has left, whatever else."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid in self._living:
                self._bury(self._living.pop(pid), code)
            else:
                for burial in self._burials:
                    burial.ended(pid, code)

    def _bury(self, child: Living, code: int) -> None:
        member, status = child.member, child.status
        child.reader.read()  # its last words
        self.loop.remove(child.reader.channel)
        child.reader.channel.close()
        member.note_end(status, code, how_it_ended(code))
        if code == 0:
            log.fleet_child_ended(worker=status.name, pid=status.pid)
        else:
            log.fleet_child_died(worker=status.name, pid=status.pid, how=member.last_end)
            remains = Remains(status.name, member.last_end, frozenset(child.marks.begun()))
            groups, done = child.marks.noted_groups(), self._burials.remove
            self._burials.append(Burial(self.loop, remains, groups, self.plan.ttl, done))
        child.marks.close()
        self._replace(member, code)

    def _replace(self, member: Member, code: int) -> None:
        if self.is_stopping:
            return
        if not self.plan.restarts:
            self.exit_code = self.exit_code or (ExitCode.FAILED if code else ExitCode.DONE)
        elif member.failed_starts >= MAX_FAILED_STARTS:
            times, how = member.failed_starts, member.last_end
            log.fleet_gives_up(worker=self.plan.name, times=times, how=how)
            self.exit_code = code if code == ExitCode.REFUSED else ExitCode.FAILED
            self.stop()
        else:
            member.is_awaited = True
            member.restarts += 1
            self.loop.call_later(member.pause, partial(self._due.append, member))

    # The end

    def stop(self) -> None:
        """Stop all children, and start no more; a second call does not wait for running tasks."""
        if self.is_stopping:
            self._hurry()
            return
        self.is_stopping = True
        log.fleet_stopping(worker=self.plan.name, running=len(self._living))
        for child in self._living.values():
            child.status.is_stopping = True
            child.reader.order(STOP)
        self.loop.call_later(self.plan.stop_timeout + KILL_AFTER, self._kill)

    def _hurry(self) -> None:
        if self._hurried:
            return
        self._hurried = True
        for child in self._living.values():
            child.reader.order(HURRY)
        self.loop.call_later(KILL_AFTER, self._kill)

    def _kill(self) -> None:
        """Kill what has not ended by itself."""
        for burial in self._burials:
            burial.abandon()
        for pid, child in self._living.items():
            if not child.is_killed:
                child.is_killed = True
                log.fleet_child_killed(worker=child.status.name, pid=pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def _closed_on_error(file: socket.socket) -> Iterator[None]:
    try:
        yield
    except OSError:
        file.close()
        raise


def how_it_ended(code: int) -> str:
    """Return the end of a process with this exit code, in words."""
    if code < 0:
        return f"its worker was killed by signal {-code}"
    return f"its worker ended with exit code {code}"
