"""Runs Python's arguments under libfaketime: ``python -m tests.chaos.faked FILE ...``.

libfaketime changes the wall clock alone, as ``wall_clock`` has it. It mistakes the absolute times
that ``time.sleep`` passes to the system, whose error Python raises; so a sleep is a wait here.
"""

from __future__ import annotations

import runpy
import select
import sys
import time
from pathlib import Path
from typing import SupportsIndex

#: Where Debian has the library.
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def wall_clock(file: Path) -> dict[str, str]:
    """Return the variables of a process whose wall clock is ahead by what is in ``file``: "+5h"."""
    return {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def _sleep(seconds: SupportsIndex | float) -> None:
    select.select([], [], [], float(seconds))


def main(args: list[str]) -> None:
    time.sleep = _sleep
    if args[0] == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
