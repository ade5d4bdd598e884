"""Processor time of processes, as Linux counts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.databases import log_of

#: The places of columns in /proc/PID/stat, counted from the process's state.
PARENT, SESSION = 1, 3
OWN = slice(11, 13)
WITH_CHILDREN = slice(11, 15)

_TICK = float(os.sysconf("SC_CLK_TCK"))


def of_process(pid: int) -> float:
    """Seconds that the process has run so far, with all its threads."""
    return _seconds(_stat(pid)[OWN])


def of_session(leader: int) -> float:
    """Seconds that the living processes of a session have run so far."""
    return sum(_seconds(stat[OWN]) for _, stat in _all() if int(stat[SESSION]) == leader)


def of_server(url: str) -> float | None:
    """Seconds that PostgreSQL has run so far: backends and helpers, those that have ended too.
    None if the server at ``url`` is not one that the benchmark started."""
    log = log_of(url)
    if log is None:
        return None
    postmaster = int((log.parent / "data" / "postmaster.pid").read_text().split("\n")[0])
    children = sum(_seconds(stat[OWN]) for _, stat in _all() if int(stat[PARENT]) == postmaster)
    return children + _seconds(_stat(postmaster)[WITH_CHILDREN])


def _stat(pid: int) -> list[str]:
    # The program's name comes before, and may hold anything.
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()


def _all() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield int(entry), _stat(int(entry))
            except OSError:
                continue  # it has ended


def _seconds(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / _TICK
