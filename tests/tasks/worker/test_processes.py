"""Work in child processes: what comes back from them, and that they can be killed."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from leasing.management import console
from leasing.runtime.clock import clock
from tasks.models import Task, TaskStatus
from tasks.runtime.marks import Marks
from tasks.worker import processes
from tests.conftest import Spawn
from tests.factories import make_task
from tests.leasing.support import expire
from tests.processes import wait_for
from tests.tasks.support import attempt, attempts, row_of
from tests.tasks.workers import ended, patient, watching_once, working

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("quick"),
]

#: Seconds in which workers and children start, on a loaded machine.
START_PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _children(
    settings: Settings, process_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the database says is soon heard, and nothing is lost while children start.
    settings.LEASING = {"RENEW_EVERY": 0.3}
    # The children are to work on the test's database.
    monkeypatch.setenv("DATABASE_URL", process_env["DATABASE_URL"])
    monkeypatch.setenv("PYTHONWARNINGS", "error")


def enqueue(do: str, **data: Any) -> Task:
    task = make_task(name="jobs.compute", data={"do": do, **data}, max_attempts=1)
    return task


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def began(folder: Path) -> int:
    """The process in which a handler works, or 0."""
    file = folder / "began"
    return int(file.read_text() or 0) if file.exists() else 0


def test_a_process_answers_or_fails_and_serves_the_next_task(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All in one worker: starting a child is what takes its time."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.unlogged_settings")
    errors = {
        "raise": "ValueError: no luck",
        "raise what cannot be sent": "Unsendable: <function",
        "return no JSON": "InvalidOutput: The output is not JSON",
        "leave a transaction open": "RuntimeError: The handler left a transaction open",
    }
    first, last = enqueue("return", x=1), enqueue("return", x=2)
    failing = {do: enqueue(do) for do in errors}
    later = {"give back": ("returned", "not today"), "snooze": ("snoozed", "not yet")}
    delayed = {do: enqueue(do) for do in later}
    keys = [task.pk for task in delayed.values()]
    dying = {"exit": "ended with exit code 3", "be killed": "was ended by SIGKILL"}
    died = {do: enqueue(do) for do in dying}

    with console.shown(1), working() as worker:
        wait_for(
            lambda: (
                not Task.objects.exclude(pk__in=keys).filter(processed_at=None).exists()
                and all(map(attempts, delayed.values()))
                and not worker.attempts
            ),
            timeout=START_PATIENCE,
        )

    one, other = row_of(first)["task_output"], row_of(last)["task_output"]
    assert one == {"pid": one["pid"], "token": row_of(first)["fencing_token"], "x": 1}
    assert one["pid"] != os.getpid()
    assert other["pid"] == one["pid"]
    assert is_gone(one["pid"])
    for do, error in errors.items():
        assert row_of(failing[do])["last_error"].startswith(error)
    assert "in compute" in attempt(failing["raise"]).traceback
    (record,) = (each for each in caplog.records if "no luck" in each.getMessage())
    assert "in compute" in logging.Formatter().format(record)
    for do, how in dying.items():
        said = f"ProcessDied: The process of the handler {how}."
        assert row_of(died[do])["last_error"] == said
    for do, task in delayed.items():
        assert (row_of(task)["status"], row_of(task)["attempts"]) == (TaskStatus.READY, 0)
        assert (attempt(task).outcome, attempt(task).error) == later[do]
    line = r"^20\d\d-\d\d-\d\d [\d:,]+ INFO    tasks.jobs: computed$"
    assert len(re.findall(line, capfd.readouterr().err, re.MULTILINE)) == 2


def test_a_process_that_is_killed_before_it_is_up_is_replaced(
    use_marks: Callable[[Marks | None], None],
) -> None:
    """Its handler has not begun: nothing is failed for that."""
    known = Marks(100, 2)
    use_marks(known)
    task = enqueue("return", x=1)

    with working():
        (starting,) = wait_for(known.noted_groups)
        os.kill(starting, signal.SIGKILL)
        wait_for(lambda: row_of(task)["processed_at"], timeout=START_PATIENCE)
    use_marks(None)

    assert attempts(task) == []
    assert row_of(task)["task_output"]["pid"] != starting


def test_a_task_whose_processes_are_all_killed_before_they_are_up_is_postponed(
    use_marks: Callable[[Marks | None], None],
) -> None:
    known = Marks(100, 2)
    use_marks(known)
    task, killed = enqueue("return", x=1), set[int]()

    with working():
        for _ in range(processes.STARTS):
            (starting,) = wait_for(lambda: set(known.noted_groups()) - killed)
            os.kill(starting, signal.SIGKILL)
            killed.add(starting)
        wait_for(lambda: row_of(task)["status"] == TaskStatus.READY and attempts(task))
    use_marks(None)

    assert row_of(task)["attempts"] == 0
    assert attempt(task).error == "Its process was killed 3 times."


def test_a_process_that_is_killed_before_it_calls_the_handler_is_replaced(
    use_marks: Callable[[Marks | None], None],
) -> None:
    known = Marks(100, 2)
    use_marks(known)
    first = enqueue("return", x=1)

    with working():
        wait_for(lambda: row_of(first)["processed_at"], timeout=START_PATIENCE)
        (idle,) = known.noted_groups()
        os.kill(idle, signal.SIGSTOP)  # it does not read what it is sent
        task = enqueue("return", x=2)
        wait_for(lambda: row_of(task)["grant_id"] in known.begun())
        os.kill(idle, signal.SIGKILL)
        wait_for(lambda: row_of(task)["processed_at"], timeout=START_PATIENCE)
    use_marks(None)

    assert attempts(task) == []
    assert row_of(task)["task_output"]["pid"] != idle


@pytest.mark.slow
def test_a_process_is_killed_when_its_task_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed out, lost, cancelled and not listening, frozen, given back: one after the other."""
    folders = [tmp_path / name for name in ("timeout", "lost", "cancelled", "frozen", "stopped")]
    for folder in folders:
        folder.mkdir()
    tasks = [enqueue("ignore", folder=str(folder)) for folder in folders]
    Task.objects.filter(pk=tasks[0].pk).update(timeout=timedelta(seconds=0.1))
    # What is killed is to have said in which process it was.
    said = watching_once(lambda: began(folders[0]))

    with said, working(stop_timeout=0, timing=patient(cancel_grace=0.1)) as worker:
        wait_for(lambda: row_of(tasks[0])["status"] == TaskStatus.FAILED, timeout=START_PATIENCE)
        wait_for(lambda: began(folders[1]), timeout=START_PATIENCE)
        expire(tasks[1])
        wait_for(lambda: row_of(tasks[1])["status"] == TaskStatus.FAILED)
        wait_for(lambda: began(folders[2]), timeout=START_PATIENCE)
        Task.objects.filter(pk=tasks[2].pk).cancel(by="ann")
        wait_for(lambda: row_of(tasks[2])["status"] == TaskStatus.CANCELLED)
        frozen = wait_for(lambda: began(folders[3]), timeout=START_PATIENCE)
        os.kill(frozen, signal.SIGSTOP)
        ttls = itertools.count(step=31)  # they pass quickly, until it is gone
        monkeypatch.setattr(
            processes, "clock", lambda: clock() + (0 if is_gone(frozen) else next(ttls))
        )
        wait_for(lambda: row_of(tasks[3])["status"] == TaskStatus.FAILED)
        wait_for(lambda: began(folders[4]), timeout=START_PATIENCE)
        worker.stop()
        wait_for(ended(worker))

    pids = {began(folder) for folder in folders}
    assert len(pids) == 5
    assert [pid for pid in pids if not is_gone(pid)] == []
    assert row_of(tasks[0])["last_error"].startswith("TimeoutError: ")
    stopped = "The process of the handler was stopped by a signal for 30 s, and killed."
    assert row_of(tasks[3])["last_error"] == f"ProcessDied: {stopped}"
    assert [attempts(task) for task in tasks] == [
        [(1, "failed")],
        [(1, "lost")],
        [(1, "cancelled")],
        [(1, "failed")],
        [(1, "returned")],
    ]
    assert row_of(tasks[4])["attempts"] == 0


