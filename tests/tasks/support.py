"""Helpers of several tests of tasks."""

from __future__ import annotations

import copy
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Unpack

import pytest
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import F
from django.db.models.functions import Greatest, Least
from django.db.models.signals import post_init

from leasing.functions import DbNow, after
from leasing.holding.keeper import Keeper
from leasing.holding.term import keep_all
from leasing.validation.terms import Terms
from tasks.execution.attempt import Attempt
from tasks.execution.context import Context
from tasks.models import Sample, Task, TaskAttempt, TaskStatus
from tasks.querysets import TaskQuerySet
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Handler
from tests.factories import TaskOptions, make_tasks
from tests.leasing.support import expire

#: A signal that was sent: its name, the task, and what else it says.
Reported = list[tuple[str, int, dict[str, Any]]]

#: Makes what the handler of a claimed task is given.
ContextOf = Callable[[Task], Context]

#: Runs a task to its end with the function given as its handler.
RunTask = Callable[..., Task]

#: Has pauses before another attempt drawn by a function of their bounds.
Drawing = Callable[[Callable[[float, float], float]], None]


class Handlers:
    """The registered handlers during a test: ``handlers["name"] = function``, or ``add``."""

    def __init__(self, known: dict[str, Handler]) -> None:
        self._known = known

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        self.add(name, function)

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def add(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        """Register ``function`` with the options of a handler."""
        self._known[name] = Handler(name, function, **options)


def row_of(task: Task) -> dict[str, Any]:
    """Every column of the task as the database has it."""
    columns = Task.objects.filter(pk=task.pk).values().get()
    return dict(columns)


def copy_of(task: Task) -> Task:
    """Another instance with the same grant: what its holder would have in another place."""
    return copy.copy(task)


def kept(task: Task, keeper: Keeper, stopping: threading.Event | None = None) -> Attempt:
    """Return the attempt of ``task``, as if it had been claimed just now, renewed by ``keeper``."""
    task.sent_at = keeper.clock()
    attempt = Attempt(ClaimedTask.of(task), stopping or threading.Event())
    keep_all([attempt], keeper)
    return attempt


def sample_handlers(
    now: datetime, ago: int, queue: str = "default", /, **names: tuple[int, dict[float, int]]
) -> None:
    """Store a sample of ``ago`` seconds before ``now``: of each handler its failures, and the
    numbers of its successes by their seconds. A dot in a name is a double underline."""
    handlers: dict[str, Any] = {}
    for name, (failures, runs) in names.items():
        lengths = {str(round(math.log(each, Sample.BASE))): runs[each] for each in runs}
        each = {"failures": failures, "runs": lengths, "waits": lengths}
        handlers[name.replace("__", ".")] = each
    slot = int(now.timestamp()) - ago
    Sample.objects.create(queue=queue, slot=slot, handlers=handlers)


def attempts(task: Task) -> list[tuple[int, str]]:
    """Number and outcome of each attempt that did not end well, oldest first."""
    return list(task.attempt_set.order_by("id").values_list("number", "outcome"))


def refusals(task: Task) -> list[str]:
    """The late write that was noted on each attempt, or "", oldest first."""
    return list(task.attempt_set.order_by("id").values_list("refused_verb", flat=True))


def attempt(task: Task) -> TaskAttempt:
    """The only attempt of ``task`` that did not end well."""
    return TaskAttempt.objects.get(task=task)


def make_due(task: Task) -> None:
    """Move the time of a waiting task to now."""
    Task.objects.filter(pk=task.pk).update(scheduled_at=after(timedelta(seconds=-1)))


def names_of(reported: Reported) -> list[str]:
    return [name for name, _, _ in reported]


def running(count: int, **options: Unpack[TaskOptions]) -> list[Task]:
    """Create so many running tasks."""
    options["state"] = "running"
    return make_tasks(count, **options)


# What others do to a row, in one UPDATE each


def grant_to(task: Task, holder: str) -> None:
    """Claim the ready task for ``holder``."""
    ready = Task.objects.filter(pk=task.pk).ready()
    ready.update(grant_id=uuid.uuid4(), **ready.granting(Terms.check(holder=holder, ttl=30)))


def end_well(task: Task) -> None:
    """Complete the task, with its grant left on the row."""
    columns: Mapping[str, Any] = {
        "status": TaskStatus.SUCCEEDED,
        "processed_at": DbNow(),
        "unique_key": None,
        "released_at": DbNow(),
        "expires_at": Least(F("expires_at"), DbNow()),
    }
    Task.objects.filter(pk=task.pk).update(**columns)


def take_back(task: Task) -> None:
    """Set the task ready, and nothing else that a verb of its holder looks at."""
    row = Task.objects.filter(pk=task.pk)
    row.update(
        status=TaskStatus.READY,
        max_attempts=Greatest(F("max_attempts"), F("attempts") + 1),
    )


def lose(task: Task) -> None:
    """Move the deadline of the running task into the past, and recover it. Its pause is over."""
    expire(task)
    Task.objects.recover()
    make_due(task)


def end_by_another(task: Task) -> None:
    """Complete the task with the same output, under another grant."""
    take_over(task)
    end_well(task)


def take_over(task: Task) -> None:
    """Give the running task to somebody else, who lets the deadline pass at once: nothing but
    the grant tells the two apart."""
    row = Task.objects.filter(pk=task.pk)
    row.update(grant_id=uuid.uuid4(), holder="thief", expires_at=after(timedelta(seconds=-1)))


def prolong(task: Task) -> None:
    """Renew the task."""
    Task.objects.filter(pk=task.pk).update(expires_at=after(timedelta(seconds=60)))


def mixed_up() -> list[ClaimedTask]:
    """Two claimed tasks, each with the grant of the other."""
    make_tasks(2)
    one, other = Task.objects.take("ann", limit=2)
    one.grant, other.grant = other.grant, one.grant
    for each in (one, other):
        each.task.grant_id = each.grant_id
    return [one, other]


# What happens between, to or beside the statements of a verb


@contextmanager
def around(verb: str, act: Callable[..., Any], of: type[Any] = TaskQuerySet) -> Iterator[None]:
    """Hand each call of ``verb``, of any thread, to ``act``: it gets the verb itself, and what that
    was called with."""
    real = getattr(of, verb)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, verb, lambda rows, *a, **options: act(partial(real, rows), *a, **options))
        yield


