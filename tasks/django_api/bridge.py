"""Between the tasks of ``django.tasks`` and the queue: they are handlers as any others.

A decorated function is registered under its dotted path, so workers find it by name, as they
find handlers, and never import what a row says. Its row's data are ``{"args": [...], "kwargs":
{...}}``, with the alias of the backend and ``run_after`` where they were given.

``task_started`` is sent on the thread that runs the task. ``task_finished`` is sent when the end
is stored, in whatever process: a task that a dead worker left behind ends where it is recovered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial, wraps
from inspect import iscoroutinefunction
from types import ModuleType
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.utils.module_loading import import_string

from leasing.runtime import threads
from leasing.runtime.events import subscribe
from tasks import registry
from tasks.conf import task_settings
from tasks.django_api.compat import (
    AnyContext,
    AnyTask,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResultStatus,
    has_receivers,
    is_heard,
    is_logged,
    log_task_finished,
    log_task_started,
    normalized,
    task_finished,
    task_started,
)
from tasks.exceptions import UnknownTask
from tasks.execution.context import Context
from tasks.log import log
from tasks.querysets.claimed import ClaimedTask
from tasks.retry import RetryPolicy

if TYPE_CHECKING:
    from tasks import models
    from tasks.django_api import results
    from tasks.django_api.results import DatabaseTaskResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTask(AnyTask):
    """A task with what ``tasks.handler`` can say of one: ``@task(max_attempts=3)``. Django 6.0
    passes no keywords of a backend's own on."""

    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: float | timedelta | None = None
    progress_timeout: float | timedelta | None = None
    concurrency_key: str = ""
    concurrency_limit: int | None = None
    process: bool = False


#: Keywords of ``tasks.handler`` that a task of this backend takes in addition to Django's own.
KEYWORDS = {field.name for field in fields(DatabaseTask)} - {field.name for field in fields(Task)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTaskContext(AnyContext):  # type: ignore[misc] # the stubs' is not frozen
    """Django's context, with everything that handlers are given: ``fencing_token``,
    ``ensure()``, ``stopping``, and the rest of ``tasks.execution.context.Context``."""

    handler_context: Context

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.handler_context.attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler_context, name)


# Declaring


def declare(task: AnyTask, defaults: dict[str, Any], queue: str = "") -> None:
    """Register ``task`` for workers. Copies of a known one, as ``using()`` makes them, change
    nothing.

    Args:
        task: The task of Django's API.
        defaults: Keywords of ``tasks.handler`` for what it does not say itself.
        queue: The queue of an enqueue by its name; its own by default.

    Raises InvalidTask when its name stands for something else, or a keyword is out of bounds.
    """
    known = find(task.module_path)
    if known is not None and known.func is task.func:
        return
    own = {key: getattr(task, key, None) for key in KEYWORDS}
    given = {key: value for key, value in own.items() if value is not None}
    try:
        register = registry.handler(
            task.module_path,
            queue=queue or task.queue_name,
            **defaults | given,
        )
        register(_runs(task))
    except (TypeError, ValueError) as error:
        raise InvalidTask(str(error)) from error


def declare_all(modules: Iterable[ModuleType]) -> None:
    """Register the tasks in ``modules`` that were declared for another backend: they can still be
    sent here by ``using(backend=...)``. Those of a queue of their own, which is the other
    backend's, are of the first queue here."""
    queues = [*(task_settings.QUEUES or ())]
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, Task):
                ours = value.queue_name in queues or not queues
                declare(value, {}, value.queue_name if ours else queues[0])


def find(name: str) -> AnyTask | None:
    """The task that was declared under ``name``; None for handlers, and for unknown names."""
    try:
        return getattr(registry.find(name).function, "django_task", None)
    except UnknownTask:
        return None


# Running


def _runs(task: AnyTask) -> Callable[..., Any]:
    """The handler that runs ``task``: a coroutine function if the task is one."""

    @wraps(task.func)
    def run(ctx: Context, /, **data: Any) -> Any:
        result = _result(task, _row(ctx)) if _looks(task) else None
        if result is not None:
            task_started.send_robust(sender=_sender(result), task_result=result)
        else:
            _log_started(task, ctx)
        args, kwargs = _arguments(task, data, ctx, result)
        return normalized(task.func(*args, **kwargs))

    @wraps(task.func)
    async def run_async(ctx: Context, /, **data: Any) -> Any:
        result = await _aresult(task, _row(ctx)) if _looks(task) else None
        if result is not None:
            await task_started.asend_robust(sender=_sender(result), task_result=result)
        else:
            _log_started(task, ctx)
        args, kwargs = _arguments(task, data, ctx, result)
        return normalized(await task.func(*args, **kwargs))

    handler: Any = run_async if iscoroutinefunction(task.func) else run
    handler.django_task = task
    return handler  # type: ignore[no-any-return]