def test_a_handler_in_a_process_hears_of_what_happens_to_its_task(tmp_path: Path) -> None:
    asked, stopped = tmp_path / "asked", tmp_path / "stopped"
    for folder in (asked, stopped):
        folder.mkdir()
    task = enqueue("ensure", folder=str(asked))

    with working() as worker:
        wait_for(lambda: began(asked), timeout=START_PATIENCE)
        wait_for((asked / "renewed").exists)
        Task.objects.filter(pk=task.pk).cancel(by="ann")
        wait_for(lambda: row_of(task)["status"] == TaskStatus.CANCELLED)
        polite = enqueue("until stopping", folder=str(stopped))
        wait_for(lambda: began(stopped))
        worker.stop()
        wait_for(ended(worker))

    assert began(asked) == began(stopped)  # it was not killed
    assert row_of(polite)["status"] == TaskStatus.READY
    assert attempt(polite).error == "the worker stops"


def test_a_child_ends_with_its_worker_however_that_ends(spawn: Spawn, tmp_path: Path) -> None:
    enqueue("ignore", folder=str(tmp_path))
    worker = spawn(["manage.py", "run_worker", "--workers", "0"])
    child = wait_for(lambda: began(tmp_path), process=worker, timeout=START_PATIENCE)

    worker.kill()

    wait_for(lambda: is_gone(child))


def test_a_coroutine_that_blocks_a_thread_does_not_keep_its_worker_from_the_end(
    spawn: Spawn, tmp_path: Path
) -> None:
    task = make_task(name="jobs.block", data={"folder": str(tmp_path)})
    worker = spawn(["manage.py", "run_worker", "--stop-timeout", "0"])
    wait_for(lambda: began(tmp_path), process=worker, timeout=START_PATIENCE)

    worker.terminate()

    assert worker.wait(30) == 0  # half as long as the thread is blocked
    assert attempts(task) == [(1, "returned")]
