"""Workers under one parent: kill -9 of a child, draining and memory beside bare workers.

A trigger of the database notes every change of a task's status with the moment of it, so nothing
depends on when somebody looks. Handlers leave their number as the first thing they do.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from django.db import connection

from leasing.functions import database_now
from tasks.models import Queue, Task, TaskStatus, Worker
from tests.benchmarks import filling
from tests.benchmarks.bench import Bench, Figures, percentile, soon, until
from tests.benchmarks.sizes import KILL_QUEUES
from tests.benchmarks.workloads.drain import end, fill_paused, wait_until_drained

TTL = 30.0
#: Of the tasks, so many have one attempt.
SINGLE = 0.2
#: Seconds that each takes, and the least number of them that wait for a worker.
SECONDS, LOAD = 0.004, 3_000
#: Seconds between two kills.
PAUSES = 0.2, 1.2

TRIGGER = """
CREATE TABLE noted (
    id bigserial, task bigint, at timestamptz, was text, became text, holder text, attempts int
);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO noted (task, at, was, became, holder, attempts) VALUES
        (new.id, clock_timestamp(), old.status, new.status, new.holder, new.attempts);
    RETURN new;
END $$;
CREATE TRIGGER note AFTER UPDATE OF status ON "{table}" FOR EACH ROW
    WHEN (old.status IS DISTINCT FROM new.status) EXECUTE FUNCTION note();
