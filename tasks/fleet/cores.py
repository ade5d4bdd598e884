"""The number of processes that run at a time here: ``--workers auto``."""

from __future__ import annotations

import math
import os
from pathlib import Path

#: The files of a quota, of both generations of cgroups, as a container sees them.
CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return the number of processor cores that this process may use: those it may be scheduled
    on, or the quota of its cgroup where that is less; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [quota for folder in _folders(cgroup) if (quota := _quota(folder)) is not None]
    return max(1, math.floor(min([cores or 1, *quotas]) + 0.5))


def _folders(cgroup: Path) -> list[Path]:
    """Return the folders with the quotas of this process: its own and those above."""
    folders = [cgroup, cgroup / "cpu"]
    for line in own_cgroups():
        _, controllers, path = line.split(":", 2)
        root = cgroup if not controllers else cgroup / controllers
        if not controllers or "cpu" in controllers.split(","):
            parts = Path(path).parts[1:]
            folders += [root.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    return folders


def own_cgroups() -> list[str]:
    """Return the lines of the kernel about the cgroups of this process; none where there are
    none."""
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []


def _quota(folder: Path) -> float | None:
    """Return how many cores ``folder`` grants; None: as many as there are."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        share = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return share if share > 0 else None
