"""The parent of a fleet: starts workers, restarts those that exit, and hands back their tasks.

It is one thread around a loop (``loop``) and **never opens a connection**: a short-lived process
does its writes (``hand_back``). So it can fork at any time, never waits for the database, and
outlives its children unless it is killed itself.

Life of a child
    started    forked, or started by exec where this process has other threads (``start``)
    ready      it has reported that it is ready. An exit before that is a failed start; after
               MAX_FAILED_STARTS in a row of one index the fleet stops
    exited     reaped. After any exit but a clean one the process groups in which its handlers ran
               are killed, then a writer hands its tasks back (``cleanup``)
    restarted  at once after a clean exit (``--max-tasks``), otherwise after a back-off that grows
               while children of this index exit soon after their start; never under ``--once`` and
               ``--drain``. The parent of the one worker that runs by default ends with it after a
               clean exit, as a single process would

A child that hangs, and so reports nothing for HUNG_AFTER, or for the ttl if that is longer, is
killed: by then its leases have expired. SIGTERM and SIGINT stop all children; a second one does not
wait for tasks. A child that has not exited within ``--stop-timeout`` plus KILL_AFTER is killed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import secrets
import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from logging import DEBUG, INFO
from typing import Any

from leasing.metrics import registry
from leasing.runtime.clock import clock
from leasing.runtime.shutdown import ExitCode
from tasks.fleet import start
from tasks.fleet.child import STOP, STOP_NOW
from tasks.fleet.cleanup import Cleanup
from tasks.fleet.hand_back import DeadWorker
from tasks.fleet.start import ChildContext
from tasks.log import log
from tasks.runtime.health import HUNG_AFTER, LATE_AFTER, Health
from tasks.runtime.loop import Loop
from tasks.runtime.marks import Marks

#: Number of failed starts in a row of one index after which the fleet stops.
MAX_FAILED_STARTS = 5
#: Seconds until the start of a child is retried if no process could be started.
NEXT_TRY = 1.0
#: Seconds after the stop timeout at which a child is killed.
KILL_AFTER = 15.0
#: Seconds between looks for children that hang.
LOOK_EVERY = 1.0
#: Seconds until a child that died is restarted: at first, and at most, after doubling while
#: children exit within LIVED_LONG of their start. The writer starts first.
FIRST_PAUSE, LONGEST_PAUSE, LIVED_LONG = 0.1, 5.0, 2.0


@dataclass(frozen=True)
class Plan:
    """The configuration of a fleet."""

    #: The name of the fleet.
    name: str
    #: The number of children.
    workers: int
    #: The options of the command, for children that are started by exec.
    options: Mapping[str, Any]
    #: Maximum number of tasks in the executors of a child, and of its handlers' processes.
    inside: int
    groups: int
    #: Seconds of a lease; seconds that running tasks have to finish after a stop.
    ttl: float
    stop_timeout: float
    #: True if children that exit are restarted; ``ends_with_worker``: but the fleet ends with its
    #: one worker if that exits cleanly.
    restarts: bool = True
    ends_with_worker: bool = False

    @property
    def usual_level(self) -> int:
        """Return the level of the events in the life of a child that need nobody's attention: with
        one worker its own lines say the same."""
        return DEBUG if self.ends_with_worker else INFO


@dataclass
class Child:
    """One child, from its start until it is reaped."""

    member: Member
    #: The holder of its tasks and the name of its row, unique to this child.
    name: str
    pid: int
    channel: socket.socket
    marks: Marks
    #: Moments on the clock of ``leasing.runtime.clock``: of its start and, after the first, of its
    #: last report.
    started_at: float = field(default_factory=clock)
    beat_at: float | None = None
    #: True once it has registered and claims tasks.
    is_ready: bool = False
    #: Number of looks of the parent since its last report.
    unheard: int = 0
    #: Its last report: ``WorkerProcess.vitals``.
    vitals: Mapping[str, Any] = field(default_factory=dict)
    is_killed: bool = False

    #: The part of a report that has come.
    _received: bytes = b""

    def read(self) -> bool:
        """Read the reports that have arrived. Return False once the child has closed its end."""
        try:
            data = self.channel.recv(65_536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self.receive(json.loads(line))
        return bool(data)

    def receive(self, report: Mapping[str, Any]) -> None:
        """Store a report of the child."""
        self.beat_at, self.unheard = clock(), 0
        self.vitals = report
        self.is_ready = self.is_ready or bool(report.get("ready"))

    def order(self, word: bytes) -> None:
        """Send an order. It is dropped if the child has exited, or does not read."""
        with suppress(OSError):
            self.channel.send(word)

    def kill(self) -> None:
        """Send SIGKILL. What follows is as after any death."""
        self.is_killed = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    @property
    def health(self) -> Health:
        """Return what it has reported, unless that was long ago."""
        silent_for = clock() - (self.started_at if self.beat_at is None else self.beat_at)
        if silent_for > LATE_AFTER:
            reason = (f"No report for {silent_for:.0f} s.",)
            return Health(hung=reason) if silent_for > HUNG_AFTER else Health(stalled=reason)
        if self.beat_at is None:
            return Health(closed=("Starting.",))
        return Health(**{name: tuple(reasons) for name, reasons in self.vitals["health"].items()})


@dataclass
class Member:
    """One index of the fleet, with the history of all its children."""

    index: int
    #: The current child; None between two children.
    child: Child | None = None
    #: Number of children after the first.
    restarts: int = 0
    #: True if a child is to be started.
    is_awaited: bool = True
    #: Numbers of children in a row that exited before they were ready, and soon after their start.
    failed_starts: int = 0
    quick_ends: int = 0
    #: True if the last child exited cleanly.
    ended_well: bool = True
    #: The reason of the last exit, as text; empty if there was none.
    last_end: str = ""

    def note_end(self, child: Child, code: int) -> None:
        """Record the exit of ``child`` with ``code``, negative for a signal."""
        self.child = None
        self.last_end = f"its worker ended with exit code {code}"
        if code < 0:
            self.last_end = f"its worker was killed by signal {-code}"
        self.failed_starts = 0 if child.is_ready else self.failed_starts + 1
        self.ended_well = child.is_ready and not code
        lived_long = clock() - child.started_at > LIVED_LONG
        self.quick_ends = 0 if self.ended_well or lived_long else self.quick_ends + 1

    @property
    def pause(self) -> float:
        """Return the seconds until a child that exited is restarted, with jitter, so that children
        that died together do not start together."""
        if self.ended_well:
            return 0.0
        bound = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.quick_ends, 16))
        return random.uniform(bound / 2, bound)


class Parent:
    """Runs a fleet. Callers may add readers and timers to ``loop`` before ``run``; ``members`` has
    the state of the children."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = Loop()
        self.members = [Member(index + 1) for index in range(plan.workers)]
        self.exit_code: int = ExitCode.DONE
        #: True once it was asked to stop, or stops by itself.
        self.is_stopping = False
        self._is_stopping_now = False
        self._due: list[Member] = list(self.members)
        self._running: dict[int, Child] = {}
        self._cleanups: list[Cleanup] = []
        self._said_why_exec = False

    def run(self) -> ChildContext | None:
        """Run the fleet until it has stopped, and return None. In a forked child returns the
        context of the child as soon as it is forked, with nothing of the parent left open."""
        start.close_connections()
        gc.collect()
        try:
            with start.signals_held_back():
                self.loop.on_signal([signal.SIGCHLD], self._reap)
                self.loop.on_signal([signal.SIGTERM, signal.SIGINT], self.stop)
            start.become_subreaper()
            self.loop.repeat(LOOK_EVERY, self._kill_hung)
            while True:
                while self._due:
                    child = self._start_or_retry(self._due.pop(0))
                    if child is not None:
                        return child
                if not (self._running or self._cleanups or self._is_waiting):
                    return None
                self.loop.step()
        finally:
            self.loop.abandon()

    def health(self) -> Health:
        """Return the health of the fleet now: its parent is alive if it answers at all, its
        children by their reports."""
        healths: dict[str, Health] = {}
        for member in self.members:
            if member.child is not None:
                healths[f"Worker {member.index}"] = member.child.health
            elif member.is_awaited and not self.is_stopping:
                health = Health(closed=("Starting.",))
                if member.last_end:
                    health = Health(stalled=(f"Restarting: {member.last_end}.",))
                healths[f"Worker {member.index}"] = health
        if self.is_stopping:
            healths["Parent"] = Health(closed=("Shutting down.",))
        return Health.of_all(healths)

    @property
    def _is_waiting(self) -> bool:
        """Return True if a child is still to be started."""
        return not self.is_stopping and any(
            each.child is None and each.is_awaited for each in self.members
        )

    # Starts

    def _start_or_retry(self, member: Member) -> ChildContext | None:
        if self.is_stopping:
            return None
        try:
            return self._start(member)
        except OSError as error:  # no further process can be started now
            log.fleet_no_process(worker=self.plan.name, error=error)
            self.loop.call_later(NEXT_TRY, partial(self._due.append, member))
            return None

    def _start(self, member: Member) -> ChildContext | None:
        name = f"{self.plan.name}:{member.index}:{secrets.token_hex(4)}"
        against = start.reason_against_fork()
        if against and not self._said_why_exec:
            self._said_why_exec = True
            log.fleet_starts_by_exec(worker=self.plan.name, reason=against)
        gc.freeze()  # garbage collection in a child would copy the shared pages
        sizes = self.plan.inside, self.plan.groups
        with ExitStack() as unless_started, ExitStack() as files:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            unless_started.enter_context(ours)
            files.enter_context(theirs)
            file = start.open_map_file(*sizes)
            files.callback(os.close, file)
            context = ChildContext(
                self.plan.name, member.index, name, theirs, Marks(*sizes, file), member.restarts
            )
            # A forked child closes the siblings' channels, which would outlive the parent there.
            if against:
                pid = start.start_child(context, file, self.plan.options)
            elif (pid := start.fork(self.loop.abandon, start.ignore_interrupts)) == 0:
                context.channel = theirs.dup()
                return context
            unless_started.pop_all()
        child = Child(member, name, pid, ours, context.marks)
        member.child, member.is_awaited = child, False
        self._running[pid] = child
        self.loop.add_reader(ours, partial(self._read, child))
        log.fleet_child_started(level=self.plan.usual_level, worker=name, pid=pid)
        return None

    # Exits

    def _read(self, child: Child) -> None:
        if not child.read():  # its exit is a separate event
            self.loop.remove(child.channel)

    def _reap(self) -> None:
        """Reap all exited processes: children, writers, and orphans, as process 1 of a container or
        as the subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid in self._running:
                self._after_exit(self._running.pop(pid), code)
            else:
                for cleanup in self._cleanups:
                    cleanup.ended(pid, code)

    def _after_exit(self, child: Child, code: int) -> None:
        member = child.member
        child.read()  # its last report
        self.loop.remove(child.channel)
        child.channel.close()
        member.note_end(child, code)
        if code == 0:
            log.fleet_child_ended(level=self.plan.usual_level, worker=child.name, pid=child.pid)
        else:
            log.fleet_child_died(worker=child.name, pid=child.pid, how=member.last_end)
            is_counted = self.plan.options.get("metrics_port") is not None and registry.is_shared()
            begun = frozenset(child.marks.begun())
            dead = DeadWorker(child.name, member.last_end, begun, is_counted)
            groups, done = child.marks.noted_groups(), self._cleanups.remove
            self._cleanups.append(Cleanup(self.loop, dead, groups, self.plan.ttl, done))
        child.marks.close()
        self._replace(member, code)

    def _replace(self, member: Member, code: int) -> None:
        if self.is_stopping:
            return
        if not self.plan.restarts:
            self.exit_code = ExitCode.FAILED if code else self.exit_code
        elif self.plan.ends_with_worker and not code:
            return
        elif member.failed_starts >= MAX_FAILED_STARTS:
            times, how = member.failed_starts, member.last_end
            log.fleet_gives_up(worker=self.plan.name, times=times, how=how)
            self.exit_code = ExitCode.FAILED  # none has begun to work
            self.stop()
        else:
            member.is_awaited = True
            member.restarts += 1
            self.loop.call_later(member.pause, partial(self._due.append, member))

    # Stop

    def stop(self) -> None:
        """Stop all children, and start no others; a second call does not wait for running tasks."""
        if self.is_stopping:
            self._stop_now()
            return
        self.is_stopping = True
        level = self.plan.usual_level
        log.fleet_stopping(level=level, worker=self.plan.name, running=len(self._running))
        for child in self._running.values():
            child.order(STOP)
        self.loop.call_later(self.plan.stop_timeout + KILL_AFTER, self._kill)

    def _stop_now(self) -> None:
        if self._is_stopping_now:
            return
        self._is_stopping_now = True
        for child in self._running.values():
            child.order(STOP_NOW)
        self.loop.call_later(KILL_AFTER, self._kill)

    def _kill(self) -> None:
        """Kill the children that have not exited, and leave unfinished cleanups to recovery."""
        for cleanup in self._cleanups:
            cleanup.abandon()
        for child in self._running.values():
            if not child.is_killed:
                log.fleet_child_killed(worker=child.name, pid=child.pid)
                child.kill()

    def _kill_hung(self) -> None:
        # By the number of looks: while the machine is suspended the parent does not look either.
        bound = max(HUNG_AFTER, self.plan.ttl)
        for child in self._running.values():
            child.unheard += 1
            if child.unheard * LOOK_EVERY > bound and not child.is_killed:
                log.fleet_child_hung(worker=child.name, pid=child.pid, seconds=int(bound))
                child.kill()
