"""What can go wrong with a task.

TaskError
├── UnknownTask      no handler of that name is registered
├── UnknownQueue     TASK_QUEUE["QUEUES"] does not name that queue
├── NotSerializable  data or output is not JSON that every database stores
└── GiveUp           raised by a handler: do not try again
"""

from __future__ import annotations


class TaskError(Exception):
    """Something is wrong with a task."""


class UnknownTask(TaskError, LookupError):
    """No handler of that name is registered."""


class UnknownQueue(TaskError, LookupError):
    """The queue is not one of TASK_QUEUE["QUEUES"]."""


class NotSerializable(TaskError, TypeError):
    """The value is not JSON that every database stores."""


class GiveUp(TaskError):
    """Raised by a handler whose task must not be tried again."""