@contextmanager
def before_a_statement_with(part: str, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Do ``meanwhile`` before the first statement with ``part`` in it, as another session could."""
    waiting = [meanwhile]

    def look(execute: Any, sql: str, *rest: Any) -> Any:
        if part in sql and waiting:
            waiting.pop()()
        return execute(sql, *rest)

    with connection.execute_wrapper(look):
        yield
    assert not waiting, f"no statement has {part}"


@contextmanager
def refusing(error: Exception, refuses: Callable[[str, Any], bool]) -> Iterator[None]:
    """Answer ``error`` in place of the database to each statement, of any thread, that is refused
    by its text and its parameters."""
    execute = CursorWrapper.execute

    def look(cursor: CursorWrapper, sql: Any, params: Any = None) -> Any:
        if refuses(str(sql), params):
            raise error
        return execute(cursor, sql, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CursorWrapper, "execute", look)
        yield


def is_storing(sql: str) -> bool:
    """Return True if a worker stores what came of tasks, or asks if the database is there."""
    return re.search('task_output"? =', sql) is not None or sql == "SELECT 1"


@contextmanager
def locks_and_writes() -> Iterator[list[str]]:
    """What the statements of the block do on PostgreSQL, in order: "lock", "lock in order" where
    that is of the keys, and "write"."""
    steps: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        if "FOR NO KEY UPDATE" in sql:
            is_in_order = re.search(r'ORDER BY ([^ ]*"id" ASC|1 ASC|t.id)\s+FOR NO KEY UPDATE', sql)
            steps.append("lock in order" if is_in_order else "lock")
        if sql.lstrip().startswith(("UPDATE", "INSERT", "WITH", "DELETE")):
            steps.append("write")
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield steps


@contextmanager
def instances_made() -> Iterator[list[Any]]:
    """The model instances that are made in the block."""
    made: list[Any] = []
    post_init.connect(lambda **what: made.append(what), weak=False, dispatch_uid="made")
    try:
        yield made
    finally:
        post_init.disconnect(dispatch_uid="made")
