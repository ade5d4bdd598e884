"""The identity of a process, by which others on its host can tell if it still runs.

A pid alone cannot: it is used again, and containers with the same host name have pids of their own.
So the identity says where the pid counts (the boot of the kernel and the pid namespace; the host
where there is no /proc), when the process started, and has a random part. It is stored with
the pid.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from functools import lru_cache
from pathlib import Path


def own_identity() -> str:
    """Return the identity of this process: ``where|started|random``."""
    return _identity_of(os.getpid())


@lru_cache(maxsize=1)
def _identity_of(pid: int) -> str:  # a forked child has another pid, and so its own
    return "|".join((_where(), _started(pid) or "", secrets.token_hex(8)))


def is_running(pid: int, identity: str) -> bool | None:
    """Return True if the process with this ``pid`` that had this ``identity`` runs, False if it
    has ended, None if that cannot be seen from here: it is of another host or container."""
    if identity == own_identity():
        return True
    where, _, rest = identity.partition("|")
    started = rest.partition("|")[0]
    if not (where and started) or where != _where():
        return None
    if pid == os.getpid():
        return False  # of the program that this one has replaced (exec): a pid has one process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return _started(pid) in (started, None)  # of another user: /proc may hide it
    return _started(pid) == started


def _where() -> str:
    """Return where pids of this process count; empty if that is unknown."""
    if os.name != "posix":
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "" if os.path.exists("/proc/self") else socket.gethostname()[:100]


def _started(pid: int) -> str | None:
    """Return when the process with this ``pid`` started; None if it has ended, or is not shown."""
    if os.path.exists("/proc/self/stat"):
        try:
            # The name before the last parenthesis may contain anything.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    said = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return said[1].strip() if len(said) == 2 and said[0][0] != "Z" else None
