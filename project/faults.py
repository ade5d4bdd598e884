"""Faults for a visitor of the demo to cause: kill a worker, or hold one up for a while.

Only in the demo, which says in the environment of its processes that it is one: elsewhere a
worker may have the parent of its web process too, and is no demo. Of all the rows that call
themselves workers of this machine, those can be hit whose parent is the parent of this process, and
those whose parent's parent it is: the workers of ``run_worker --workers``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from project.supervisor import CRASHED
from tasks.models import Task, Worker, WorkerRole

#: Seconds for which a frozen worker stands still: longer than the leases of the demo last.
FROZEN_FOR = 20.0


def is_demo() -> bool:
    """Return True if the demo's supervisor has started this process."""
    return CRASHED in os.environ


def crash() -> tuple[Worker, list[Task]] | None:
    """Kill the worker that has most to do, as kill -9 does. Returns it and what it held; None
    where there is no worker that may be killed."""
    found = _busiest(_is_sibling)
    if found is not None:
        worker = found[0]
        (Path(os.environ[CRASHED]) / str(worker.pid)).touch()
        os.kill(worker.pid, signal.SIGKILL)
    return found


def crash_child() -> tuple[Worker, list[Task]] | None:
    """Kill the worker under a parent that has most to do. Returns what ``crash`` returns."""
    found = _busiest(_is_nephew)
    if found is not None:
        os.kill(found[0].pid, signal.SIGKILL)
    return found


def freeze() -> tuple[Worker, list[Task]] | None:
    """Stop the worker that has most to do without its knowing, and let it go on after
    ``FROZEN_FOR``: to itself no time has passed. Returns what ``crash`` returns."""
    found = _busiest(_is_sibling)
    if found is not None:
        pid = found[0].pid
        os.kill(pid, signal.SIGSTOP)
        thaw = threading.Timer(FROZEN_FOR, _thaw, (pid,))
        thaw.daemon = True
        thaw.start()
    return found


def _thaw(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _busiest(may_be_hit: Callable[[int], bool]) -> tuple[Worker, list[Task]] | None:
    if not is_demo():
        return None
    mine = Worker.objects.present().filter(
        hostname=socket.gethostname()[:255], role__in=WorkerRole.running()
    )
    crews = [(each, _held(each)) for each in mine if may_be_hit(each.pid)]
    return max(crews, key=lambda crew: len(crew[1]), default=None)


def _held(worker: Worker) -> list[Task]:
    held = Task.objects.running().filter(holder=worker.name)
    return list(held.only("pk", "name").order_by("-expires_at"))


def _is_sibling(pid: int) -> bool:
    return _parent_of(pid) == os.getppid()


def _is_nephew(pid: int) -> bool:
    parent = _parent_of(pid)
    return parent is not None and _is_sibling(parent)


def _parent_of(pid: int) -> int | None:
    """Return the parent of the process; None if it does not run. A stopped one is left alone."""
    said = subprocess.run(
        ["ps", "-o", "ppid=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return int(said[0]) if len(said) == 2 and said[1][0] not in "TtZ" else None
