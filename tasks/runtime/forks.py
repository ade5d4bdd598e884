"""Copies of this process that a handler made with ``os.fork()``, and that return from its call.

A copy has the memory of its worker and the connections of the original: it would store the outcome
of the task once more, run what else it finds, and outlive the worker. It has to end with the call.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Awaitable, Generator
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")

#: The number of this process. Reading it here takes less time than asking the system.
pid = os.getpid()


def _note_pid() -> None:
    global pid
    pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_pid)


def end_copy(original: int, task_id: object) -> NoReturn:
    """End this process, which is a copy: called in the ``finally`` of a handler's call if ``pid``
    has changed in it, before anything is done that is the business of the original.

    Nothing is flushed and no connection closed, for the original has them too. The line is no
    record of the log: that may need locks, queues and threads that only the original has.

    Args:
        original: The ``pid`` before the call.
        task_id: The task that the handler was called for.
    """
    error = sys.exception()
    if error is None or isinstance(error, StopIteration):  # a coroutine's way to return
        how, code = "went on", 0
    elif isinstance(error, SystemExit) and isinstance(error.code, int | None):
        how, code = "called sys.exit()", (error.code or 0) & 0xFF
    else:
        how, code = f"raised {type(error).__name__}", 1
    line = (
        f"task:{task_id}: the handler forked, and its copy (pid {pid}, of {original}) {how}. The "
        f"copy ends with exit code {code}. In a copy call os._exit().\n"
    )
    try:
        os.write(2, line.encode(errors="replace"))
    finally:
        os._exit(code)


@types.coroutine
def awaited(work: Awaitable[Result], task_id: object) -> Generator[Any, Any, Result]:
    """Await ``work``, the coroutine of a handler, and call ``end_copy`` after each of its steps: a
    copy that awaits something would go on with the event loop, and all that others do there."""
    steps: Any = work.__await__()
    original, step, value = pid, steps.send, None
    while True:
        try:
            pending = step(value)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            if pid != original:
                end_copy(original, task_id)
        try:
            value, step = (yield pending), steps.send
        except BaseException as error:
            value, step = error, steps.throw
