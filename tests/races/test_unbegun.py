"""Tasks with one attempt, beside one that kills its worker: none fails without having begun.

``TASKS=900 ROUNDS=10 pytest tests/races/test_unbegun.py --db postgresql -s`` is the whole of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.models import Task, TaskStatus
from tests.conftest import Spawn
from tests.processes import wait_for
from tests.races.support import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = int(os.environ.get("TASKS", "300"))
ROUNDS = int(os.environ.get("ROUNDS", "1"))
WORKER = ["manage.py", "run_worker", "--skip-checks", "--ttl", "3"]


def test_a_task_that_kills_its_worker_fails_none_that_has_not_begun(
    spawn: Spawn, tmp_path: Path
) -> None:
    worker = spawn(WORKER)
    unbegun: list[int] = []
    for number in range(ROUNDS):
        file = tmp_path / f"began-{number}"
        file.write_bytes(bytes(TASKS))
        enqueue(file)

        def have_ended() -> bool:
            nonlocal worker
            if worker.poll() is not None:  # as a service manager does
                worker = spawn(WORKER)
            return not Task.objects.exclude(status__in=TaskStatus.ended()).exists()

        wait_for(have_ended, timeout=PATIENCE)
        failed = Task.objects.filter(status=TaskStatus.FAILED, name="jobs.mark")
        numbers = [task.task_data["n"] for task in failed]
        began = file.read_bytes()
        unbegun += [n for n in numbers if not began[n]]
        print(f"round {number + 1}: {len(numbers)} failed; without having begun: {len(unbegun)}")
        assert Task.objects.get(name="jobs.kill").status == TaskStatus.FAILED
        Task.objects.all().delete()
    assert unbegun == [], worker.output
    worker.terminate()
    assert worker.wait(PATIENCE) == 0, worker.output


def enqueue(file: Path) -> None:
    """Enqueue the task that kills in the middle of the others: by then tasks are known to be
    short."""
    tasks = [{"file": str(file), "n": n} for n in range(TASKS)]
    for some in (tasks[: TASKS // 2], None, tasks[TASKS // 2 :]):
        if some is None:
            Task.objects.enqueue("jobs.kill", {}, max_attempts=1)
        else:
            Task.objects.enqueue_many("jobs.mark", some, max_attempts=1)
