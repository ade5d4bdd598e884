"""A puppet that wants a resource which others want as well: ``rival CONTENDER SECONDS``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

import django


def won(cycle: Callable[[], bool], seconds: float) -> float:
    """Return how many of its tries in ``seconds`` got the resource, a second."""
    done = 0
    start = now = time.perf_counter()
    while now - start < seconds:
        done += cycle()
        now = time.perf_counter()
    return done / (now - start)


def main(contender: str, seconds: float) -> None:
    from tests.benchmarks.bench import play
    from tests.benchmarks.workloads.leases import NAMES, makers

    cycle = makers(os.environ["DATABASE_URL"])[contender]()
    cycle(NAMES[0])

    play({"contend": partial(won, partial(cycle, NAMES[0]), seconds)})


if __name__ == "__main__":
    django.setup()
    main(sys.argv[1], float(sys.argv[2]))
