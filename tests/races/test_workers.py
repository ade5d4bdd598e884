"""Real workers that are stopped, killed and paused."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasing.functions import database_now
from tasks.models import Task, TaskStatus, Worker
from tests.conftest import Spawn
from tests.factories import make_tasks
from tests.jobs import trace
from tests.processes import Process, wait_for
from tests.races.support import PATIENCE, begins, let_go, pause, start_workers, waiting
from tests.tasks.support import attempt, attempts, refusals, row_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

#: Seconds.
TTL = 3


def state(task: Task) -> str:
    return str(row_of(task)["status"])


def test_two_workers_share_the_work_and_leave_in_good_order(spawn: Spawn) -> None:
    workers = start_workers(spawn, "ann bob", "--threads", "2")
    tasks = Task.objects.enqueue_many("jobs.echo", [{"n": n} for n in range(80)])

    wait_for(lambda: Task.objects.succeeded().count() == len(tasks), timeout=PATIENCE)
    for worker, number in zip(workers.values(), (signal.SIGTERM, signal.SIGINT), strict=True):
        worker.send_signal(number)

    assert [worker.wait(PATIENCE) for worker in workers.values()] == [0, 0]
    assert set(Task.objects.values_list("holder", flat=True)) <= workers.keys()
    assert Task.objects.filter(attempts=1, grants=1).count() == len(tasks)
    assert all(Task.objects.get(pk=task.pk).task_output == task.task_data for task in tasks)
    assert not Worker.objects.filter(stopped_at=None).exists()
    assert not [worker.output for worker in workers.values() if "Traceback" in worker.output]


def test_a_killed_workers_task_is_ready_for_another_within_its_ttl_and_two_seconds(
    spawn: Spawn, tmp_path: Path
) -> None:
    task = waiting(tmp_path)
    workers = start_workers(spawn, "ann bob", ttl=TTL)
    begins(tmp_path, 1)
    doomed, heir = holder_first(task, workers)

    workers[doomed].kill()
    workers[doomed].wait()
    killed_at = database_now("default")
    begins(tmp_path, 2)

    row = row_of(task)
    assert (row["status"], row["holder"], row["attempts"]) == (TaskStatus.RUNNING, heir, 2)
    assert row["scheduled_at"] - killed_at < timedelta(seconds=TTL + 2)
    assert row["acquired_at"] - row["scheduled_at"] < timedelta(seconds=2)
    let_go(tmp_path, 2)
    wait_for(lambda: state(task) == TaskStatus.SUCCEEDED, process=workers[heir])
    assert row_of(task)["task_output"] == {"attempt": 2, "pid": workers[heir].pid}
    assert attempts(task) == [(1, "lost")]
    assert attempt(task).holder == doomed
    assert refusals(task) == [""]


def holder_first(task: Task, workers: dict[str, Process]) -> list[str]:
    """The workers' names, first that of the one who has the task."""
    holder = row_of(task)["holder"]
    return sorted(workers, key=lambda name: name != holder)


def test_a_paused_worker_that_wakes_after_its_task_was_taken_changes_nothing(
    spawn: Spawn, tmp_path: Path
) -> None:
    events = tmp_path / "trace"
    task = waiting(tmp_path)
    workers = start_workers(spawn, "ann bob", ttl=TTL, TASKS_TRACE=str(events))
    begins(tmp_path, 1)
    sleeper, heir = holder_first(task, workers)
    pause(workers[sleeper])
    begins(tmp_path, 2)
    let_go(tmp_path, 1)

    workers[sleeper].resume()
    wait_for(lambda: refusals(task) == ["complete"])

    row = row_of(task)
    assert (row["status"], row["holder"], row["attempts"]) == (TaskStatus.RUNNING, heir, 2)
    assert (row["task_output"], row["processed_at"], row["released_at"]) == (None, None, None)
    before = steady(row)
    let_go(tmp_path, 2)
    wait_for(lambda: state(task) == TaskStatus.SUCCEEDED)
    assert row_of(task)["task_output"] == {"attempt": 2, "pid": workers[heir].pid}
    ended = {"status", "task_output", "processed_at", "released_at"}
    after = steady(row_of(task))
    assert {column for column in before if before[column] != after[column]} == ended
    assert attempts(task) == [(1, "lost")]
    assert wait_for(lambda: len(trace.read(events)) == 5)
    assert trace.read(events) == [
        ("claimed", task.pk, sleeper),
        ("recovered", task.pk, sleeper),
        ("claimed", task.pk, heir),
        ("complete refused", task.pk, sleeper),
        ("completed", task.pk, heir),
    ]
    assert workers[sleeper].poll() is None


def steady(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` without what each heartbeat writes."""
    beating = {"expires_at", "renewed_at", "renewals"}
    return {column: value for column, value in row.items() if column not in beating}


def test_a_worker_stopped_by_a_deadline_gives_its_task_back_for_nothing(
    spawn: Spawn, tmp_path: Path
) -> None:
    task = waiting(tmp_path, max_attempts=1)
    worker = start_workers(spawn, "ann", "--stop-timeout", "0.2").popitem()[1]
    begins(tmp_path, 1)

    worker.terminate()

    assert worker.wait(PATIENCE) == 0
    assert (state(task), row_of(task)["attempts"]) == (TaskStatus.READY, 0)
    assert attempts(task) == [(1, "returned")]
    assert Worker.objects.with_state().get().state == "stopped"  # type: ignore[attr-defined]


def test_a_second_signal_does_not_wait_and_a_polite_task_needs_none(
    spawn: Spawn, tmp_path: Path
) -> None:
    stubborn, polite = tmp_path / "stubborn", tmp_path / "polite"
    for folder in (stubborn, polite):
        folder.mkdir()
    (polite / "polite").touch()
    tasks = [waiting(stubborn), waiting(polite)]
    worker = start_workers(spawn, "ann", "--stop-timeout", "1000").popitem()[1]
    begins(stubborn, 1)
    begins(polite, 1)

    worker.terminate()
    wait_for(lambda: state(tasks[1]) == TaskStatus.SUCCEEDED, process=worker)
    assert state(tasks[0]) == TaskStatus.RUNNING
    worker.send_signal(signal.SIGINT)

    assert worker.wait(PATIENCE) == 0
    assert (state(tasks[0]), row_of(tasks[0])["attempts"]) == (TaskStatus.READY, 0)


def test_recovery_can_be_a_process_of_its_own(spawn: Spawn) -> None:
    tasks = make_tasks(3, state="stuck")
    process = spawn(["manage.py", "run_recovery", "--skip-checks"])

    wait_for(lambda: not Task.objects.stuck().exists(), timeout=PATIENCE, process=process)
    process.terminate()

    assert process.wait(PATIENCE) == 0
    assert all(attempts(task) == [(1, "lost")] for task in tasks)
