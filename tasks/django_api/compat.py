"""Django's tasks API: ``django.tasks`` where Django has it, else the backport ``django_tasks``.

Nothing else in this package imports either of the two. The names here are Django's own, which the
backport's exceptions have after 0.12.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from django import VERSION
from django.conf import settings
from django.dispatch import Signal
from django.dispatch.dispatcher import NONE_ID
from django.utils.log import RequireDebugTrue

if TYPE_CHECKING or VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import (
        log_task_enqueued,
        log_task_finished,
        log_task_started,
        logger,
        task_enqueued,
        task_finished,
        task_started,
    )
    from django.utils.json import normalize_json
else:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import (
        log_task_enqueued,
        log_task_finished,
        log_task_started,
        logger,
        task_enqueued,
        task_finished,
        task_started,
    )
    from django_tasks.utils import normalize_json

    try:
        from django_tasks.exceptions import InvalidTask, InvalidTaskBackend
    except ImportError:  # up to 0.12
        from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask

if TYPE_CHECKING:
    # Whatever they take and return. At run time Django's classes know no parameters.
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]
    AnyContext: TypeAlias = TaskContext[..., Any]
else:
    AnyTask, AnyResult, AnyContext = Task, TaskResult, TaskContext

#: The file of the standard library's loggers.
_LOGGING_FILE = logging.Logger.info.__code__.co_filename

#: The keys of Django's own receivers, which log at one of two levels, as they are connected: for
#: every sender.
_LOGGING = {
    (id(receiver), NONE_ID) for receiver in (log_task_enqueued, log_task_started, log_task_finished)
}


def has_receivers(signal: Signal) -> bool:
    """Return True if ``signal`` has any receiver but Django's log."""
    receivers = signal.receivers
    if len(receivers) == 1:  # as it nearly always is: the log alone
        return receivers[0][0] not in _LOGGING
    return any(each[0] not in _LOGGING for each in receivers)


def is_logged(signal: Signal, level: int = logging.INFO) -> bool:
    """Return True if Django's log receives ``signal``, and writes it at ``level``."""
    return logger.isEnabledFor(level) and _has_log(signal) and _is_written(level)


def _has_log(signal: Signal) -> bool:
    receivers = signal.receivers
    if len(receivers) == 1:
        return receivers[0][0] in _LOGGING
    return any(each[0] in _LOGGING for each in receivers)


def is_heard(signal: Signal, level: int = logging.INFO) -> bool:
    """Return True if ``signal``, which Django logs at ``level``, has a listener: the log, or
    another receiver."""
    return has_receivers(signal) or is_logged(signal, level)


def _is_written(level: int) -> bool:
    """Return False if no handler lets a record of ``level`` through. So it is with Django's default
    logging wherever DEBUG is off: ``django`` is at INFO, and what prints that is for DEBUG alone.
    A record that nobody writes takes as long as a short task."""
    if settings.DEBUG or _calls_handlers() != _LOGGING_FILE:
        return True
    each: logging.Logger | None = logger
    is_handled = False
    while each is not None:
        for handler in each.handlers:
            is_handled = True
            is_for_debug = any(type(known) is RequireDebugTrue for known in handler.filters)
            if level >= handler.level and not is_for_debug:
                return True
        each = each.parent if each.propagate else None
    return not is_handled


def _calls_handlers() -> str | None:
    """Return the file of the function that gives records to handlers: tools that follow a program
    replace it, and see what no handler writes."""
    code = getattr(logging.Logger.callHandlers, "__code__", None)
    return None if code is None else code.co_filename


_PLAIN = frozenset((str, int, float, bool, type(None)))


def normalized(value: Any) -> Any:
    """Return what ``normalize_json`` makes of ``value``, a copy; faster where it is unchanged."""
    kind, plain = type(value), _PLAIN
    if kind in plain:
        return value
    # Most hold nothing but what is plain: no call for each of these.
    if kind is dict:
        return {
            (key if type(key) in plain else normalized(key)): (
                each if type(each) in plain else normalized(each)
            )
            for key, each in value.items()
        }
    if kind is list:
        return [each if type(each) in plain else normalized(each) for each in value]
    return normalize_json(value)


__all__ = [
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "has_receivers",
    "is_heard",
    "is_logged",
    "log_task_finished",
    "log_task_started",
    "logger",
    "normalized",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
