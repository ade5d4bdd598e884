"""Measure a claim with ever more tasks pending, and with as many that have ended.

Each depth has a database and a process of its own; they claim in turns, so that a machine that is
slow for a while is slow for all.
"""

from __future__ import annotations

import statistics

from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.databases import Databases

#: Tasks that one claim takes.
LIMIT = 10
RATIO = "claim, deepest to shallowest (ratio)"


def run(bench: Bench) -> Figures:
    """Milliseconds of a claim at each depth, and the ratio of the deepest to the shallowest."""
    databases = Databases(bench.url)
    urls = {depth: databases.fresh(f"bench_claim_{depth}") for depth in bench.size.depths}
    claimers = {depth: bench.puppet("claimer", str(depth), url=url) for depth, url in urls.items()}
    databases.settle()
    found: dict[int, list[float]] = {depth: [] for depth in claimers}
    for _ in range(bench.size.claims):
        for depth, claimer in claimers.items():
            found[depth].append(claimer.ask("claim"))
    for depth, claimer in claimers.items():
        claimer.end()
        databases.drop(f"bench_claim_{depth}")
    medians = {depth: statistics.median(figures) for depth, figures in found.items()}
    figures: Figures = {
        f"claim of {LIMIT} at {depth:,} pending (ms)": {"ours": each}
        for depth, each in medians.items()
    }
    depths = bench.size.depths
    return figures | {RATIO: {"ours": medians[depths[-1]] / medians[depths[0]]}}
