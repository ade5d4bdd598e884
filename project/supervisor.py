"""Runs the demo's processes in one terminal: restarts what died, and stops all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

#: Names the folder in which the supervisor looks whether a process was killed from a page.
CRASHED = "DEMO_CRASHED"
#: Seconds before a process that died is started again, as a platform would.
RESTART_AFTER = 1.0
#: And before one that a visitor has killed is: long enough to be seen late, and gone.
RESTART_AFTER_FAULT = 30.0
#: Seconds that the processes get to end by themselves.
STOP_TIMEOUT = 15.0

MANAGE = Path(__file__).parent.parent / "manage.py"
COLOURS = (36, 32, 33, 35, 34, 31)


@dataclass
class SiteProcess:
    """One process of the demo, under a name that stands before each of its lines."""

    name: str
    #: Those of ``manage.py`` or, if they begin with "-m", of Python.
    arguments: Sequence[str]
    #: Its own environment, in addition to that of all.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Ports of this machine. It starts once all of them answer, and is ended before those who do.
    needs: Sequence[int] = ()
    process: subprocess.Popen[str] | None = field(default=None, repr=False)
    restart_at: float = 0.0


class Supervisor:
    """Keeps ``children`` running until ``stop``.

    Args:
        children: The processes.
        env: What all of them have in their environment, in addition to that of this process.
        out: The terminal.
        tells_pids: True to print the pid of each that starts, for a visitor who kills it.
    """

    def __init__(
        self,
        children: Sequence[SiteProcess],
        env: Mapping[str, str],
        out: IO[str],
        *,
        tells_pids: bool = False,
    ) -> None:
        self.children = children
        self._tells_pids = tells_pids
        # Into which the page that kills a process puts its number.
        self._killed = TemporaryDirectory(prefix="leasing-demo-")
        self.env = {
            **os.environ,
            **env,
            "PYTHONUNBUFFERED": "1",
            CRASHED: self._killed.name,
        }
        self.out = out
        self._width = max(len(child.name) for child in self.children)
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End ``run``."""
        self._stopping.set()

    def run(self) -> None:
        """Start the children, start again those that die, and end them all after ``stop``."""
        try:
            while not self._stopping.wait(0.1):
                for child in self.children:
                    self._look_after(child)
        finally:
            self._stop_all()
            self._killed.cleanup()

    def say(self, name: str, line: str) -> None:
        """Print one line under ``name``."""
        with self._lock:
            self.out.write(f"{self._prefix(name)} {line}\n")
            self.out.flush()

    def _look_after(self, child: SiteProcess) -> None:
        if child.process is None:
            if time.monotonic() >= child.restart_at and all(map(_answers, child.needs)):
                self._start(child)
        elif (code := child.process.poll()) is not None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            pause = RESTART_AFTER_FAULT if self._was_killed(child.process.pid) else RESTART_AFTER
            self.say(child.name, f"ended ({how}); restarts in {pause:.0f} s")
            child.process = None
            child.restart_at = time.monotonic() + pause

    def _was_killed(self, pid: int) -> bool:
        mark = Path(self._killed.name) / str(pid)
        if not mark.exists():
            return False
        mark.unlink()
        return True

    def _start(self, child: SiteProcess) -> None:
        script = [] if child.arguments[0] == "-m" else [str(MANAGE)]
        child.process = subprocess.Popen(
            [sys.executable, *script, *child.arguments],
            cwd=MANAGE.parent,
            env={**self.env, **child.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C is for the supervisor, which then ends each child once.
            start_new_session=True,
        )
        if self._tells_pids:
            self.say(child.name, f"started (pid {child.process.pid})")
        pipe = child.process.stdout
        assert pipe is not None
        threading.Thread(target=self._pass_on, args=(child.name, pipe), daemon=True).start()

    def _pass_on(self, name: str, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.say(name, line.rstrip("\n"))

    def _stop_all(self) -> None:
        self._stop([child for child in self.children if child.needs])
        self._stop([child for child in self.children if not child.needs])

    def _stop(self, children: Sequence[SiteProcess]) -> None:
        running = [child.process for child in children if child.process]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that is frozen would not hear
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _prefix(self, name: str) -> str:
        text = f"{name:<{self._width}} |"
        if not self.out.isatty():
            return text
        places = [child.name for child in self.children]
        colour = COLOURS[places.index(name) % len(COLOURS)] if name in places else 1
        return f"\x1b[{colour}m{text}\x1b[0m"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
