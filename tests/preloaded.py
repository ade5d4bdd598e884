"""Processes that start warm: forked from one that has already imported Django and the apps.

``python -m tests.preloaded`` sets Django up, connects to nothing, and then forks whenever its
input, a socket, asks for a process. Such a process has a session, an environment, arguments and an
output of its own and ends as a Python ends that was started for it; it only saves the 0.7 seconds
of CPU that its imports take. What it cannot have is settings that follow another environment than
those of the one it was forked from: ``can_start`` says so, and the caller starts a new Python.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
START_TIMEOUT = 60.0
#: Variables that no settings are made of.
OWN = {"PYTEST_CURRENT_TEST"}


class Preloaded:
    """The process that is forked, seen from the tests. It ends with them, or by ``close``."""

    def __init__(self, bound: Sequence[str], folder: Path) -> None:
        self._command = [*bound, sys.executable, "-m", __name__]
        self._folder = folder
        self._env: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def can_start(self, args: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return True if a process of these arguments would be as a new Python is. The first
        environment that is asked for is the one whose processes are forked from now on."""
        if args[0].startswith("-") and args[0] not in ("-m", "-c"):
            return False  # an option of the interpreter
        if self._process is None:
            self._launch(_without_own(env))
        return _without_own(env) == self._env

    def _launch(self, env: dict[str, str]) -> None:
        self._env = env
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_TIMEOUT)
        self._answers = self._socket.makefile("r")
        with theirs:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=env,
                stdin=theirs.fileno(),
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def start(self, args: Sequence[str], env: Mapping[str, str], log: Path) -> int:
        """Fork, and return the process id once the process has its session and its output."""
        pid: int = self._ask({"args": list(args), "env": dict(env), "log": str(log)})
        return pid

    def poll(self, pid: int) -> int | None:
        """The exit code of a process as ``subprocess`` has it, None while it runs. It stays a
        zombie until this is called, so that its id is nobody else's."""
        code: int | None = self._ask({"poll": pid})
        return code

    def close(self) -> None:
        """End it, and kill what was forked from it."""
        if self._process is not None:
            self._answers.close()
            self._socket.close()
            self._process.wait()

    def _ask(self, question: dict[str, Any]) -> Any:
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the process that is forked has ended; it has printed why")
        return json.loads(answer)


def _without_own(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in OWN}


def main() -> None:
    """Serve until the input ends. In a process that was forked, become what was asked for."""
    _preload()
    with closing(socket.socket(fileno=os.dup(0))) as connection:
        asked = _serve(connection)
    if asked is not None:
        _become(asked)


def _preload() -> None:
    import django

    django.setup()

    from django.core.management import call_command, get_commands, load_command_class
    from django.db import connections

    for name, app in get_commands().items():
        if app in ("leasing", "tasks"):
            load_command_class(app, name)
    call_command("check")  # as each command does: it imports the pages, the admin and the API
    connections.close_all()  # some checks ask the database, and a fork must not share a connection
    gc.collect()
    gc.freeze()  # the pages of what is here stay shared


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Answer questions; None when there are no more, and in a fork what it is to become."""
    with connection.makefile("r") as questions:
        for line in questions:
            question = json.loads(line)
            if "poll" in question:
                pid, status = os.waitpid(question["poll"], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if pid else None
            else:
                answer = _fork(question)
                if answer == 0:
                    return dict(question)
            connection.sendall(json.dumps(answer).encode() + b"\n")
    return None


def _fork(question: Mapping[str, Any]) -> int:
    parent = os.getpid()
    readable, writable = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writable)
        os.read(readable, 1)
        os.close(readable)
        return pid
    os.close(readable)
    os.setsid()
    die_with(parent)
    _redirect(question["log"])
    os.close(writable)
    return 0


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent has ended, where it knows how."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _redirect(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for descriptor, place in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.close(null)
    os.close(output)


def _become(question: Mapping[str, Any]) -> None:
    """Run the module, the code or the file as the interpreter would."""
    os.environ.clear()
    os.environ.update(question["env"])
    time.tzset()
    first, *rest = question["args"]
    if first == "-m":
        sys.argv = [first, *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main_module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main_module.__dict__)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
