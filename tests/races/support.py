"""Helpers of the races with real processes."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from django.db import connection

from tasks.models import Task, Worker
from tests.conftest import Spawn
from tests.processes import Process, wait_for

#: Where a worker may die.
STAGES = ["claimed", "running", "before completing", "while completing", "completed"]
#: How many processes race.
SIZE = 8
#: Seconds that a loaded machine may take to start processes; nothing waits so long otherwise.
PATIENCE = 60.0


def race(spawn: Spawn, verb: str, *things: object) -> dict[str, list[Any]]:
    """Make the crowd do ``verb`` to each of ``things``: returns the answers of the processes, in no
    order."""
    crowd = spawn(["-m", "tests.races.crowd", verb, *map(str, things)])
    assert crowd.wait(PATIENCE) == 0, crowd.output
    answers: dict[str, list[Any]] = defaultdict(list)
    for line in crowd.output.splitlines():
        if line.startswith("["):
            _, thing, answer = json.loads(line)
            answers[thing].append(answer)
    assert {thing: len(got) for thing, got in answers.items()} == {
        str(thing): SIZE for thing in things
    }
    return answers


# Workers


def start_workers(
    spawn: Spawn, names: str, *options: str, ttl: float = 30, **env: str
) -> dict[str, Process]:
    """Real workers labelled as ``names``, by the names that they have, which are there when this
    returns: of one process each, to be killed and suspended."""
    command = ["manage.py", "run_worker", "--skip-checks", "--workers", "0"]
    command += ["--ttl", str(ttl), *options]
    started = {label: spawn([*command, "--name", label], **env) for label in names.split()}
    workers: dict[str, Process] = {}
    for label, worker in started.items():
        wait_for(Worker.objects.labelled(label).exists, timeout=PATIENCE, process=worker)
        workers[Worker.objects.called(label).get().name] = worker
    return workers


def begins(folder: Path, attempt: int) -> None:
    """Wait until the ``attempt``-th attempt of the task ``jobs.wait`` in ``folder`` works."""
    began = folder / f"began-{attempt}"
    wait_for(began.exists, timeout=PATIENCE, message=began.name)


def let_go(folder: Path, attempt: int) -> None:
    """Make the ``attempt``-th attempt of the task ``jobs.wait`` in ``folder`` end."""
    (folder / f"go-{attempt}").touch()


def waiting(folder: Path, **options: Any) -> Task:
    """A task that works until it is let go."""
    return Task.objects.enqueue("jobs.wait", {"folder": str(folder)}, **options)


def pause(process: Process) -> None:
    """SIGSTOP, where the process has no transaction open: its locks would stop everybody."""

    def paused() -> bool:
        process.pause()
        if nobody_writes():
            return True
        process.resume()
        return False

    wait_for(paused, process=process)


def nobody_writes() -> bool:
    """Return True if no other session has a transaction open."""
    if connection.vendor == "sqlite":
        return _can_lock(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
        return bool(cursor.fetchone()[0] == 0)


def _can_lock(file: str) -> bool:
    """Return True if nobody has a lock on ``file``: who reads lets others begin to write, and lets
    none commit."""
    other = sqlite3.connect(file, timeout=0.1, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()
    return True
