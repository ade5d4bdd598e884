"""The invalid states of tasks, and the repair of each.

    expired          running, the deadline passed             recovered (``Task.objects.recover``)
    holder_gone      running, its worker gone                 reported: the deadline decides
    kept_key         a unique key whose window is over        the key is freed
    open_attempt     not running, the lease still open        the lease is closed
    unplanned        a schedule without a next moment         the next moment is computed
    unseen_cancel    to be cancelled, and waiting             cancelled
    left_behind      open, its parent stopped                 cancelled, as its children
    ignored_cancel   to be cancelled, but still running       reported: code cannot be killed
    no_worker        due, in an open queue nobody serves      reported
    unknown_task     due, and no worker has code for it       reported

What a constraint of the table refuses is not searched for.

Repairs are conditional updates of rows that nobody has locked. So any number of processes may
repair at a time, and a row that has become valid meanwhile stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.db import transaction
from django.db.models import Count, Exists, F, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Least

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_scalars
from leasing.db.dialects import lock
from leasing.functions import DbNow, after
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.exceptions import TaskError
from tasks.models import Queue, Schedule, Task, TaskStatus, Worker, WorkerState
from tasks.querysets import SWEEP_BATCH, ScheduleQuerySet, TaskQuerySet
from tasks.querysets.base import (
    CANCEL_REQUESTED,
    GIVEN_BACK,
    GIVEN_BACK_SINCE,
    STOPPED_WITHIN,
)
from tasks.querysets.operator import OPEN
from tasks.querysets.transitions import WITH_PARENT, closing
from tasks.registry import UNKNOWN_DELAY

#: Violations of one invariant that are counted, and that are named.
MAX_COUNTED, MAX_NAMED = 1000, 10
#: Unknown names that are looked for at a time.
MAX_NAMES = 500
#: The time that a holder may take to obey a cancellation: a renewal, and a step of its handler.
CANCEL_GRACE = timedelta(seconds=60)
#: The age of the claims that are searched for leases that were left open.
CLAIMED_WITHIN = timedelta(days=1)
#: Columns that no report of a task needs.
PAYLOAD = ("task_data", "task_output", "progress", "checkpoint")


@dataclass(frozen=True)
class Finding:
    """The violations of one invariant that were found, and their repair."""

    kind: str
    what: str
    #: Empty for what is only reported.
    remedy: str
    #: The number of violations, counted up to MAX_COUNTED.
    count: int
    repaired: int = 0
    #: The keys of the first of them.
    keys: list[int] = field(default_factory=list)
    #: Their model: "task", "schedule".
    model: str = "task"


def set_columns(invariant: Invariant) -> int:
    """Repair by an update of every row that nobody has locked, by ``columns``. Return how many."""
    total, cured = 0, [0]
    while cured:
        rows = invariant.violations()
        with transaction.atomic(using=rows.db):
            locked = lock(rows.order_by("pk"), skip_locked=True)
            keys = list(locked.values_list("pk", flat=True)[:SWEEP_BATCH])
            cured = [key for key in keys if rows.filter(pk=key).update(**invariant.columns())]
        invariant.tell(cured)
        total += len(cured)
        if len(keys) < SWEEP_BATCH:
            break
    return total


@dataclass(frozen=True)
class Invariant:
    """A state that must not be."""

    kind: str
    what: str
    #: The rows that are in this state now.
    violations: Callable[[], QuerySet[Any]]
    #: The effect of ``repair``, in a few words; empty: violations are only reported.
    remedy: str = ""
    #: Puts rows right, and returns how many; and the columns that the usual repair writes.
    repair: Callable[[Invariant], int] = set_columns
    columns: Callable[[], dict[str, Any]] = dict
    #: Called with each repaired task, after its event.
    then: Callable[[Task], object] = lambda task: None
    #: Rows among which these are, where that is known with less.
    candidates: Callable[[], QuerySet[Any]] | None = None

    def find(self) -> list[Any]:
        """Rows in this state, the oldest first, up to MAX_COUNTED; nothing is changed."""
        return list(self.violations().order_by("pk")[:MAX_COUNTED])

    def tell(self, repaired: list[int]) -> None:
        """Tell of the repair of the tasks with these keys."""
        for task in _tasks().filter(pk__in=repaired).order_by("pk"):
            happened("task.repaired", [task], kind=self.kind, remedy=self.remedy)
            self.then(task)


def _tasks() -> TaskQuerySet:
    tasks: TaskQuerySet = Task.objects.home().defer(*PAYLOAD)
    return tasks


def _on_gone_workers() -> TaskQuerySet:
    absent = [WorkerState.GONE.value, WorkerState.STOPPED.value]
    workers: Any = Worker.objects.home().with_state()
    held = _tasks().running().filter(expires_at__gt=DbNow())
    return held.filter(holder__in=workers.filter(state__in=absent).values("name"))


def _open_attempts() -> TaskQuerySet:
    # The deadline stands in no index; the moment of the claim does.
    lately = _tasks().filter(acquired_at__gte=after(-CLAIMED_WITHIN))
    open_ = lately.filter(released_at=None, expires_at__gt=DbNow())
    return open_.exclude(status=TaskStatus.RUNNING)


def _unplanned() -> ScheduleQuerySet:
    schedules: ScheduleQuerySet = Schedule._default_manager.home()
    return schedules.filter(paused_at=None, next_at=None)


def _plan(invariant: Invariant) -> int:
    """Plan at once what a scheduler that has the code would plan as it comes by."""
    keys = [schedule.pk for schedule in invariant.find()]
    for key in keys:
        with suppress(TaskError, ValueError):  # the schedulers say what is wrong with it
            _unplanned().serve(key)
    return len(keys) - _unplanned().filter(pk__in=keys).count()


def _open_children() -> TaskQuerySet:
    return _tasks().filter(status__in=OPEN, cancel_requested_at=None)


def _parents_of_open_children() -> TaskQuerySet:
    # Compared with None a subquery is no join: one look at the index of children for each task that
    # was stopped lately.
    child = _open_children().filter(parent=OuterRef("pk")).order_by().values("pk")[:1]
    parents: TaskQuerySet = _tasks().stopped().alias(child=Subquery(child))
    return parents.exclude(child=None)


def _left_behind() -> TaskQuerySet:
    # By their parents' keys, which are few: a join is planned for as many as were cancelled, whose
    # children were too, and would read the whole table.
    parents = list(_parents_of_open_children().values_list("pk", flat=True)[:MAX_COUNTED])
    return _open_children().filter(parent__in=parents)


def _cancel_children(invariant: Invariant) -> int:
    keys, cancelled = [task.pk for task in invariant.find()], 0
    while some := _left_behind().cancel("recovery", WITH_PARENT):
        cancelled += some
    asked = _tasks().filter(CANCEL_REQUESTED, pk__in=keys)
    invariant.tell(list(asked.values_list("pk", flat=True)))
    return cancelled


def _unserved() -> TaskQuerySet:
    paused = Queue._default_manager.home().paused()
    # Remote workers send no heartbeats: they are seen while they hold tasks.
    held = _tasks().running().unexpired().order_by()
    unserved = _tasks().ready().exclude(queue__in=list(_served()))
    return unserved.exclude(queue__in=paused.values("name")).exclude(queue__in=held.values("queue"))


# Unknown names. Workers that lack the code give a task back for a while, so it is looked for then
# too.


@dataclass(frozen=True)
class Served:
    """A queue that workers serve who were seen lately."""

    #: The names that they have code for.
    names: set[str] = field(default_factory=set)
    #: The latest start of one.
    started_at: datetime | None = None


@dataclass(frozen=True)
class Unknown:
    """Tasks of one name that no worker of their queues has a handler for."""

    count: int
    #: True if all of these workers started before the first of the tasks was enqueued.
    are_older: bool = False

    def __add__(self, other: Unknown) -> Unknown:
        return Unknown(self.count + other.count, self.are_older and other.are_older)


def _served() -> dict[str, Served]:
    """Return the queues that workers serve who were seen lately."""
    served: dict[str, Served] = {}
    rows = Worker.objects.home().present().only("queues", "handlers", "started_at")
    for worker in rows.order_by("started_at"):
        for queue in worker.queues:
            names = served.get(queue, Served()).names
            served[queue] = Served(names | set(worker.handlers), worker.started_at)
    return served


def _due_soon() -> TaskQuerySet:
    return _tasks().filter(status=TaskStatus.READY, scheduled_at__lte=after(UNKNOWN_DELAY))


def _count_unknown(tasks: TaskQuerySet) -> dict[str, dict[str, Unknown]]:
    """Return those of ``tasks`` that no worker of their queue has a handler for, by queue and name,
    of MAX_NAMES names. The names that tasks have are compared here, for they are few: those that
    workers have, times their queues, may be more than a statement can have parameters."""
    served = _served()
    rows: Any = tasks.order_by().values_list("queue", "name")
    found: dict[str, dict[str, Unknown]] = {}
    lacking = (
        row
        for row in rows.annotate(Count("pk"), Min("created_at"))
        if row[0] in served and row[1] not in served[row[0]].names
    )
    for queue, name, count, created_at in islice(lacking, MAX_NAMES):
        started_at = served[queue].started_at
        are_older = started_at is not None and started_at < created_at
        found.setdefault(queue, {})[name] = Unknown(count, are_older)
    return found


def _unknown() -> TaskQuerySet:
    unknown = Q(pk__in=[])
    for queue, names in _count_unknown(_due_soon()).items():
        unknown |= Q(queue=queue, name__in=list(names))
    return _due_soon().filter(unknown)


def unknown_by_name(*, given_back: bool = False) -> dict[str, Unknown]:
    """Return the tasks that no worker of their queue has a handler for, by name, of MAX_NAMES
    names, the most first.

    Args:
        given_back: True for those alone that workers have put off: few, however many wait.
    """
    found: dict[str, Unknown] = {}
    put_off = _tasks().filter(GIVEN_BACK, scheduled_at__gt=DbNow())
    for names in _count_unknown(put_off if given_back else _due_soon()).values():
        for name, unknown in names.items():
            found[name] = found[name] + unknown if name in found else unknown
    return dict(sorted(found.items(), key=lambda item: -item[1].count))


def unknown_put_off() -> dict[str, tuple[int, datetime]]:
    """Return, by queue, the number of these tasks that workers have given back and that are
    scheduled for the next minute, and since when the first that they gave back is due."""
    served = _served()
    rows: Any = _tasks().filter(GIVEN_BACK).order_by().values_list("queue", "name")
    later = Count("pk", filter=Q(scheduled_at__gt=DbNow()))
    found: dict[str, tuple[int, datetime]] = {}
    for queue, name, count, first in rows.annotate(later=later, since=Min(GIVEN_BACK_SINCE)):
        if queue in served and name not in served[queue].names:
            others, since_others = found.get(queue, (0, first))
            found[queue] = others + count, min(since_others, first)
    return found


#: Checked often by itself: what is cancelled soon ends.
LEFT_BEHIND = Invariant(
    # Enqueued while its parent was being cancelled, or the process that cancelled both died.
    "left_behind",
    "open and not asked to stop, although its parent is",
    _left_behind,
    "cancelled with its parent, and its children too",
    _cancel_children,
    candidates=_parents_of_open_children,
)
#: In the order in which they are looked for: what is repaired first may heal what comes later.
INVARIANTS = (
    # Its holder is gone. Poison ends here: at the limit of its attempts the task is failed.
    Invariant(
        "expired",
        "running after its lease expired",
        lambda: _tasks().stuck(),
        "set ready, or failed after its last attempt; its fencing token rises",
        lambda invariant: in_batches(Task.objects.recover),
    ),
    # Only the lease says who holds: a worker that cannot reach the database may still work.
    Invariant(
        "holder_gone",
        "running on a worker that is gone; recovered when its lease expires",
        _on_gone_workers,
    ),
    # A window that is over has nobody who would end it then.
    Invariant(
        "kept_key",
        "still holds a unique key whose window is over",
        lambda: _tasks().filter(unique_key__isnull=False, unique_until__lte=DbNow()),
        "unique key freed",
        columns=lambda: {"unique_key": None},
    ),
    # The lists of leases would show it as held, although nobody can do anything under it.
    Invariant(
        "open_attempt",
        "not running, but its lease is still open",
        _open_attempts,
        "lease closed",
        columns=lambda: {"released_at": DbNow(), "expires_at": Least(F("expires_at"), DbNow())},
    ),
    Invariant(
        "unplanned",
        "schedule is not paused but has no next due time",
        _unplanned,
        "next due time set",
        _plan,
    ),
    # Its holder gave it back, or died, before it heard.
    Invariant(
        "unseen_cancel",
        "waiting, although its cancellation was requested",
        lambda: _tasks().filter(cancel_requested_at__isnull=False, status=TaskStatus.READY),
        "cancelled",
        columns=lambda: {"status": TaskStatus.CANCELLED, **closing()},
        then=lambda task: _tasks()._tell_cancelled(task),
    ),
    LEFT_BEHIND,
    Invariant(
        "ignored_cancel",
        "still running, although its cancellation was requested; a thread cannot be killed",
        lambda: _tasks().running().filter(cancel_requested_at__lte=after(-CANCEL_GRACE)),
    ),
    Invariant(
        "no_worker",
        "due, in a queue that is not paused and that no worker serves",
        _unserved,
        candidates=lambda: _tasks().ready(),
    ),
    Invariant(
        "unknown_task",
        "due, but no worker of its queue has its handler",
        _unknown,
        candidates=_due_soon,
    ),
)


def is_anything_amiss() -> bool:
    """Return True if any row violates an invariant, or may: by one query, for it is rare."""
    using = leasing_settings.DATABASE
    found = query_scalars(
        Task,
        using,
        "amiss",
        lambda: {each.kind: Exists((each.candidates or each.violations)()) for each in INVARIANTS},
    )
    return any(found.values())


def is_anything_stopped() -> bool:
    """Return True if any task is ``stopped``, whose children may be left behind. Each part reads
    one row of an index, also where the planner takes the table for full of such tasks."""

    def latest() -> dict[str, Subquery]:
        lately = after(-STOPPED_WITHIN)
        cancelled = _tasks().filter(status=TaskStatus.CANCELLED, processed_at__gte=lately)
        asked = _tasks().running().filter(CANCEL_REQUESTED)
        return {
            "cancelled": Subquery(cancelled.order_by("-processed_at").values("pk")[:1]),
            "asked": Subquery(asked.order_by("pk").values("pk")[:1]),
        }

    return any(query_scalars(Task, leasing_settings.DATABASE, "stopped", latest).values())


def in_batches(recover: Callable[[int], int], until: float = math.inf) -> int:
    """Recover all there is, some at a time, or what can be ``until`` then by the holder's clock.
    Returns how many."""
    total = 0
    while True:
        recovered = recover(SWEEP_BATCH)
        total += recovered
        if recovered < SWEEP_BATCH or clock() >= until:
            return total
