"""Real processes for the tests, and waiting for what they do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.plugin import ROOT
from tests.preloaded import Preloaded

STOP_TIMEOUT = 10.0

# On Linux a process dies with the tests that started it, even if those are killed. It dies with
# the *thread* that started it too: start processes from the test's own.
BOUND = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []

Value = TypeVar("Value")


class Process(subprocess.Popen[bytes]):
    """A process with its output in a file, and the signals that tests send: Python, or another
    ``program``."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        program: Sequence[str] = (sys.executable,),
        folder: Path = ROOT,
    ) -> None:
        self.name = " ".join(args)
        self.log = log
        with log.open("wb") as output:
            super().__init__(
                [*BOUND, *program, *args],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """All that it has printed so far, errors too."""
        return self.log.read_text(errors="replace")

    def pause(self) -> None:
        """SIGSTOP: not one more instruction until ``resume``."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to stop if it has not, then kill it with all that it started."""
        self.resume()
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.wait(STOP_TIMEOUT)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Warm(Process):
    """A process that has its imports already: forked from ``server``, not started."""

    def __init__(
        self, args: Sequence[str], env: Mapping[str, str], log: Path, server: Preloaded
    ) -> None:
        self.name = " ".join(args)
        self.log = log
        self.args = args
        self.returncode = None
        self._server = server
        self.pid = server.start(args, env, log)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.poll(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, which is another process's child."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return code


def wait_for(
    condition: Callable[[], Value],
    *,
    timeout: float = 30.0,
    message: str = "",
    process: Process | None = None,
) -> Value:
    """Poll ``condition`` until it gives something true, and return that.

    Fails the test after ``timeout`` seconds, or at once when ``process`` has ended without
    making it true; both tell ``message`` (default: the condition's name), the last value and
    what the process printed.
    """
    deadline = time.monotonic() + timeout
    while True:
        ended = process is not None and process.poll() is not None
        if value := condition():
            return value
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    why = "its process ended" if ended else f"waited {timeout:g} s"
    printed = f"\nprinted by the process:\n{process.output}" if process else ""
    pytest.fail(f"{message or _name(condition)}: {why}; last value {value!r}{printed}")


def _name(condition: Callable[[], object]) -> str:
    code = getattr(condition, "__code__", None)
    name = getattr(condition, "__qualname__", repr(condition))
    return f"{name} (line {code.co_firstlineno})" if code else name
