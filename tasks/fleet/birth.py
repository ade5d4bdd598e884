"""Start a child: by a fork, or by another Python where a fork would not be safe."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections

from leasing.process.deadman import find_prctl
from tasks.runtime.marks import Marks, size_of

_START = (
    "import pickle, sys; sys.path[:] = {path!r}; import django; django.setup(); "
    "from tasks.fleet.birth import enter; enter(*pickle.loads({message!r}))"
)
PR_SET_CHILD_SUBREAPER = 36
#: Signals that wait while a process is started, until it has handlers of its own for them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass
class Birth:
    """The beginning of a child, as the child has it."""

    fleet: str
    index: int
    #: The name of this child and no other: the holder of its tasks.
    name: str
    channel: socket.socket
    marks: Marks
    #: The number of children that had its index before it.
    restarts: int = 0


#: The beginning of this process, if it is a child that was started by exec.
born: Birth | None = None


def native_threads() -> list[str]:
    """Return the names of the threads of this process besides the calling one, those that Python
    does not know too."""
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
    """Return why a child must not be forked from this process, in words; empty if it may be."""
    if sys.platform == "darwin":
        return "macOS does not allow it once its frameworks are in use"
    threads = native_threads()
    return f"this process has other threads: {', '.join(threads)}" if threads else ""


#: True if what a child leaves behind becomes a child of this process.
is_subreaper = False


def become_subreaper() -> None:
    """Have what a child leaves behind become a child of this process, where Linux can."""
    global is_subreaper
    prctl = find_prctl()
    is_subreaper = prctl is not None and prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def close_connections() -> None:
    """Close what set-up opened: a child would share it, and the parent needs none."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None and connection.settings_dict["OPTIONS"].get("pool"):
            close_pool()


@contextmanager
def signals_held_back() -> Iterator[None]:
    """A block in which SIGNALS wait, in this process and in one that is forked from it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def execute(birth: Birth, map_file: int, theirs: socket.socket, options: Mapping[str, Any]) -> int:
    """Start a child in a Python of its own. Returns its pid.

    Args:
        birth: The beginning of the child, as the parent has it.
        map_file: The descriptor of the map of its marks.
        theirs: Its end of the channel.
        options: The options of the command.
    """
    details = {
        **{name: getattr(birth, name) for name in ("fleet", "index", "name", "restarts")},
        **{"inside": birth.marks.inside, "groups": birth.marks.groups},
        **{"map_file": map_file, "channel": theirs.fileno()},
    }
    code = _START.format(path=sys.path, message=pickle.dumps((dict(options), details)))
    return start_python(code, [map_file, theirs.fileno()])


def start_python(code: str, descriptors: Iterable[int]) -> int:
    """Start a Python that runs ``code`` and has these ``descriptors``. Returns its pid: whoever
    calls this reaps it."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    process = subprocess.Popen([sys.executable, *flags, "-c", code], pass_fds=[*descriptors])
    process.returncode = 0  # or Popen would look for it
    return process.pid


def enter(options: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    """Be a child that was started by exec."""
    global born
    ignore_interrupts()
    for descriptor in (details["channel"], details["map_file"]):
        os.set_inheritable(descriptor, False)
    channel = socket.socket(fileno=details["channel"])
    marks = Marks(details["inside"], details["groups"], details["map_file"])
    os.close(details["map_file"])  # the map stays
    known = {name: details[name] for name in ("fleet", "index", "name", "restarts")}
    born = Birth(**known, channel=channel, marks=marks)
    call_command("run_worker", **options)


def ignore_interrupts() -> None:
    """Have Ctrl-C do nothing in this process: its parent minds it."""
    # No SIG_IGN: what a handler starts would inherit it.
    signal.signal(signal.SIGINT, lambda number, frame: None)


def open_map_file(inside: int, groups: int) -> int:
    """Return a descriptor of a file without a name, of the size of a map of marks."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tasks-marks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_of(inside, groups))
    return descriptor
