"""A context for handlers that are called without a task. See ``tasks.testing``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from leasing.exceptions import LeaseLost
from tasks.exceptions import TaskCancelled
from tasks.execution.context import Completing
from tasks.models import Task, TaskStep
from tasks.payload import OUTPUT, check_json
from tasks.querysets.compensation import Compensated


class FakeContext:
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
        self.task = Task(id=0, attempts=attempt, fencing_token=fencing_token, checkpoint=state)
        self.claimed = self.task
        self.attempt = attempt
        self.fencing_token = fencing_token
        #: The latest checkpoint, and all of them.
        self.state = state
        self.checkpoints: list[Any] = []
        #: The output of each step that was done.
        self.steps = dict(steps or {})
        self._compensates = compensates or {}
        #: Progress that the handler reported, the latest last.
        self.said: list[dict[str, Any]] = []
        #: True if the handler completed the task itself, and its output.
        self.completed = False
        self.output: Any = None
        #: Why the handler gave its task back, and for how long.
        self.given_back: tuple[str, timedelta] | None = None
        self.stopping = False
        self.cancelled = False
        self._lost = ""

    # What a test lets happen

    def stop(self) -> None:
        """The worker is asked to stop."""
        self.stopping = True

    def cancel(self) -> None:
        """Someone cancels the task."""
        self.cancelled = True

    def lose(self, reason: str = "it was not renewed in time") -> None:
        """The task is somebody else's from now on."""
        self._lost = reason

    # What a handler calls

    def ensure(self) -> None:
        """Raise LeaseLost after ``lose``, TaskCancelled after ``cancel``."""
        self._ensure_held()
        if self.cancelled:
            raise TaskCancelled("The task was cancelled.")

    def wait(self, seconds: float) -> bool:
        """Does not sleep. Returns ``stopping``; raises what ``ensure`` does."""
        self.ensure()
        return self.stopping

    def give_back(self, reason: str = "", *, delay: float | timedelta = 0) -> None:
        pause = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        self.given_back = (reason or "given back by its handler", pause)

    def flush(self) -> None:
        """Do nothing: every report is in ``said`` already."""

    async def load(self) -> Task:
        """Return ``task``, which has every column."""
        return self.task

    async def aflush(self) -> None:
        """``flush``, for coroutines."""

    def progress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """Keep a report in ``said``. Arguments are those of ``Context.progress``."""
        self._ensure_held()
        given = {"done": done, "total": total}
        said = {name: value for name, value in given.items() if value is not None} | more
        self.said.append(check_json(said, "progress"))

    def checkpoint(self, state: Any) -> None:
        self._ensure_held()
        self.state = check_json(state, "checkpoint")
        self.checkpoints.append(state)

    def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep the output of a step in ``steps``. Arguments are those of ``Context.step``."""
        if name not in self.steps:
            self.ensure()
            self._finish(name, function(*args, **kwargs))
        return self.steps[name]

    def compensated(self) -> Compensated:
        """Return an unsaved task, and the steps of ``compensates``, the last first."""
        done = [TaskStep(name=name, output=each) for name, each in self._compensates.items()]
        return Compensated(Task(id=0), done[::-1])

    async def acompensated(self) -> Compensated:
        """``compensated``, for coroutines."""
        return self.compensated()

    def completing(self, output: Any = None) -> Completing:
        """A block of the handler's, without a transaction."""
        self.ensure()
        return Completing(self._complete_after, output)

    @contextmanager
    def _complete_after(self, end: Completing) -> Iterator[None]:
        yield
        self.ensure()
        self.completed = True
        self.output = check_json(end.output, OUTPUT)

    async def aprogress(self, done: Any = None, total: Any = None, **more: Any) -> None:
        """``progress``, for coroutines, with the same arguments."""
        self.progress(done, total, **more)

    async def acheckpoint(self, state: Any) -> None:
        self.checkpoint(state)

    async def astep(
        self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """``step``, for coroutines, with the same arguments; ``function`` may be one, or plain."""
        if name not in self.steps:
            self.ensure()
            output = function(*args, **kwargs)
            self._finish(name, await output if hasattr(output, "__await__") else output)
        return self.steps[name]

    def _finish(self, name: str, output: Any) -> None:
        self._ensure_held()
        self.steps[name] = check_json(output, "output of a step")

    def _ensure_held(self) -> None:
        if self._lost:
            raise LeaseLost("the task of a test", self._lost)
