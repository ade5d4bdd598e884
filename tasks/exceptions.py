"""Exceptions of tasks.

TaskError
├── UnknownTask      no handler of that name is registered
├── UnknownQueue     TASK_QUEUE["QUEUES"] does not name that queue
├── InvalidArguments its handler cannot be called with the data
├── NotSerializable  data or output is not JSON that every database stores
│   └── InvalidOutput  ... what a handler returned: not tried again
├── KeyBusy          another transaction has locked the task that has the unique key
├── ClaimUnderWay    the same request to claim has not ended
├── ClaimAnswered    the same request to claim was answered, and holds no task any more
├── InvalidSchedule  it is never due, or it was declared twice
├── TaskFailed       a task that was waited for has failed, or was cancelled
├── WaitTimeout      a task that was waited for has not ended in time
├── WaitInTransaction  a wait, inside a transaction, for a task that has not ended
├── TaskCancelled    raised into a handler whose task someone cancelled
├── ProcessDied      the process of a handler ended without an answer
├── Snooze           raised by a handler: not now, try again after a delay
└── GiveUp           raised by a handler: do not try again
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from leasing.exceptions import LeaseError
from tasks.bounds import check_delay

if TYPE_CHECKING:
    from tasks.models import Task


class TaskError(Exception):
    """Something is wrong with a task."""

    __reduce__ = LeaseError.__reduce__


class UnknownTask(TaskError, LookupError):
    """No handler of that name is registered."""


class UnknownQueue(TaskError, LookupError):
    """The queue is not one of TASK_QUEUE["QUEUES"]."""


class InvalidArguments(TaskError, TypeError):
    """The handler cannot be called with the data."""


class NotSerializable(TaskError, TypeError):
    """The value is not JSON that every database stores."""


class KeyBusy(TaskError):
    """Another transaction has locked the task that has the unique key, and did not end in time.
    Nothing was stored."""

    def __init__(self, unique_key: str | None) -> None:
        super().__init__(
            f"The task with the unique key {unique_key!r} is locked by another transaction."
        )


class ClaimUnderWay(TaskError):
    """The same request to claim tasks was sent before, and is still under way."""

    #: Seconds after which it may be sent again.
    remaining: Final = 1.0

    def __init__(self) -> None:
        super().__init__("This request was sent before, and still claims. Send it again.")


class ClaimAnswered(TaskError):
    """The same request to claim tasks was answered before, and holds no task any more: another
    claim needs a key of its own."""

    def __init__(self) -> None:
        super().__init__(
            "This request was answered before, and holds no task any more. Use a new key to claim "
            "tasks."
        )


class InvalidSchedule(TaskError, ValueError):
    """The schedule is never due, or another schedule has its name."""


class TaskFailed(TaskError):
    """The ``task`` that was waited for has failed, or was cancelled."""

    def __init__(self, task: Task) -> None:
        self.task = task
        error, what = task.last_error, f"failed: {task.last_error}"
        if task.status == "cancelled":  # by whom, or what its attempt failed with meanwhile
            what = f"was {error}" if error.startswith("cancelled") else f"was cancelled: {error}"
        super().__init__(f"{task} {what}")


class WaitTimeout(TaskError, TimeoutError):
    """The task that was waited for has not ended in time. It goes on."""

    def __init__(self, task: Task, seconds: float, state: str = "") -> None:
        """The message names the task and its state.

        Args:
            task: The task, as the caller had it.
            seconds: Seconds for which the caller has waited.
            state: A sentence that says why it has not ended; empty if nothing is known.
        """
        self.task = task
        self.seconds = seconds
        self.state = state
        super().__init__(f"{task} has not ended after {seconds:.12g} s. {state}")


class WaitInTransaction(TaskError):
    """A wait for a ``task`` that has not ended, inside a transaction."""

    def __init__(self, task: Task) -> None:
        self.task = task
        super().__init__(
            f"{task} cannot be waited for inside a transaction: if it was enqueued in this one, no "
            "worker sees it before the commit, and the wait would have no end. Commit first, then "
            "wait. A view under ATOMIC_REQUESTS needs @transaction.non_atomic_requests. In a test, "
            "run the task first: tasks.testing has run(), drain() and inline()."
        )


class TaskCancelled(TaskError):
    """Someone asked to cancel the task; raised in its handler."""


class ProcessDied(TaskError):
    """The process in which a handler ran ended without an answer."""


class Snooze(TaskError):
    """Raised by a handler to run its task again after ``delay`` (seconds, or a timedelta, at most
    ten years). It is no failure, and spends no attempt."""

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        self.delay = check_delay(delay)
        super().__init__(reason or f"snoozed for {self.delay.total_seconds():.12g} s")


class GiveUp(TaskError):
    """Raised by a handler to fail its task without a retry."""


class InvalidOutput(NotSerializable, GiveUp):
    """A handler returned a value that is not JSON. Another attempt would return it again, so there
    is none."""
