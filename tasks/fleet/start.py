"""Start of processes: by fork, or as a new Python process where a fork would not be safe."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections

from leasing.process.deadman import find_prctl
from leasing.runtime.shutdown import ExitCode
from tasks.runtime.marks import Marks, size_of

#: The program of a new Python process, where this one cannot fork: it calls a function with
#: arguments that are pickled in an open file.
SET_UP = (
    "import sys; sys.path[:] = {path!r}; import django; django.setup(); import pickle; "
    "function, args = pickle.load(open({descriptor}, 'rb')); function(*args)"
)
PR_SET_CHILD_SUBREAPER = 36
#: Signals that are blocked while a process starts, until it has installed its own handlers.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass
class ChildContext:
    """The identity of a child and its means to communicate with the parent."""

    fleet: str
    index: int
    #: The unique name of this child: the holder of its tasks.
    name: str
    channel: socket.socket
    marks: Marks
    #: The number of earlier children with its index.
    restarts: int = 0


#: The context of this process, if it is a child that was started by exec.
current: ChildContext | None = None


def native_threads() -> list[str]:
    """Return the names of the other threads of this process, including those not started by
    Python."""
    own = {each.native_id: each.name for each in threading.enumerate()}
    me = threading.get_native_id()
    try:
        found = {int(each.name): each for each in Path("/proc/self/task").iterdir()}
    except OSError:
        return [name for number, name in own.items() if number != me]
    names = []
    for number, folder in found.items():
        if number != me:
            with suppress(OSError):  # it has ended meanwhile
                names.append(own.get(number) or (folder / "comm").read_text().strip())
    return names


def reason_against_fork() -> str:
    """Return the reason why this process must not fork, as text; empty if it may."""
    if sys.platform == "darwin":
        return "macOS does not allow it once its frameworks are in use"
    threads = native_threads()
    return f"this process has other threads: {', '.join(threads)}" if threads else ""


def can_start() -> bool:
    """Return True if this process can start children: by fork, or as new Python processes, which
    find the settings by DJANGO_SETTINGS_MODULE."""
    return hasattr(os, "fork") and bool(
        "DJANGO_SETTINGS_MODULE" in os.environ or not reason_against_fork()
    )


#: True if this process is the subreaper of its children's orphans.
is_subreaper = False


def become_subreaper() -> None:
    """Make this process the subreaper of its children's orphans, on Linux."""
    global is_subreaper
    prctl = find_prctl()
    is_subreaper = prctl is not None and prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def close_connections() -> None:
    """Close the connections that Django's set-up opened: a forked child would share them."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None and connection.settings_dict["OPTIONS"].get("pool"):
            close_pool()


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Block SIGNALS during the block, in this process and in one that is forked from it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def setting_up() -> Iterator[None]:
    """Exit, in a forked child, if the block fails. The error would otherwise reach the parent's
    code, which would retry in the child as if it were the parent."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(ExitCode.FAILED)


def fork(abandon: Callable[[], object], begin: Callable[[], object]) -> int:
    """Fork this process. Returns the pid of the child, and 0 in it: there ``abandon`` has left what
    is the parent's alone, and ``begin`` was called before any of SIGNALS arrives."""
    close_connections()
    with signals_held_back():
        pid = os.fork()
        if pid == 0:
            with setting_up():
                abandon()
            begin()
    return pid


def start_python(
    function: Callable[..., object], *args: object, descriptors: Sequence[int] = ()
) -> int:
    """Start a Python process that sets up Django and calls ``function`` with ``args``. It inherits
    ``descriptors``. Returns its pid; the caller reaps it."""
    close_connections()
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with tempfile.TemporaryFile() as file:
        pickle.dump((function, args), file)
        file.seek(0)
        code = SET_UP.format(path=sys.path, descriptor=file.fileno())
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", code], pass_fds=[file.fileno(), *descriptors]
        )
    process.returncode = 0  # or Popen would wait for it
    return process.pid


def start_child(context: ChildContext, map_file: int, options: Mapping[str, Any]) -> int:
    """Start a child as a new Python process, with the ``options`` of the command, and the shared
    file of its marks. Returns its pid."""
    names = ("fleet", "index", "name", "restarts")
    known = {name: getattr(context, name) for name in names}
    size, channel = (context.marks.inside, context.marks.groups), context.channel.fileno()
    descriptors = [map_file, channel]
    return start_python(_enter, dict(options), known, size, *descriptors, descriptors=descriptors)


def _enter(
    options: dict[str, Any],
    known: dict[str, Any],
    size: tuple[int, int],
    map_file: int,
    channel: int,
) -> None:
    """Run a child that was started by exec."""
    global current
    ignore_interrupts()
    for descriptor in (channel, map_file):
        os.set_inheritable(descriptor, False)
    marks = Marks(*size, map_file)
    os.close(map_file)  # the map stays
    current = ChildContext(**known, channel=socket.socket(fileno=channel), marks=marks)
    call_command("run_worker", **options)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this process: its parent handles it."""
    # Not SIG_IGN: processes that a handler starts would inherit it.
    signal.signal(signal.SIGINT, lambda number, frame: None)


def open_map_file(inside: int, groups: int) -> int:
    """Return a descriptor of an anonymous file of the size of the marks."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tasks-marks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_of(inside, groups))
    return descriptor
