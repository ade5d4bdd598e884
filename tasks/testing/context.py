"""A context for handlers that are called without a task. See ``tasks.testing``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from leasing.exceptions import LeaseLost
from tasks.execution.context import Completing, Context
from tasks.models import Task, TaskStep
from tasks.payload import OUTPUT, check_json
from tasks.querysets.compensation import Compensated


class _Attempt:
    """An attempt in memory, in place of its term and of its rows: what a context asks of both."""

    resource = "the task of a test"
    deadline = None

    def __init__(self, task: Task, steps: dict[str, Any]) -> None:
        self.claimed = task
        self.steps = steps
        self.checkpoints: list[Any] = []
        self.stopping = threading.Event()
        self.cancelled_by = self.reason = ""

    def mark_lost(self, reason: str) -> None:
        self.reason = reason

    def ensure(self) -> None:
        if self.reason:
            raise LeaseLost(self.resource, self.reason)

    def wait(self, seconds: float) -> None:
        """Do not sleep."""

    def step(self, task: Task, name: str) -> TaskStep | None:
        return TaskStep(output=self.steps[name]) if name in self.steps else None

    def finish_step(self, task: Task, name: str, output: Any, progress: Any) -> TaskStep:
        self.ensure()
        self.steps[name] = check_json(output, "output of a step")
        return TaskStep(output=output)

    def checkpoint(self, task: Task, state: Any, progress: Any) -> None:
        self.ensure()
        task.checkpoint = check_json(state, "checkpoint")
        self.checkpoints.append(state)


class FakeContext(Context):
    """A context in memory for handlers: it keeps what the handler reports, and writes nothing.

    A test calls ``stop``, ``cancel`` and ``lose``, before or while the handler runs.

    Args:
        attempt: The number of this attempt, as the handler sees it.
        fencing_token: The token of this grant, as the handler sees it.
        state: The checkpoint that the handler finds.
        steps: The outputs of the steps that an earlier attempt has done, by name.
        compensates: The outputs of the steps that the task to be compensated has done, by name, in
            the order in which they were done.
    """

    _rows = property(attrgetter("_attempt"))
    task = property(attrgetter("claimed"))

    def __init__(
        self,
        *,
        attempt: int = 1,
        fencing_token: int = 1,
        state: Any = None,
        steps: dict[str, Any] | None = None,
        compensates: dict[str, Any] | None = None,
    ) -> None:
        # With a key that no row has: a handler may name the task as a parent.
        task = Task(id=0, attempts=attempt, fencing_token=fencing_token, checkpoint=state)
        held: Any = _Attempt(task, dict(steps or {}))
        super().__init__(held)
        #: The output of each step that was done, and all checkpoints.
        self.steps, self.checkpoints = held.steps, held.checkpoints
        #: Progress that the handler reported, the latest last.
        self.said: list[dict[str, Any]] = []
        #: The output with which the handler completed the task itself.
        self.output: Any = None
        self._compensates = compensates or {}

    # What a test lets happen

    def stop(self) -> None:
        """The worker is asked to stop."""
        self._attempt.stopping.set()

    def cancel(self) -> None:
        """Someone cancels the task."""
        self._attempt.cancelled_by = "a test"

    def lose(self, reason: str = "it was not renewed in time") -> None:
        """The task is somebody else's from now on."""
        self._attempt.mark_lost(reason)

    # What a handler calls

    def progress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """Keep a report in ``said``. Arguments are those of ``Context.progress``."""
        self._attempt.ensure()
        self.said.append(check_json(self._report(done, total, more), "progress"))

    def compensated(self) -> Compensated:
        """Return an unsaved task, and the steps of ``compensates``, the last first."""
        done = [TaskStep(name=name, output=each) for name, each in self._compensates.items()]
        return Compensated(Task(id=0), done[::-1])

    @contextmanager
    def _complete_after(self, end: Completing) -> Iterator[None]:
        self.ensure()
        yield
        self.ensure()
        self.completed = True
        self.output = check_json(end.output, OUTPUT)
