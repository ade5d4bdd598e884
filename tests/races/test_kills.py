"""Workers that are killed at every stage: no task is lost, none accepted twice. KILLS and SEED may
be set, for a longer run."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tasks.models import Task
from tests.conftest import Spawn
from tests.processes import wait_for
from tests.races.support import PATIENCE, STAGES, begins, let_go, start_workers, waiting

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

KILLS = int(os.environ.get("KILLS", "15"))
SEED = int(os.environ.get("SEED", random.randrange(10**6)))


def test_workers_that_are_killed_at_every_stage_lose_no_task_and_complete_none_twice(
    spawn: Spawn, tmp_path: Path
) -> None:
    tasks = Task.objects.enqueue_many(
        "jobs.echo", [{"n": n} for n in range(KILLS * 6)], max_attempts=1000
    )
    notes = tmp_path / "notes"

    process = spawn(["-m", "tests.races.mortal", str(KILLS), str(SEED), str(notes)])
    assert process.wait(PATIENCE + 3 * KILLS) == 0, f"seed {SEED}\n{process.output[-4000:]}"

    lines = Counter(notes.read_text().splitlines())
    stages = {line: count for line, count in lines.items() if line.startswith("killed")}
    print(f"seed {SEED}: {stages}")
    assert sum(stages.values()) == KILLS
    assert len(stages) == min(KILLS, len(STAGES))
    assert Task.objects.succeeded().count() == len(tasks)
    assert all(task.task_output == task.task_data for task in Task.objects.all())
    accepted = [lines[f"completed {task.pk}"] for task in tasks]
    assert set(accepted) <= {0, 1}, "one was accepted twice"
    # Of each process the kill may have come between a commit and the note of it.
    assert sum(accepted) >= len(tasks) - 3 * KILLS
    assert Task.objects.filter(attempts__gt=1).exists(), "nobody lost anything"


def test_a_deploy_spends_no_attempt(spawn: Spawn, tmp_path: Path) -> None:
    """The old version drains while the new one, which knows more, begins."""
    running = waiting(tmp_path)
    ((name, old),) = start_workers(spawn, "old", "--threads", "2", JOBS_VERSION="1").items()
    begins(tmp_path, 1)
    news = Task.objects.enqueue_many("jobs.new", [{"n": n} for n in range(5)])
    wait_for(lambda: Task.objects.filter(last_error="", attempts=0, grants__gt=0).exists())

    old.terminate()
    start_workers(spawn, "new", "--threads", "2")
    new = Task.objects.filter(name="jobs.new")

    def all_ran() -> bool:
        # Once is not enough: the old one may hold some yet, and postpones them as it gives back.
        new.reschedule(scheduled_at=running.created_at)
        return new.succeeded().count() == len(news)

    wait_for(all_ran)
    let_go(tmp_path, 1)
    assert old.wait(PATIENCE) == 0

    assert Task.objects.succeeded().count() == 1 + len(news)
    assert set(Task.objects.values_list("attempts", flat=True)) == {1}
    assert Task.objects.get(pk=running.pk).holder == name
