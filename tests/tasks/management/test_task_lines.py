"""The lines of tasks on a worker's own console."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from leasing.runtime.events import happened
from tasks.management.task_lines import MANY, TaskLines
from tasks.models import Task
from tests.conftest import Spawn

PATIENCE = 60.0


class Console:
    """The lines of a worker, whose clock the test moves."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1000.0
        self.lines = TaskLines(lambda: self.now)
        self._caplog = caplog
        self._made = 0

    def claim(self, count: int, name: str = "mails.send") -> list[Any]:
        """Claim so many tasks."""
        rows: list[Any] = []
        for _ in range(count):
            self._made += 1
            fields = dict.fromkeys(("attempts", "max_attempts"), 1)
            rows.append(SimpleNamespace(id=self._made, name=name, raised=None, **fields))
        happened("task.claimed", rows)
        return rows

    def end(self, rows: list[Any], event: str = "task.completed") -> list[Any]:
        """End the tasks."""
        happened(event, rows, **({"error": "no luck"} if "failed" in event else {}))
        return rows

    def pass_second(self) -> None:
        """Let a second pass."""
        self.now += 1
        self.lines.ensure_running()

    def read(self) -> list[str]:
        """Return the events since the last call; of counts, the line."""
        found = [
            record.getMessage()
            if record.__dict__["event"] == "worker.tasks_ended"
            else record.__dict__["event"]
            for record in self._caplog.records
        ]
        self._caplog.clear()
        return found


@pytest.fixture
def console(caplog: pytest.LogCaptureFixture) -> Iterator[Console]:
    caplog.set_level("INFO", "tasks")
    made = Console(caplog)
    with made.lines.choosing():
        yield made


def test_a_task_that_ends_within_a_second_has_one_line(console: Console) -> None:
    console.end(console.claim(3))
    console.end(console.claim(1), "task.returned")
    console.pass_second()

    assert console.read() == ["task.completed"] * 3 + ["task.returned"]


def test_a_task_that_runs_on_has_a_line_of_its_claim(console: Console) -> None:
    running = console.claim(1)
    console.pass_second()
    console.pass_second()
    assert console.read() == ["task.claimed"]

    console.end(running)
    assert console.read() == ["task.completed"]


def test_many_have_one_line_a_second_with_counts_by_handler_and_outcome(
    console: Console,
) -> None:
    console.end(console.claim(MANY + 50))
    console.pass_second()
    assert console.read() == [
        *["task.completed"] * MANY,
        "Counted 50 tasks that ended in 1.0 s: mails.send 50 completed",
    ]

    console.end(console.claim(1200))
    console.end(console.claim(2), "task.snoozed")
    console.end(console.claim(7, "images.resize"))
    console.pass_second()
    assert console.read() == [
        "Counted 1209 tasks that ended in 1.0 s: "
        "mails.send 1,200 completed, 2 postponed; images.resize 7 completed"
    ]


def test_after_a_second_with_few_each_has_a_line_again(console: Console) -> None:
    console.end(console.claim(MANY))
    console.pass_second()
    console.end(console.claim(MANY - 1))
    console.pass_second()
    console.read()

    console.end(console.claim(2))
    assert console.read() == ["task.completed"] * 2


def test_failures_have_a_line_each_among_many(console: Console) -> None:
    console.end(console.claim(MANY))
    console.pass_second()
    console.read()

    console.end(console.claim(3), "task.failed")
    console.end(console.claim(MANY), "task.attempt_failed")
    console.pass_second()

    *lines, counts = console.read()
    assert lines == ["task.failed"] * 3 + ["task.attempt_failed"] * MANY
    assert counts.endswith(f"mails.send {MANY} failed and retried, 3 failed")


def test_what_was_counted_is_written_at_the_end_and_all_is_as_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tasks")
    console = Console(caplog)
    with console.lines.choosing():
        console.end(console.claim(MANY + 1))
    assert console.read()[-1].startswith("Counted 1 tasks that ended")

    console.end(console.claim(MANY + 1))
    assert console.read() == ["task.claimed"] * (MANY + 1) + ["task.completed"] * (MANY + 1)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("options", "lines"),
    # A busy machine takes longer than a second for some of them: these have lines of their own.
    [([], range(MANY, 8 * MANY)), (["--verbosity", "2"], [2 * 5 * MANY + 1])],
)
def test_a_worker_prints_few_lines_on_its_own_console(
    spawn: Spawn, options: list[str], lines: Any
) -> None:
    Task.objects.enqueue_many("jobs.echo", [{}] * (5 * MANY))
    Task.objects.enqueue("jobs.wait", {"folder": 5}, max_attempts=1)
    worker = spawn(
        ["manage.py", "run_worker", "--skip-checks", "--once", *options],
        DJANGO_SETTINGS_MODULE="tests.unlogged_settings",
    )

    assert worker.wait(PATIENCE) == 0, worker.output
    told = {end: worker.output.count(f" {end} by ") for end in ("claimed", "completed")}
    assert sum(told.values()) in lines, told
    assert worker.output.count(" failed for good ") == 1
