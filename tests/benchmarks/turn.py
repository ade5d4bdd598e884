"""``python -m tests.benchmarks.turn SIZE WORKLOAD...``: measure once, on DATABASE_URL.

The last line printed is a JSON object of figures.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile

import django

from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.sizes import SIZES


def measure(bench: Bench, workloads: list[str]) -> Figures:
    """Return the measurements of these workloads, one after another."""
    figures: Figures = {}
    for name in workloads:
        run = importlib.import_module(f"tests.benchmarks.workloads.{name}").run
        with bench.processes():
            for what, by_whom in run(bench).items():
                figures.setdefault(what, {}).update(by_whom)
    return figures


if __name__ == "__main__":
    django.setup()
    size, *workloads = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="leasing-bench-") as folder:
        bench = Bench(os.environ["DATABASE_URL"], SIZES[size], folder)
        print(json.dumps(measure(bench, workloads)))
