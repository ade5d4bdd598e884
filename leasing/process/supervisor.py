"""Runs a command for as long as its term lasts, and no longer.

Next to the command runs ``leasing.process.deadman``, which is told until when the term is trusted,
each time it is renewed, and kills the command and all that it started when that moment passes. So
it is also right while this process is paused or hangs, or is gone.

Asked to end (SIGTERM) the command is

    when trust becomes thin    renewals have failed for a while; it may go on until trust ends
    when the term is lost      revoked or taken over: another may lead already, so it has a second
    when this process is       it has ``stop_timeout``; its term is renewed meanwhile
      asked to stop
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from leasing.holding import Term
from leasing.holding.term import longest_pause, margin
from leasing.process import deadman
from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log

#: Seconds between looks at the term and at whether to stop.
POLL_EVERY = 0.1
#: Seconds that a command has to end when its term was taken away.
LAST_WORDS = 1.0
KILLED = deadman.KILLED_BY + signal.SIGKILL


@dataclass(frozen=True)
class Run:
    """The end of a command."""

    #: 128 and the signal's number when a signal ended it.
    code: int
    #: Why it was asked to; empty when it ended by itself.
    asked: str = ""
    #: True if its term ended before it did.
    term_ended: bool = False


@dataclass
class Oversight:
    """Decides when a command is asked to end, and when it is killed. Knows no process.

    Args:
        notice: Seconds before the end of trust at which it is asked.
        stop_timeout: Seconds that it has to end when this process is asked to stop.
        last_words: Seconds that it has to end when its term was taken away.
    """

    notice: float
    stop_timeout: float
    last_words: float = LAST_WORDS
    asked: str = ""
    term_ended: bool = False
    _trusted_until: float = 0.0
    _end_at: float = math.inf
    _lost: bool = False

    def look(self, now: float, trusted_until: float, lost: bool, stopping: bool) -> float:
        """Return the moment until which the command may run. All moments are on the clock of the
        holder.

        Args:
            now: The moment of this look.
            trusted_until: The end of trust in the term, by its latest renewal.
            lost: True if the term is lost.
            stopping: True if this process is asked to stop.
        """
        # Losing the term sets its trust to nothing. What had been promised ends first, at most.
        self._trusted_until = max(self._trusted_until, trusted_until)
        if lost and not self._lost:
            self._lost = True
            self._end_term(now + self.last_words, "its term was lost")
        elif not self.term_ended and self._trusted_until - now <= self.notice:
            self._end_term(self._trusted_until, "its term is not renewed")
        elif stopping and not self.asked:
            self._ask("this process is asked to stop", now + self.stop_timeout)
        return min(self._trusted_until, self._end_at)

    def _end_term(self, at: float, why: str) -> None:
        self.term_ended = True
        self._ask(why, at)

    def _ask(self, why: str, end_at: float) -> None:
        self.asked = self.asked or why
        self._end_at = min(self._end_at, end_at)


class SupervisedCommand:
    """A command in a process group of its own, with the process that watches over it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.code: int | None = None
        self.ended = False
        self._until = 0.0
        #: Leads to the process that watches over it, and ends with this one.
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        with theirs, held_back(deadman.FOR_THE_COMMAND):
            self.watcher = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", deadman.__file__),
                    *(str(theirs.fileno()), *command),
                ],
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Nothing of the command is left."""
        self._signal(signal.SIGKILL)
        self.watcher.wait()
        self.channel.close()

    def run_until(self, moment: float) -> None:
        """Set the moment, on the holder's clock, at which it is killed, by whichever process still
        runs then. The first call starts the command."""
        if moment != self._until:
            self._until = moment
            with suppress(OSError):  # it has ended, as wait() will tell
                self.channel.send(deadman.NUMBER.pack(moment))

    def ask_to_end(self) -> None:
        """SIGTERM to all of the group."""
        self._signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait for the end of the command for so long."""
        ready, _, _ = select.select([self.channel], [], [], seconds)
        if ready:
            self.ended = True
            with suppress(OSError):
                report = self.channel.recv(deadman.NUMBER.size)
                self.code = int(*deadman.NUMBER.unpack(report)) if report else None

    def _signal(self, number: int) -> None:
        # The group cannot be another's by now: nobody else waits for its first process.
        with suppress(ProcessLookupError):
            os.killpg(self.watcher.pid, number)


@contextmanager
def held_back(numbers: Iterable[int]) -> Iterator[None]:
    """Signals wait, here and in a process that is started meanwhile, until each lets them
    come."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def run_under(
    term: Term, command: Sequence[str], stopping: threading.Event, oversight: Oversight
) -> Run:
    """Run ``command`` until it ends, ``term`` does, or ``stopping`` is set. It finds the name of
    the lease in LEASE_RESOURCE, and its token in LEASE_FENCING_TOKEN.

    Args:
        term: The term whose end ends the command.
        command: The program and its arguments.
        stopping: Set to end the command.
        oversight: Decides when the command is asked to end, and when it is killed.
    """
    token = str(term.fencing_token)
    env = {**os.environ, "LEASE_RESOURCE": term.resource, "LEASE_FENCING_TOKEN": token}

    def look() -> float:
        return oversight.look(clock(), term.trusted_until, term.lost.is_set(), stopping.is_set())

    with SupervisedCommand(command, env) as child:
        asked = ""
        while not child.ended:
            child.run_until(look())
            if oversight.asked != asked:
                asked = oversight.asked
                log.leader_command_asked_to_end(
                    command=command[0], resource=term.resource, holder=term.holder, reason=asked
                )
                child.ask_to_end()
            child.wait(POLL_EVERY)
        if child.code is None:
            look()  # it was killed, perhaps while this process was paused: is the term over?
    code = KILLED if child.code is None else child.code
    return Run(code, oversight.asked, oversight.term_ended)


def notice_of(term: Term) -> float:
    """Return how many seconds before the end of trust the command is asked to end: half of
    the time left when a late renewal is sent."""
    return max(0.0, term.ttl - longest_pause(term.ttl) - margin(term.ttl)) / 2
