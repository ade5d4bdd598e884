"""Measure an idle worker: statements in the server's log (its own and those that begin and end
transactions), its connections, and its time on the CPU."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from django.db import connection as django_connection

from tasks.models import Schedule, Task
from tests.benchmarks import cpu, filling
from tests.benchmarks.bench import Bench, Figures, soon, until
from tests.benchmarks.databases import Databases, log_of
from tests.benchmarks.workloads.drain import end, start_workers

#: Until a worker that has just come up has found its rhythm: it looks for the rows of predecessors,
#: and examines tasks, once soon.
SETTLED_AFTER = 60.0
#: Until the connections that tasks needed are given back.
RESTED_AFTER = 12.0
RUN_BEFORE = 20
#: Seconds between two looks at the sessions, and for which they are looked at after work.
LOOK = 0.25
LOOK_FOR = 2.0


def run(bench: Bench) -> Figures:
    """Statements a second, connections, and percent of a core."""
    databases = Databases(bench.url)
    log = log_of(bench.url)
    name = urlsplit(bench.url).path[1:]
    # Not on the database whose statements are counted.
    with psycopg.connect(databases.named("postgres"), autocommit=True) as other:
        other.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'".encode())
        django_connection.ensure_connection()  # ours, which is not to be counted
        before = count_sessions(other, name)
        started = start_workers(bench, 1)
        until(Schedule.objects.exists, "the worker has declared its schedules")
        Schedule.objects.pause()  # those of the demo, whose tasks would be something to do
        is_settled = bench.size.idle_seconds >= SETTLED_AFTER
        time.sleep(SETTLED_AFTER if is_settled else 2 * bench.size.idle_seconds)
        logged = log.stat().st_size if log else 0
        used, wall = cpu.of_session(started[0].pid), time.perf_counter()
        sessions = most_sessions(other, name, bench.size.idle_seconds) - before
        used = cpu.of_session(started[0].pid) - used
        wall = time.perf_counter() - wall
        statements = count_statements(log, name, logged) if log else None
        other.execute(f'ALTER DATABASE "{name}" RESET log_statement'.encode())
        # Afterwards: it may hold more, and the tasks of the last minute are counted for charts.
        Task.objects.enqueue_many("bench.nap", [{"seconds": 0.01}] * RUN_BEFORE)
        naps = Task.objects.succeeded().filter(name="bench.nap")
        soon(lambda: naps.count() == RUN_BEFORE, "the tasks are done")
        time.sleep(min(RESTED_AFTER, bench.size.idle_seconds))
        after = most_sessions(other, name, LOOK_FOR) - before
    end(started)
    Schedule.objects.resume()
    filling.forget_tasks()
    figures: Figures = {
        "idle worker (% of a core)": {"ours": 100 * used / wall},
        "idle worker (connections)": {"ours": float(max(sessions, after))},
    }
    # In its first minute a worker sends twice as many.
    if statements is not None and is_settled:
        figures["idle worker (queries/s)"] = {"ours": statements / wall}
    return figures


def count_statements(log: Path, database: str, start: int) -> int:
    """Return the number of statements on ``database`` in the log from the position ``start`` on."""
    with log.open("rb") as lines:
        lines.seek(start)
        text = lines.read().decode(errors="replace")
    return len(re.findall(rf"^{database} LOG:  (?:statement|execute [^:]*):", text, re.MULTILINE))


def most_sessions(connection: psycopg.Connection[tuple[int]], database: str, seconds: float) -> int:
    """Return the highest number of sessions on ``database`` in the time to come."""
    until, most = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        most = max(most, count_sessions(connection, database))
        time.sleep(LOOK)
    return most


def count_sessions(connection: psycopg.Connection[tuple[int]], database: str) -> int:
    """Return the number of sessions on ``database``."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = %s AND backend_type = 'client backend'",
        [database],
    ).fetchone()
    assert row is not None
    return row[0]
