"""Measure an idle worker: statements in the server's log (its own and those that begin and end
transactions), its connections, and its time on the CPU."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from django.db import connection as django_connection

from tasks.models import Task
from tests.benchmarks import cpu, filling
from tests.benchmarks.bench import Bench, Figures, soon
from tests.benchmarks.databases import log_of
from tests.benchmarks.workloads.drain import end, start_workers

#: Until a worker that has just come up has found its rhythm.
SETTLED_AFTER = 12.0
RUN_BEFORE = 20


def run(bench: Bench) -> Figures:
    """Statements a second, connections, and percent of a core."""
    log = log_of(bench.url)
    name = urlsplit(bench.url).path[1:]
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'".encode())
        django_connection.ensure_connection()  # ours, which is not to be counted
        others = count_sessions(connection)
        started = start_workers(bench, 1)
        # Once it has run tasks, it holds all the connections that it will hold.
        Task.objects.enqueue_many("bench.nap", [{"seconds": 0.01}] * RUN_BEFORE)
        soon(lambda: Task.objects.succeeded().count() == RUN_BEFORE, "the first tasks are done")
        time.sleep(min(SETTLED_AFTER, 2 * bench.size.idle_seconds))
        logged = log.stat().st_size if log else 0
        used, wall = cpu.of_process(started[0].pid), time.perf_counter()
        time.sleep(bench.size.idle_seconds)
        used, wall = cpu.of_process(started[0].pid) - used, time.perf_counter() - wall
        statements = count_statements(log, name, logged) if log else None
        connection.execute(f'ALTER DATABASE "{name}" RESET log_statement'.encode())
        sessions = count_sessions(connection) - others
    end(started)
    filling.forget_tasks()
    figures: Figures = {
        "idle worker (% of a core)": {"ours": 100 * used / wall},
        "idle worker (connections)": {"ours": float(sessions)},
    }
    if statements is not None:
        figures["idle worker (queries/s)"] = {"ours": statements / wall}
    return figures


def count_statements(log: Path, database: str, start: int) -> int:
    """Return the number of statements on ``database`` in the log from the position ``start`` on."""
    with log.open("rb") as lines:
        lines.seek(start)
        text = lines.read().decode(errors="replace")
    return len(re.findall(rf"^{database} LOG:  (?:statement|execute [^:]*):", text, re.MULTILINE))


def count_sessions(connection: psycopg.Connection[tuple[int]]) -> int:
    """Return the number of sessions of this database."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
    ).fetchone()
    assert row is not None
    return row[0]