"""


@dataclass
class Kill:
    """The death of one child, and when its tasks were seen to."""

    holder: str
    at: datetime
    #: Seconds until each task that had not begun ran elsewhere, and until others were ready.
    elsewhere: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)


def run(bench: Bench) -> Figures:
    """Seconds, tasks, and ratios."""
    return {**kills(bench), **drains(bench), **memory(bench)}


def kills(bench: Bench) -> Figures:
    """Kill children at random moments while they work."""
    with tempfile.TemporaryDirectory(prefix="leasing-bench-") as folder, connection.cursor() as sql:
        begun = Path(folder, "begun")
        sql.execute(TRIGGER.format(table=Task._meta.db_table))
        load(begun)
        fleet = bench.worker("--workers", "2", "--threads", "4", "--ttl", f"{TTL:g}")
        done: list[Kill] = []
        for _ in range(bench.size.fleet_kills):
            done.append(kill({each.holder for each in done}, begun))
        wait_until_drained()
        # Those that wait for another attempt, too.
        until(lambda: not Task.objects.scheduled().exists(), "all tasks have ended")
        end([fleet])
        note_delays(done)
        figures = verdict(begun, len(done))
        sql.execute("DROP TABLE noted CASCADE; DROP FUNCTION note CASCADE")
    filling.forget_tasks()
    slowest = {
        "what had not begun runs elsewhere": [max(k.elsewhere) for k in done if k.elsewhere],
        "what had begun is ready, before its back-off,": [max(k.ready) for k in done if k.ready],
    }
    for what, delays in slowest.items():
        figures[f"kill -9 of a child: {what} after, p50 (s)"] = {"ours": percentile(delays, 50)}
        figures[f"kill -9 of a child: {what} after, p99 (s)"] = {"ours": percentile(delays, 99)}
    count = sum(len(each.elsewhere) for each in done)
    figures["kill -9 of a child: tasks that had not begun"] = {"ours": float(count)}
    return figures


def load(begun: Path) -> None:
    """Have enough tasks for a while."""
    number = time.monotonic_ns()
    data = {"file": str(begun), "n": number, "seconds": SECONDS}
    first = Task.objects.enqueue("bench.note", data)
    single = f"CASE WHEN random() < {SINGLE} THEN 1 ELSE max_attempts END"
    filling.copy(
        first,
        2 * LOAD,
        task_data=f"jsonb_set(task_data, '{{n}}', to_jsonb(n + {number}))",
        max_attempts=single,
    )


def kill(dead: Collection[str], begun: Path) -> Kill:
    """Kill one child, at a random moment while the other lives: alone, it would leave nobody to run
    what it had. The names of the ``dead`` may still be there as workers."""
    if Task.objects.ready().count() < LOAD:
        load(begun)
    living = Worker.objects.filter(stopped_at=None).exclude(name__in=dead)
    soon(lambda: living.count() == 2, "both are up")
    time.sleep(random.uniform(*PAUSES))
    victim = random.choice(living.all())
    killed = Kill(victim.name, database_now("default"))
    os.kill(victim.pid, 9)
    return killed


def note_delays(kills: list[Kill]) -> None:
    """Read what became of the tasks that the dead had."""
    by_holder = {each.holder: each for each in kills}
    with connection.cursor() as sql:
        sql.execute("SELECT task, at, was, became, holder, attempts FROM noted ORDER BY id")
        rows = sql.fetchall()
    by_task = defaultdict(list)
    for task, *change in rows:
        by_task[task].append(change)
    for changes in by_task.values():
        for before, change, after in zip(
            changes[:-1], changes[1:], [*changes[2:], None], strict=True
        ):
            at, was, became, holder, attempts = change
            killed = by_holder.get(holder)
            if killed is None or at <= killed.at or (was, became) == ("running", "succeeded"):
                continue
            if was == "running" and attempts < before[4]:
                assert after is not None, "it was given back, and never claimed"
                killed.elsewhere.append((after[0] - killed.at).total_seconds())
            elif was == "running":
                killed.ready.append((at - killed.at).total_seconds())


def verdict(begun: Path, kills: int) -> Figures:
    """Count what must not be."""
    known = Counter(map(int, begun.read_text().split()))
    failed = Task.objects.failed().values_list("task_data__n", flat=True)
    unbegun = sum(not known[n] for n in failed)
    ended = [TaskStatus.SUCCEEDED, TaskStatus.FAILED]
    lost = Task.objects.exclude(status__in=ended).count()
    with connection.cursor() as sql:
        sql.execute(
            "SELECT count(*) FROM (SELECT task FROM noted WHERE became = 'succeeded'"
            " GROUP BY task HAVING count(*) > 1) AS twice"
        )
        (twice,) = sql.fetchone()
    of = f"{kills} kills of children under load"
    return {
        f"{of}: tasks": {"ours": float(Task.objects.count())},
        f"{of}: failed after they had begun (tasks)": {"ours": float(len(failed) - unbegun)},
        "kills of children: lost (tasks)": {"ours": float(lost)},
        "kills of children: accepted twice (tasks)": {"ours": float(twice)},
        "kills of children: dead without having begun (tasks)": {"ours": float(unbegun)},
    }


def drains(bench: Bench) -> Figures:
    """Tasks a second of two workers under one parent, and of two bare ones, in turns.

    All four are up from before the first turn to the end, each pair with a queue of its own: no
    start or stop is measured. Which pair goes first alternates, and the ratio is that of two drains
    that follow each other.
    """
    bare, fleet = KILL_QUEUES[:2]
    commands: dict[str, list[list[str]]] = {
        bare: [["--workers", "0"]] * 2,
        fleet: [["--workers", "2"]],
    }
    Worker.objects.all().delete()
    for queue in commands:
        Queue.objects.pause(queue)
    started = [bench.worker(*args, queue=queue) for queue in commands for args in commands[queue]]
    until(lambda: Worker.objects.count() == 4, "workers are up", timeout=90)
    rates: dict[str, list[float]] = {bare: [], fleet: []}
    for turn in range(1 + bench.size.fleet_drains):
        for queue in (bare, fleet) if turn % 2 else (fleet, bare):
            rates[queue].append(drain(queue, bench.size.drained))
    end(started)
    del rates[bare][0], rates[fleet][0]  # all that is done for the first time
    ratios = [ours / theirs for ours, theirs in zip(rates[fleet], rates[bare], strict=True)]
    return {
        "drain, --workers 2 (tasks/s)": {"ours": statistics.median(rates[fleet])},
        "drain, --workers 2 to two bare workers (ratio)": {"ours": statistics.median(ratios)},
    }


def drain(queue: str, count: int) -> float:
    """Drain ``count`` tasks of ``queue`` by the workers that wait for it. Returns tasks a
    second."""
    filling.tasks(count, queue=queue)
    Queue.objects.resume(queue)
    wait_until_drained()
    Queue.objects.pause(queue)
    with connection.cursor() as sql:
        sql.execute(
            f"SELECT extract(epoch FROM max(processed_at) - min(acquired_at))"
            f' FROM "{Task._meta.db_table}"'
        )
        (seconds,) = sql.fetchone()
    filling.forget_tasks()
    return count / float(seconds)


def memory(bench: Bench) -> Figures:
    """Megabytes of eight workers that have run tasks: what they share is counted once."""
    bare = memory_of(bench, [["--workers", "0"]] * 8)
    fleet = memory_of(bench, [["--workers", "8"]])
    return {
        "memory of eight bare workers, PSS (MB)": {"ours": bare},
        "memory of --workers 8, PSS (MB)": {"ours": fleet},
        "memory of --workers 8 to eight bare workers, PSS (ratio)": {"ours": fleet / bare},
    }


def memory_of(bench: Bench, commands: list[list[str]]) -> float:
    """Megabytes of these workers, and of their parent."""
    Worker.objects.all().delete()
    fill_paused(bench.size.drained // 5)
    started = [bench.worker(*args) for args in commands]
    until(lambda: Worker.objects.count() == 8, "workers are up", timeout=120)
    Queue.objects.resume("default")
    wait_until_drained()
    parents = {process.pid for process in started}
    found = sum(map(pss, parents | {row.pid for row in Worker.objects.all()}))
    end(started)
    filling.forget_tasks()
    return found


def pss(pid: int) -> float:
    """Megabytes of a process, as Linux says: of what n processes share, the n-th part."""
    said = Path("/proc", str(pid), "smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", said, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
