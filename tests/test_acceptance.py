"""The promise of the whole, with real workers: three jobs, and nothing is lost or done twice.

A is quick. B's renewals stall for longer than its lease, though its worker lives. C's worker
dies.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.models import Task, TaskStatus
from tests.conftest import Spawn
from tests.jobs import trace
from tests.processes import Process, wait_for
from tests.races.support import begins, let_go, start_workers, waiting
from tests.tasks.support import attempts, refusals, row_of

pytestmark = pytest.mark.django_db(transaction=True)


def holder(task: Task) -> str:
    return str(row_of(task)["holder"])


def succeed(task: Task, folder: Path, attempt: int, process: Process) -> None:
    """Make the attempt end, and wait until it has succeeded."""
    let_go(folder, attempt)
    wait_for(lambda: row_of(task)["status"] == TaskStatus.SUCCEEDED, process=process)
    assert row_of(task)["task_output"] == {"attempt": attempt, "pid": process.pid}


@pytest.mark.slow
def test_a_quick_job_a_stalled_one_and_one_whose_worker_dies(spawn: Spawn, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    events = tmp_path / "trace"
    a, b, c = (waiting(folder) for folder in folders)
    workers = start_workers(
        spawn, "ann bob cat dan", "--threads", "1", ttl=4, TASKS_TRACE=str(events)
    )

    # All three are at work, each in a process of its own.
    for folder in folders:
        begins(folder, 1)
    of_a, of_b, of_c = map(holder, (a, b, c))
    assert len({of_a, of_b, of_c}) == 3

    # A is quick.
    succeed(a, folders[0], 1, workers[of_a])

    # B's renewals stall, and it is taken by another; then its first worker comes with a result,
    # and is refused.
    (folders[1] / "stall").touch()
    begins(folders[1], 2)
    next_of_b = holder(b)
    let_go(folders[1], 1)
    wait_for(lambda: refusals(b) == ["complete"], process=workers[of_b])
    row = row_of(b)
    assert (row["status"], row["holder"], row["task_output"]) == ("running", next_of_b, None)
    succeed(b, folders[1], 2, workers[next_of_b])

    # C's worker dies, and C runs again elsewhere.
    workers[of_c].kill()
    workers[of_c].wait()
    begins(folders[2], 2)
    next_of_c = holder(c)
    succeed(c, folders[2], 2, workers[next_of_c])

    assert next_of_b != of_b
    assert next_of_c != of_c
    assert [row_of(task)["attempts"] for task in (a, b, c)] == [1, 2, 2]
    assert [attempts(task) for task in (a, b, c)] == [[], [(1, "lost")], [(1, "lost")]]
    assert [refusals(task) for task in (a, b, c)] == [[], ["complete"], [""]]
    told = wait_for(lambda: complete_trace(events))
    assert sorted(told[:3], key=lambda event: event[1]) == [
        ("claimed", a.pk, of_a),
        ("claimed", b.pk, of_b),
        ("claimed", c.pk, of_c),
    ]
    assert told[3:] == [
        ("completed", a.pk, of_a),
        ("recovered", b.pk, of_b),
        ("claimed", b.pk, next_of_b),
        ("complete refused", b.pk, of_b),
        ("completed", b.pk, next_of_b),
        ("recovered", c.pk, of_c),
        ("claimed", c.pk, next_of_c),
        ("completed", c.pk, next_of_c),
    ]


def complete_trace(events: Path) -> list[trace.Event]:
    """The trace once C's last event is in it: it is told a moment after it is written."""
    told = trace.read(events)
    completions = [event for event in told if event[0] == "completed"]
    return told if len(completions) == 3 else []
