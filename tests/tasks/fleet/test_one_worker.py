"""``run_worker`` without ``--workers``: one worker under a parent, which is seen as one process."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from tasks.models import Task, TaskStatus, Worker
from tests.brokers import free_ports
from tests.conftest import Spawn
from tests.processes import Process, wait_for
from tests.races.support import begins, let_go, waiting
from tests.tasks.support import attempts, row_of

pytestmark = pytest.mark.django_db(transaction=True)

COMMAND = ["manage.py", "run_worker", "--skip-checks", "--ttl", "30"]
PATIENCE = 60.0
#: Runs the command as manage.py does, after what a test puts before it.
RUN = "; from django.core.management import execute_from_command_line as run; run({!r})"
TRACED = "import sys; sys.settrace(lambda *_: None)"
MONITORED = "from sys import monitoring as by; by.use_tool_id(by.DEBUGGER_ID, 'a debugger')"
CALL = "from django.core.management import call_command as call; call({!r}, once=True)"


def the_worker(process: Process) -> Worker:
    """Return the worker that is up."""
    wait_for(Worker.objects.present().exists, timeout=PATIENCE, process=process)
    return Worker.objects.present().get()


@pytest.mark.parametrize(
    ("args", "has_parent"),
    [
        ([*COMMAND, "--once"], True),
        ([*COMMAND, "--once", "--workers", "0"], False),
        (["-c", CALL.format("run_worker")], False),
        (["-c", TRACED + RUN.format([*COMMAND, "--once"])], False),
        pytest.param(
            ["-c", MONITORED + RUN.format([*COMMAND, "--once"])],
            False,
            marks=pytest.mark.skipif(
                sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12"
            ),
        ),
    ],
    ids=["of the process", "without a parent", "called from Python", "traced", "in a debugger"],
)
def test_a_worker_has_a_parent_where_its_process_is_its_own(
    spawn: Spawn, args: list[str], has_parent: bool
) -> None:
    Task.objects.enqueue("jobs.echo", {})
    process = spawn(args)

    assert process.wait(PATIENCE) == 0, process.output
    worker = Worker.objects.get()
    assert (worker.fleet_index, worker.pid == process.pid) == (
        (1, False) if has_parent else (None, True)
    )
    assert Task.objects.get().status == TaskStatus.SUCCEEDED


def test_a_worker_that_is_killed_is_replaced_and_what_it_had_not_begun_is_ready(
    spawn: Spawn, tmp_path: Path
) -> None:
    """With the port that was named, as before."""
    (port,) = free_ports(1)
    process = spawn([*COMMAND, "--name", "web", "--metrics-port", str(port)])
    task = waiting(tmp_path, max_attempts=2)
    begins(tmp_path, 1)
    first = the_worker(process)
    assert (first.fleet, is_served(port)) == ("web", True)

    os.kill(first.pid, signal.SIGKILL)
    begins(tmp_path, 2)  # long before the end of the lease

    assert attempts(task) == [(1, "lost")]
    wait_for(lambda: is_served(port), timeout=PATIENCE, process=process)
    let_go(tmp_path, 2)
    wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED, timeout=PATIENCE)
    process.terminate()
    assert process.wait(PATIENCE) == 0, process.output
    assert f"{first.name} (pid {first.pid}) exited unexpectedly" in process.output


def is_served(port: int) -> bool:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        return b"tasks_claims_total" in page.read()
    return False


@pytest.mark.parametrize(
    ("options", "count"), [(["--max-tasks", "1"], 1), (["--once"], 3), (["--drain"], 3)]
)
def test_it_ends_by_itself_as_a_single_process_does(
    spawn: Spawn, options: list[str], count: int
) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * 3)
    process = spawn([*COMMAND, *options])

    assert process.wait(PATIENCE) == 0, process.output
    assert Task.objects.succeeded().count() == count
    assert not Worker.objects.present().exists()
    # Its lines are those of the worker.
    assert process.output.count("stopping") == 1, process.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_lets_what_runs_end_and_a_second_one_does_not(
    spawn: Spawn, tmp_path: Path, number: signal.Signals
) -> None:
    process = spawn([*COMMAND, "--stop-timeout", "60"])
    (tmp_path / "polite").touch()
    polite = waiting(tmp_path)
    begins(tmp_path, 1)
    os.killpg(process.pid, number)  # a terminal, and systemd, send it to all
    assert process.wait(PATIENCE) == 0, process.output
    assert row_of(polite)["status"] == TaskStatus.SUCCEEDED

    (tmp_path / "began-1").unlink()
    (tmp_path / "polite").unlink()
    process = spawn([*COMMAND, "--stop-timeout", "60"])
    task = waiting(tmp_path)
    begins(tmp_path, 1)
    os.killpg(process.pid, number)
    wait_for(lambda: "tasks still running" in process.output, timeout=PATIENCE, process=process)
    os.killpg(process.pid, number)

    assert process.wait(PATIENCE) == 0, process.output
    row = row_of(task)
    assert (row["status"], row["attempts"]) == (TaskStatus.READY, 0)
    assert "Traceback" not in process.output
