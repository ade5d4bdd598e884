"""The points at which tasks can be traced. Nobody is there until ``tasks.tracing`` is.

What stands here is called as what it follows happens, and raises nothing of its own. What tasks
are to carry in their rows it writes to ``Task.traced``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from leasing.runtime.tracepoints import HoldTrace

if TYPE_CHECKING:
    from tasks.execution.attempt import Execution
    from tasks.execution.outcomes import Outcome, Refused
    from tasks.models import Task
    from tasks.querysets.claimed import ClaimedTask

Stored = TypeVar("Stored")

#: Tells a broker of the task with a key, in a queue.
Send = Callable[[int, str], object]


class AttemptTrace(HoldTrace, Protocol):
    """Follows one attempt, from the call of its handler on."""

    def over(self, outcome: Outcome) -> object:
        """The attempt has ended so; for code that ends it from outside."""

    def leave(self, outcome: Outcome) -> object:
        """``over``, on the thread or coroutine on which it began."""

    def returned(self, reason: str) -> object:
        """The attempt was given back, while its handler may still run."""

    def carrier(self) -> str | None:
        """Return the headers by which another process goes on with it."""


class TaskTracer(Protocol):
    """Follows tasks."""

    def sending(self, columns: dict[str, Any], store: Callable[[], Stored]) -> Callable[[], Stored]:
        """``store``, which stores one task or many with ``columns``, followed; as a part of what
        is being done now, whenever it is called."""

    def publishing(self, send: Send, keys: Sequence[int]) -> Send:
        """``send``, which gives a broker the message of a task, for the tasks with these
        ``keys``, followed. A query for all of them."""

    def claimed(self, claimed: Sequence[Task | ClaimedTask]) -> object:
        """One request brought these."""

    def running(self, execution: Execution) -> AttemptTrace | None:
        """The handler of ``execution`` is about to be called in this context."""

    def storing(
        self, store: Callable[[list[Outcome]], Refused], outcomes: list[Outcome]
    ) -> Refused:
        """Call ``store``, which stores the outcomes of attempts."""

    def lost(self, task: Task, reason: str) -> object:
        """The attempt that ``task`` still names was taken from a holder that is gone, and the
        row is about to be written."""


class Points:
    """The tracer of this process's tasks; None while there is none."""

    tracer: TaskTracer | None = None


points = Points()
