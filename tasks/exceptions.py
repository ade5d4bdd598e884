"""Exceptions of tasks.

TaskError
├── UnknownTask      no handler of that name is registered
├── UnknownQueue     TASK_QUEUE["QUEUES"] does not name that queue
├── InvalidArguments its handler cannot be called with the data
├── NotSerializable  data or output is not JSON that every database stores
│   └── InvalidOutput  ... what a handler returned: not tried again
├── KeyBusy          another transaction has locked the task that has the unique key
├── InvalidSchedule  it is never due, or it was declared twice
├── TaskCancelled    raised into a handler whose task someone cancelled
├── ProcessDied      the process of a handler ended without an answer
├── Snooze           raised by a handler: not now, try again after a delay
└── GiveUp           raised by a handler: do not try again
"""

from __future__ import annotations

from datetime import timedelta

from tasks.delays import check_delay


class TaskError(Exception):
    """Something is wrong with a task."""


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


class InvalidSchedule(TaskError, ValueError):
    """The schedule is never due, or another schedule has its name."""


class TaskCancelled(TaskError):
    """Someone asked to cancel the task; raised in its handler."""


class ProcessDied(TaskError):
    """The process in which a handler ran ended without an answer."""


class Snooze(TaskError):
    """Raised by a handler to run its task again after ``delay`` (seconds, or a timedelta, at most
    ten years). It is no failure, and spends no attempt."""

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        self.delay = check_delay(delay)
        super().__init__(reason or f"snoozed for {self.delay.total_seconds():g} s")


class GiveUp(TaskError):
    """Raised by a handler to fail its task without a retry."""


class InvalidOutput(NotSerializable, GiveUp):
    """A handler returned a value that is not JSON. Another attempt would return it again, so there
    is none."""
