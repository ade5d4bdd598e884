"""Functions of ``tasks.testing``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from leasing.conf import leasing_settings
from leasing.db.dialects import in_transaction
from leasing.runtime.events import Subscriber, subscribe, unsubscribe
from tasks import registry
from tasks.conf import task_settings
from tasks.exceptions import InvalidArguments
from tasks.models import Task
from tasks.payload import OUTPUT, check_data, check_json, dumped_data
from tasks.querysets import TaskStatus
from tasks.registry import check_queue
from tasks.testing.context import FakeContext
from tasks.testing.runs import bring_forward, run, run_next

#: Called with the tasks that were just enqueued; None: they wait.
_mode: Callable[[list[Task]], None] | None = None
#: True if ``enqueue`` calls it.
_asks = False


# When tasks run


@contextmanager
def inline(*, on_commit: bool = False, raises: bool = True) -> Iterator[None]:
    """In this block, run each due task when it is enqueued, before ``enqueue`` returns, also inside
    a transaction. With ``on_commit`` it runs when that commits: under ``TestCase``, when its
    ``captureOnCommitCallbacks(execute=True)`` ends.

    A task runs once: if it fails, it waits for its next attempt. ``enqueue`` (or the commit) raises
    the handler's error; with ``raises=False`` the error is only stored, as in production.
    """

    def run_all(tasks: list[Task]) -> None:
        for task in tasks:
            _run_if_due(task, raises)

    def when_committed(tasks: list[Task]) -> None:
        using = leasing_settings.DATABASE
        if in_transaction(using):
            transaction.on_commit(functools.partial(run_all, tasks), using=using)
        else:
            run_all(tasks)

    with _after_enqueue(when_committed if on_commit else run_all):
        yield


@contextmanager
def manual() -> Iterator[None]:
    """In this block, run no task on its own, even inside an ``inline()`` block."""
    with _after_enqueue(None):
        yield


def drain(
    queue: str | None = None,
    *,
    skip_delays: bool = False,
    raises: bool = False,
    limit: int = 1000,
) -> list[Task]:
    """Run every due task, and those that they enqueue, until none is left. Returns them in the
    order in which they ran, each as it was after its run; a task that ran twice is listed twice.

    Args:
        queue: The queue; None: all queues, one after the other.
        skip_delays: True to run retries and delayed tasks too, as if they were due.
        raises: True to raise what a handler raises.
        limit: Runs after which AssertionError is raised.

    Raises UnknownQueue, UnknownTask, AssertionError.
    """
    queues = list(task_settings.QUEUES) if queue is None else [check_queue(queue)]
    done: list[Task] = []
    while len(done) < limit:
        task = run_next(queues, raises)
        if task is None and skip_delays:
            bring_forward(queues)
            # Finds a task that was brought forward, or has become due since the last try.
            task = run_next(queues, raises)
        if task is None:
            return done
        done.append(task)
    raise AssertionError(f"The queue is not empty after {limit} runs; the last was {done[-1]}.")


def run_handler(
    name_or_handler: str | Callable[..., Any],
    data: dict[str, Any] | None = None,
    *,
    ctx: FakeContext | None = None,
) -> Any:
    """Call a handler with a ``FakeContext``, and return its result or raise its error. No task is
    stored; only the handler itself may use the database.

    Args:
        name_or_handler: The name of the task, or its handler.
        data: The keyword arguments of the handler.
        ctx: The context; a new one by default.

    Raises UnknownTask, InvalidArguments, NotSerializable (data or output).
    """
    handler = registry.find(name_or_handler)
    arguments = check_data(data, handler.parameters)
    called = async_to_sync(handler.function) if handler.is_async else handler.function
    output = called(FakeContext() if ctx is None else ctx, **arguments)
    return check_json(output, OUTPUT)


# What a test asserts


def enqueued(
    name_or_handler: str | Callable[..., Any] | None = None,
    *,
    data: dict[str, Any] | None = None,
    queue: str | None = None,
    **columns: Any,
) -> list[Task]:
    """Return the tasks that were enqueued, the oldest first, in any state.

    Args:
        name_or_handler: Only tasks of this handler, under its name or an alias.
        data: Only tasks whose data has at least these items.
        queue: Only tasks of this queue.
        columns: Further conditions, as ``filter`` takes them: ``status="ready"``,
            ``priority__gt=0``.

    Raises UnknownTask, UnknownQueue, InvalidArguments (no task of the handler has such items): a
    mistyped name would find nothing.
    """
    tasks = Task.objects.home().filter(**columns)
    _, text = dumped_data(data)
    items = json.loads(text).items()  # as the rows have them
    if name_or_handler is not None:
        handler = registry.find(name_or_handler)
        if reason := handler.parameters.mismatch(dict(items), is_partial=True):
            raise InvalidArguments(reason)
        tasks = tasks.filter(name__in=(handler.name, *handler.aliases))
    if queue is not None:
        tasks = tasks.filter(queue=check_queue(queue))
    return [task for task in tasks.order_by("pk") if items <= task.task_data.items()]


def assert_enqueued(
    name_or_handler: str | Callable[..., Any],
    *,
    data: dict[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
    **columns: Any,
) -> list[Task]:
    """Assert that such tasks were enqueued, and return them. The other arguments are those of
    ``enqueued``.

    Args:
        count: The number of them; None: one at least.
    """
    found = enqueued(name_or_handler, data=data, queue=queue, **columns)
    if len(found) == count or (count is None and found):
        return found
    wanted, name = "at least 1" if count is None else count, registry.find(name_or_handler).name
    raise AssertionError(
        f"Expected {wanted} of {name} like that, found {len(found)}. "
        f"Enqueued: {_listed(Task.objects.home().order_by('pk')[:20]) or 'nothing'}."
    )


def assert_not_enqueued(
    name_or_handler: str | Callable[..., Any] | None = None,
    *,
    data: dict[str, Any] | None = None,
    queue: str | None = None,
    **columns: Any,
) -> None:
    """Assert that no such task was enqueued; without arguments, no task at all. Arguments are those
    of ``enqueued``."""
    found = enqueued(name_or_handler, data=data, queue=queue, **columns)
    if found:
        raise AssertionError(f"Expected none like that. Enqueued: {_listed(found)}.")


aassert_enqueued = sync_to_async(assert_enqueued)
aassert_not_enqueued = sync_to_async(assert_not_enqueued)
adrain = sync_to_async(drain)
aenqueued = sync_to_async(enqueued)
arun = sync_to_async(run)
arun_handler = sync_to_async(run_handler)


# The pieces


@contextmanager
def _after_enqueue(then: Callable[[list[Task]], None] | None) -> Iterator[None]:
    global _mode, _asks
    before = _mode, _asks
    if not _asks:
        subscribe(_HEARD, None)
    _mode, _asks = then, True
    try:
        yield
    finally:
        _mode, _asks = before
        if not _asks:
            unsubscribe(_HEARD)


def _sent(tasks: Sequence[Task]) -> None:
    if _mode is not None:
        _mode([*tasks])


_HEARD: dict[str, Subscriber] = {"task.sent": _sent, "tasks.sent": _sent}


def _run_if_due(task: Task, raises: bool) -> None:
    if task.is_duplicate:
        return  # it ran, or waits, as what it was before
    if Task.objects.home().filter(pk=task.pk, status=TaskStatus.READY).ready().exists():
        run(task, raises)


def _listed(tasks: Iterable[Task]) -> str:
    return ", ".join(f"{task.name} {task.task_data} in {task.queue}" for task in tasks)
