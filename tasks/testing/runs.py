"""Running tasks on the thread of a test, by the worker's own runner. See ``tasks.testing``.

A test of Django's ``TestCase`` or of pytest-django happens in a transaction that is rolled back.
What a worker does is refused in transactions, and its connections are closed between tasks; so
while a task runs here the innermost transaction counts as one of the test, like the outermost,
and connections in one are left open.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from leasing.functions import DbNow
from leasing.holding.term import keep_all
from leasing.testing.keeper import manual_keeper
from tasks import registry
from tasks.diagnosis import diagnose
from tasks.exceptions import InvalidArguments, Snooze, TaskCancelled, UnknownTask
from tasks.execution import runner
from tasks.execution.attempt import Attempt
from tasks.models import Task
from tasks.payload import as_arguments
from tasks.querysets.claimed import ClaimedTask

#: The holder of tasks that run here.
HOLDER = "a test"
#: Exceptions by which a handler reports something that is no failure.
SAID = (Snooze, TaskCancelled)


def run(task: Task, raises: bool = False) -> Task:
    """Run ``task`` now, even if it is scheduled for later, and refresh it from the database.

    An error of the handler fails the attempt, as in a worker; with ``raises`` it is also raised
    here. Raises UnknownTask, and AssertionError if the task is not waiting.
    """
    registry.find(task.name)
    with as_if_committed():
        rows = Task.objects.home().filter(pk=task.pk)
        rows.scheduled().update(scheduled_at=DbNow())
        claimed = list(rows.claim(HOLDER))
        task.refresh_from_db()
        if not claimed:
            raise AssertionError(f"{task} cannot be run: {diagnose(task).headline}")
        _run_claimed(claimed[0], raises)
        task.refresh_from_db()
    return task


def run_next(queues: Sequence[str], raises: bool = False) -> Task | None:
    """Run the first due task of the first of ``queues`` that has one; None if none has."""
    with as_if_committed():
        for queue in queues:
            for task in Task.objects.claim(HOLDER, queues=[queue]):
                _run_claimed(task, raises)
                task.refresh_from_db()
                return task
    return None


def bring_forward(queues: Sequence[str]) -> bool:
    """Move the time of the task that is to run next to now. Returns True if there was one."""
    rows = Task.objects.home()
    later = rows.scheduled().filter(queue__in=queues).order_by("scheduled_at", "pk")
    first = later.values_list("pk", flat=True).first()
    return bool(rows.filter(pk=first).scheduled().update(scheduled_at=DbNow()))


def _run_claimed(task: Task, raises: bool) -> None:
    raised: list[BaseException] = []
    with ExitStack() as stack:
        try:
            handler = registry.find(task.name)
            as_arguments(task.task_data, handler.parameters)
        except (UnknownTask, InvalidArguments) as error:
            raised.append(error)  # the runner gives it back
        else:
            watched = replace(handler, function=_watched(handler.function, raised), process=False)
            stack.enter_context(patch.dict(registry._handlers, {task.name: watched}))
        attempt = Attempt(ClaimedTask.taken(task), threading.Event())
        keep_all([attempt])
        runner.run(attempt)
    not_begun = raised and isinstance(raised[0], UnknownTask | InvalidArguments)
    if not_begun or raised and raises and not isinstance(raised[0], SAID):
        raise raised[0]


def _watched(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """``function``, that also adds what it raises to ``raised``."""
    if iscoroutinefunction(function):

        @functools.wraps(function)
        async def acall(*args: Any, **data: Any) -> Any:
            points = await sync_to_async(_save)()
            try:
                return await function(*args, **data)
            except BaseException as error:
                raised.append(error)
                await sync_to_async(_mend)(points)
                raise

        return acall

    @functools.wraps(function)
    def call(*args: Any, **data: Any) -> Any:
        points = _save()
        try:
            return function(*args, **data)
        except BaseException as error:
            raised.append(error)
            _mend(points)
            raise

    return call


# The transaction of the test


@contextmanager
def as_if_committed() -> Iterator[None]:
    """Permit the work of a worker inside the transactions that this thread is in."""
    with _keeper(), ExitStack() as stack:
        for connection in _in_transactions():
            # Django's own mark of the blocks that stand around a test.
            mark = patch.object(connection.atomic_blocks[-1], "_from_testcase", True)
            stack.enter_context(mark)
            keep = patch.object(connection, "close_if_unusable_or_obsolete", lambda: None)
            stack.enter_context(keep)
        yield


def _keeper() -> AbstractContextManager[Any]:
    """Renew by hand where the keeper's own connection would not see the task."""
    rolled_back = any(
        getattr(connection.atomic_blocks[0], "_from_testcase", False)
        for connection in _in_transactions()
    )
    return manual_keeper(stopped=False) if rolled_back else nullcontext()


def _in_transactions() -> list[BaseDatabaseWrapper]:
    return [each for each in connections.all(initialized_only=True) if each.atomic_blocks]


def _save() -> list[tuple[str, str]]:
    """A point to go back to in each transaction."""
    names = [connection.alias for connection in _in_transactions()]
    # Under another name from Django 6.1 on.
    make: Any = getattr(transaction, "savepoint_create", None) or transaction.savepoint
    return [(name, make(using=name)) for name in names]


def _mend(points: list[tuple[str, str]]) -> None:
    """Go back where an error of the database has broken the transaction, or the attempt could
    not be written down as failed. In life only the handler's own would have been broken."""
    for name, point in points:
        try:
            with connections[name].cursor() as cursor:
                cursor.execute("SELECT 1")
        except Error:
            transaction.set_rollback(False, using=name)
            transaction.savepoint_rollback(point, using=name)
