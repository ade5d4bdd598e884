"""The memory of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def resident_mib() -> int:
    """Return the MiB of memory that this process has now (its resident set); where the system does
    not tell that, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource  # there is none on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, else KiB
        return peak >> (20 if sys.platform == "darwin" else 10)
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
