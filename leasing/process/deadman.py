"""Runs a command until a deadline, which another process keeps extending.

    python -I -S deadman.py FD COMMAND ...

``leasing.process.supervisor`` starts this program as the first process of a group, to which the
command and all that it starts belong. When the deadline passes, the parent is gone, or this program
fails, it kills the group, itself included. So nothing of the command outlives its lease, whether
the parent was killed, is paused or hangs. If this process alone is killed, Linux kills the command.

FD is a socket, from which this program reads deadlines, in seconds on the clock of
``leasing.runtime.clock``; the first deadline starts the command. When the command ends, this
program writes its exit code to FD, and then waits to be killed, together with what the command has
left behind.

This program runs as a file, without the package and without Django: it has to start quickly.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

NUMBER = struct.Struct("d")
#: Seconds between checks of the clock: while a machine is suspended, no timeout elapses.
CHECK_EVERY = 0.25
#: Exit codes, as shells define them.
NOT_EXECUTABLE, NOT_FOUND, KILLED_BY = 126, 127, 128
#: Signals to the group, meant for the command; this process continues until the command ends.
FOR_THE_COMMAND = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def clock() -> float:
    """Return what ``leasing.runtime.clock`` returns in the process that sends the deadlines."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Deadman:
    """Watches over one command. ``channel`` leads to the process that knows the deadline."""

    def __init__(self, channel: socket.socket, command: list[str]) -> None:
        self._channel = channel
        self._command = command
        self._received = b""
        self._deadline = 0.0

    def run(self) -> NoReturn:
        """Start the command at the first deadline, and end with the last."""
        # Signals are blocked until the command runs. Before that, a signal would be lost in this
        # process, or in the handler that the process of the command inherits from it.
        signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_COMMAND)
        woken = wake_at_signals()
        self._receive()
        child = self._start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_COMMAND)
        while True:
            if child is not None and child.poll() is not None:
                code = child.returncode
                self._report(code if code >= 0 else KILLED_BY - code)
                child = None
            left = self._deadline - clock()
            if left <= 0:
                kill_group()
            ready, _, _ = select.select([self._channel, woken], [], [], min(left, CHECK_EVERY))
            if woken in ready:
                woken.recv(4096)
            if self._channel in ready:
                self._receive()

    def _receive(self) -> None:
        data = self._channel.recv(4096)
        if not data:
            raise EOFError("the supervising process is gone")
        self._received += data
        whole = len(self._received) - len(self._received) % NUMBER.size
        for (deadline,) in NUMBER.iter_unpack(self._received[:whole]):
            self._deadline = deadline
        self._received = self._received[whole:]

    def _report(self, code: int) -> None:
        self._channel.sendall(NUMBER.pack(code))

    def _start(self) -> subprocess.Popen[bytes] | None:
        try:
            child = subprocess.Popen(self._command, preexec_fn=bind_to(os.getpid()))
        except OSError as error:
            print(f"{self._command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            missing = isinstance(error, FileNotFoundError)
            self._report(NOT_FOUND if missing else NOT_EXECUTABLE)
            return None
        for number in signal.sigpending() & set(FOR_THE_COMMAND):
            child.send_signal(number)  # it arrived before the command was started
        return child


def wake_at_signals() -> socket.socket:
    """Return a socket that becomes readable when a signal arrives; no such signal ends this
    process."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)
    for number in (*FOR_THE_COMMAND, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    return woken


def bind_to(parent: int) -> Callable[[], None]:
    """Return the function that the command's process calls before it becomes the command."""
    prctl = find_prctl()

    def prepare() -> None:
        if prctl is not None:
            prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(KILLED_BY + signal.SIGKILL)
        for number in FOR_THE_COMMAND:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_COMMAND)

    return prepare


def find_prctl() -> Any:
    """Return Linux's prctl; None on other systems."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def kill_group() -> NoReturn:
    """Kill the command, all that it has started, and this process."""
    os.killpg(0, signal.SIGKILL)
    os._exit(KILLED_BY + signal.SIGKILL)


if __name__ == "__main__":
    if os.getpgrp() != os.getpid():
        sys.exit("This is run by leasing.process.supervisor, as the first process of a group.")
    try:
        Deadman(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]).run()
    except (EOFError, ConnectionError):
        pass  # if a report was not read, the socket ends with an error, not with EOF
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # However this ends, the command must not outlive it.
        kill_group()
