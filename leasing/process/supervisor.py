"""Runs a command for as long as its term lasts, and no longer.

``leasing.process.deadman`` runs next to the command. At each renewal of the term, this process
sends deadman the moment at which trust in the term ends; when that moment passes, deadman kills the
command and all that the command has started. So the command ends in time even if this process is
paused, hangs or is gone.

The command is asked to end, by SIGTERM,

    shortly before trust ends  because renewals have failed; the command may run until trust ends
    when the term is lost      revoked or taken over: another process may lead already, so the
                               command has a second
    when this process is       the command has ``stop_timeout``; its term is renewed meanwhile
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

#: Seconds between checks of the term and of the request to stop.
POLL_EVERY = 0.1
#: Seconds that a command has to end after its term was lost.
LAST_WORDS = 1.0
KILLED = deadman.KILLED_BY + signal.SIGKILL


@dataclass(frozen=True)
class Run:
    """The end of a command."""

    #: 128 and the signal's number when a signal ended it.
    code: int
    #: Why the command was asked to end; empty if it ended by itself.
    asked: str = ""
    #: True if the term ended before the command did.
    term_ended: bool = False


@dataclass
class Oversight:
    """Decides when a command is asked to end, and when it is killed. Knows no process.

    Args:
        notice: Seconds before the end of trust at which the command is asked to end.
        stop_timeout: Seconds that the command has to end when this process is asked to stop.
        last_words: Seconds that the command has to end after its term was lost.
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
            now: The current moment.
            trusted_until: The end of trust in the term, by its latest renewal.
            lost: True if the term is lost.
            stopping: True if this process is asked to stop.
        """
        # A lost term is not trusted: keep the end of trust that was known before the loss.
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
        """Kill what is left of the command and its group."""
        self._signal(signal.SIGKILL)
        self.watcher.wait()
        self.channel.close()

    def run_until(self, moment: float) -> None:
        """Set the moment, on the holder's clock, at which the command is killed, even if this
        process no longer runs then. The first call starts the command."""
        if moment != self._until:
            self._until = moment
            with suppress(OSError):  # it has ended, as wait() will find out
                self.channel.send(deadman.NUMBER.pack(moment))

    def ask_to_end(self) -> None:
        """Send SIGTERM to the whole group."""
        self._signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the end of the command."""
        ready, _, _ = select.select([self.channel], [], [], seconds)
        if ready:
            self.ended = True
            with suppress(OSError):
                report = self.channel.recv(deadman.NUMBER.size)
                self.code = int(*deadman.NUMBER.unpack(report)) if report else None

    def _signal(self, number: int) -> None:
        # The id cannot have become another group's: only this process waits for the watcher.
        with suppress(ProcessLookupError):
            os.killpg(self.watcher.pid, number)


@contextmanager
def held_back(numbers: Iterable[int]) -> Iterator[None]:
    """Block signals while the ``with`` block runs. A process that is started in it begins with
    these signals blocked, and has to unblock them itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def run_under(
    term: Term, command: Sequence[str], stopping: threading.Event, oversight: Oversight
) -> Run:
    """Run ``command`` until it ends, ``term`` ends, or ``stopping`` is set. The command finds the
    name of the lease in LEASE_RESOURCE, and the token of the term in LEASE_FENCING_TOKEN.

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
        reason = ""
        while not child.ended:
            child.run_until(look())
            if oversight.asked != reason:
                reason = oversight.asked
                log.leader_command_asked_to_end(
                    command=command[0], resource=term.resource, holder=term.holder, reason=reason
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
