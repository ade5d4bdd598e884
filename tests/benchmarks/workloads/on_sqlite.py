"""Measure ``sqlite``, in a process that has that database."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.workloads import drain, enqueue


def run(bench: Bench) -> Figures:
    """Tasks a second."""
    count = bench.size.drained_on_sqlite
    stored = enqueue.run(replace(bench, size=replace(bench.size, bulk=count)))
    drained = drain.ours(bench, count)
    figures = stored | {"drain, 1 worker (tasks/s)": {"ours": drained.rate}}
    return {f"SQLite: {name}": by_whom for name, by_whom in figures.items()}
