"""The same on SQLite, in a file: storing, and draining with one worker. There is no limit to
compare with, and no bar."""

from __future__ import annotations

import os
import sys
import tempfile

from tests.benchmarks.bench import Bench, Figures, measured
from tests.benchmarks.databases import migrate


def run(bench: Bench) -> Figures:
    """Run the measurements of ``on_sqlite``, in a process that has that database."""
    with tempfile.TemporaryDirectory(prefix="leasing-bench-") as folder:
        url = f"sqlite:///{os.path.join(folder, 'db.sqlite3')}"
        migrate(url)
        turn = [sys.executable, "-m", "tests.benchmarks.turn", bench.size.name, "on_sqlite"]
        figures: Figures = measured(turn, url)
    return figures
