"""A trace of what happened to tasks, written by every process of a test into one file.

Each event is told after it was written, so two processes may tell theirs in the wrong order.
What puts them in order again is the moment at which the database says that it happened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from leasing import signals as lease_signals
from tasks import signals
from tasks.models import Task, TaskAttempt

#: What happened, to which task, by whom.
Event = tuple[str, int, str]

#: The variable of the environment that names the file.
VARIABLE = "TASKS_TRACE"


def write_to(path: str) -> None:
    """Append an event to ``path`` for each that happens to a task in this process."""

    def append(what: str, task: Task, who: str, at: datetime) -> None:
        # One write in append mode: processes do not tear each other's lines.
        line = json.dumps([at.isoformat(), what, task.pk, who]) + "\n"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def connect(signal: Any, tell: Callable[..., None]) -> None:
        signal.connect(tell, weak=False)

    def claimed(task: Task, **_: Any) -> None:
        assert task.acquired_at is not None
        append("claimed", task, task.holder, task.acquired_at)

    def completed(task: Task, **_: Any) -> None:
        assert task.processed_at is not None
        append("completed", task, task.holder, task.processed_at)

    def recovered(task: Task, holder: str, **_: Any) -> None:
        append("recovered", task, holder, _attempt(task).ended_at)

    def refused(lease: Any, verb: str, **_: Any) -> None:
        noted = _attempt(lease).refused_at
        assert noted is not None
        append(f"{verb} refused", lease, lease.holder, noted)

    connect(signals.claimed, claimed)
    connect(signals.completed, completed)
    connect(signals.recovered, recovered)
    connect(lease_signals.refused, refused)


def read(path: Path) -> list[Event]:
    """All events, in the order in which they happened."""
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text().splitlines()]
    # SQLite's clock may give one moment to a recovery and to the claim that follows it.
    events.sort(key=lambda event: (datetime.fromisoformat(event[0]), event[1] != "recovered"))
    return [(what, task, who) for _, what, task, who in events]


def _attempt(task: Task) -> TaskAttempt:
    assert task.grant_id is not None
    return TaskAttempt.objects.get(task_id=task.pk, grant_id=task.grant_id)
