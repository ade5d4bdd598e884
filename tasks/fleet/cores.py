"""The number of usable processor cores, for ``--workers auto``."""

from __future__ import annotations

import math
import os
from pathlib import Path

#: The folder of the CPU quota, of cgroups v1 and v2, as a container sees it.
CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return the number of cores that this process may use: its CPU affinity, or the quota of its
    cgroup if that is lower; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [quota for folder in _folders(cgroup) if (quota := _quota(folder)) is not None]
    return max(1, math.floor(min([cores or 1, *quotas]) + 0.5))


def _folders(cgroup: Path) -> list[Path]:
    """Return the folders with the quotas of this process: its own cgroup and the parents of
    that."""
    folders = [cgroup, cgroup / "cpu"]
    for line in own_cgroups():
        _, controllers, path = line.split(":", 2)
        root = cgroup if not controllers else cgroup / controllers
        if not controllers or "cpu" in controllers.split(","):
            parts = Path(path).parts[1:]
            folders += [root.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    return folders


def own_cgroups() -> list[str]:
    """Return the lines of /proc/self/cgroup; empty if there is no such file."""
    try:
        return Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []


def _quota(folder: Path) -> float | None:
    """Return the quota of ``folder`` in cores; None if it is unlimited."""
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
