"""Measure an idle worker: statements in the server's log (its own and those that begin and end
transactions), and its time on the CPU."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.benchmarks.bench import Bench, Figures
from tests.benchmarks.databases import log_of
from tests.benchmarks.workloads.drain import end, start_workers
from tests.processes import Process

#: Until a worker that has just come up has found its rhythm.
SETTLED_AFTER = 12.0


def run(bench: Bench) -> Figures:
    """Statements a second, and percent of a core."""
    log = log_of(bench.url)
    name = urlsplit(bench.url).path[1:]
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'".encode())
        started = start_workers(bench, 1)
        time.sleep(min(SETTLED_AFTER, 2 * bench.size.idle_seconds))
        logged = log.stat().st_size if log else 0
        cpu, wall = cpu_time(started[0]), time.perf_counter()
        time.sleep(bench.size.idle_seconds)
        cpu, wall = cpu_time(started[0]) - cpu, time.perf_counter() - wall
        statements = count_statements(log, name, logged) if log else None
        connection.execute(f'ALTER DATABASE "{name}" RESET log_statement'.encode())
    end(started)
    figures: Figures = {"idle worker (% of a core)": {"ours": 100 * cpu / wall}}
    if statements is not None:
        figures["idle worker (queries/s)"] = {"ours": statements / wall}
    return figures


def count_statements(log: Path, database: str, start: int) -> int:
    """Return the number of statements on ``database`` in the log from the position ``start`` on."""
    with log.open("rb") as lines:
        lines.seek(start)
        text = lines.read().decode(errors="replace")
    return len(re.findall(rf"^{database} LOG:  (?:statement|execute [^:]*):", text, re.MULTILINE))


def cpu_time(process: Process) -> float:
    """Seconds that the process has run so far, as Linux says."""
    fields = Path("/proc", str(process.pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))