def _looks(task: AnyTask) -> bool:
    """Return True if anybody but Django's log reads the result of a task that begins."""
    return task.takes_context or has_receivers(task_started)


def _row(ctx: Context) -> results.Row:
    # A context for tests has no claim.
    return ctx.claimed if isinstance(ctx, Context) else ctx.task


def _arguments(
    task: AnyTask, data: dict[str, Any], ctx: Context, result: DatabaseTaskResult | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of ``task``: its own call takes them; receivers get the data as
    given."""
    args: list[Any] = normalized(data.get("args", []))
    kwargs: dict[str, Any] = normalized(data.get("kwargs", {}))
    if task.takes_context and result is not None:
        args.insert(0, DatabaseTaskContext(task_result=result, handler_context=ctx))
    return args, kwargs


def _result(task: AnyTask, row: results.Row) -> DatabaseTaskResult:
    from tasks.django_api import (
        results,  # its models may be loaded by now, but not as tasks are declared
    )

    if isinstance(row, ClaimedTask) and not row.can_be_reported:
        row = row.task
    return results.result_of(task, row, results.history(row))


async def _aresult(task: AnyTask, row: results.Row) -> DatabaseTaskResult:
    from tasks.django_api import results

    if results.is_first(row) and getattr(row, "can_be_reported", True):
        return _result(task, row)
    return await sync_to_async(_result)(task, row)


def _sender(result: DatabaseTaskResult) -> type[Any]:
    """Return the class of the backend under whose alias it was enqueued, or ours if the settings
    no longer have that alias, or its backend cannot be loaded."""
    try:
        return type(result.task.get_backend())
    except InvalidTaskBackend:
        ours: type[Any] = import_string("tasks.backend.DatabaseBackend")  # a layer above
        return ours


class _Line:
    """A result as far as Django's log reads it. The result is read if anything else is asked of
    it."""

    __slots__ = ("id", "status", "task")

    def __init__(self, task: AnyTask, row: registry.Ended, status: TaskResultStatus) -> None:
        self.id = str(row.pk)
        self.status = status
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task.get_result(self.id), name)


def _log(receiver: Callable[..., object], line: _Line) -> None:
    """Have Django's own ``receiver`` write ``line``, as the signal would have."""
    try:
        receiver(sender=None, task_result=line)
    except Exception:  # as with a receiver: what has happened has happened
        log.task_not_logged(task_id=line.id, exc_info=True)


def _log_started(task: AnyTask, ctx: Context) -> None:
    if is_logged(task_started):
        _log(log_task_started, _Line(task, _row(ctx), TaskResultStatus.RUNNING))


def _hear_ends(level: int, rows: Sequence[registry.Ended], **details: Any) -> None:
    """Tell of the tasks among ``rows`` that have ended, which Django logs at this ``level``."""
    if not is_heard(task_finished, level):
        return
    # Its log alone needs no result to be made for its line about a success.
    is_logged_alone = level == logging.INFO and not has_receivers(task_finished)
    for row in rows:
        if (task := find(row.name)) is None:
            continue
        if is_logged_alone:
            _log(log_task_finished, _Line(task, row, TaskResultStatus.SUCCESSFUL))
        else:
            threads.call_apart(partial(registry.tell_end, _tell_finished, row))


subscribe(
    {
        "task.completed": partial(_hear_ends, logging.INFO),
        "task.failed": partial(_hear_ends, logging.ERROR),
        "task.cancelled": partial(_hear_ends, logging.ERROR),
    },
    log.task_end_not_told,
)


def _tell_finished(row: models.Task | ClaimedTask) -> None:
    """Send ``task_finished`` of what has ended, in the except block of what it raised."""
    declared = find(row.name)
    if declared is None:
        return
    result = _result(declared, row)
    error = None if isinstance(row, ClaimedTask) else row.raised
    try:
        if error is not None:
            raise error
    except BaseException:
        task_finished.send_robust(sender=_sender(result), task_result=result)
    else:
        task_finished.send_robust(sender=_sender(result), task_result=result)
