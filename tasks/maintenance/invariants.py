"""The invalid states of tasks, and the repair of each.

    expired          running, the deadline passed             recovered (``Task.objects.recover``)
    holder_gone      running, its worker gone                 reported: the deadline decides
    kept_slot        a slot, and not running                  the slot is freed
    kept_key         a unique key beyond its lifetime         the key is freed
    open_attempt     not running, the lease still open        the lease is closed
    unplanned        a schedule without a next moment         the next moment is computed
    no_worker        due, in an open queue nobody serves      reported
    unknown_task     due, and no worker has code for it       reported
    unseen_cancel    to be cancelled, and waiting             cancelled
    left_behind      open, its parent stopped                 cancelled, as its children
    ignored_cancel   to be cancelled, but still running       reported: code cannot be killed

A constraint of the table refuses some of these (``guard``). They are searched for nevertheless:
a constraint may be dropped, added without a check of existing rows, or lost in a restore.

Repairs are conditional updates of rows that nobody has locked. So any number of processes may
repair at a time, and a row that has become valid meanwhile stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, ClassVar

from django.db import models, transaction
from django.db.models import Case, Count, Exists, F, Min, OuterRef, Q, Subquery, When
from django.db.models.functions import Least

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_scalars
from leasing.db.dialects import lock
from leasing.functions import DbNow, after
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.exceptions import TaskError
from tasks.models import Queue, Schedule, Task, TaskStatus, UniqueFor, Worker, WorkerState
from tasks.querysets import SWEEP_BATCH, ScheduleQuerySet, TaskQuerySet
from tasks.querysets.base import CANCEL_REQUESTED
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


class Invariant:
    """A state that must not be. Subclasses say which rows are in it."""

    kind: ClassVar[str]
    what: ClassVar[str]
    #: The effect of ``repair``, in a few words; empty: violations are only reported.
    remedy: str = ""
    #: The constraint that refuses such a row.
    guard: ClassVar[str] = ""

    def violations(self) -> models.QuerySet[Any]:
        """The rows that are in this state now."""
        raise NotImplementedError

    def candidates(self) -> models.QuerySet[Any]:
        """Rows among which these are, where that is known with less."""
        return self.violations()

    def columns(self) -> dict[str, Any]:
        """Return the columns that a repair writes."""
        raise NotImplementedError

    def find(self, limit: int = MAX_COUNTED) -> list[Any]:
        """Rows in this state, the oldest first; nothing is changed."""
        return list(self.violations().order_by("pk")[:limit])

    def repair(self) -> int:
        """Put right every row that nobody has locked. Returns how many."""
        repaired = 0
        while True:
            found, cured = self._repair_some()
            repaired += cured
            if found < SWEEP_BATCH or not cured:
                return repaired

    def _repair_some(self) -> tuple[int, int]:
        rows = self.violations()
        with transaction.atomic(using=rows.db):
            locked = lock(rows.order_by("pk"), skip_locked=True)
            keys = list(locked.values_list("pk", flat=True)[:SWEEP_BATCH])
            cured = [key for key in keys if rows.filter(pk=key).update(**self.columns())]
        for task in _tasks().filter(pk__in=cured).order_by("pk"):
            self.tell(task)
        return len(keys), len(cured)

    def tell(self, task: Task) -> None:
        """Tell of a repair."""
        happened("task.repaired", [task], kind=self.kind, remedy=self.remedy)


class Expired(Invariant):
    """Its holder is gone. Poison ends here: at the limit of its attempts the task is failed."""

    kind = "expired"
    what = "running after its lease expired"
    remedy = "set ready, or failed after its last attempt; its fencing token rises"

    def violations(self) -> TaskQuerySet:
        return _tasks().stuck()

    def repair(self) -> int:
        return in_batches(Task.objects.recover)


class HolderGone(Invariant):
    """Only the lease says who holds: a worker that cannot reach the database may still work."""

    kind = "holder_gone"
    what = "running on a worker that is gone; recovered when its lease expires"

    def violations(self) -> TaskQuerySet:
        absent = [WorkerState.GONE.value, WorkerState.STOPPED.value]
        workers: Any = Worker.objects.home().with_state()
        gone = workers.filter(state__in=absent)
        held = _tasks().running().filter(expires_at__gt=DbNow())
        return held.filter(holder__in=gone.values("name"))


class KeptSlot(Invariant):
    kind = "kept_slot"
    what = "not running, but still occupies a slot of its concurrency key"
    remedy = "slot freed"
    guard = "leasing_tasks_task_slot_state"

    def violations(self) -> TaskQuerySet:
        return _tasks().filter(slot__isnull=False).exclude(status=TaskStatus.RUNNING)

    def columns(self) -> dict[str, Any]:
        return {"slot": None}


class KeptKey(Invariant):
    """The guard refuses all but one: a window that is over has nobody who would end it then."""

    kind = "kept_key"
    what = "still holds a unique key that has ended"
    remedy = "unique key freed"
    guard = "leasing_tasks_task_key_period"

    def violations(self) -> TaskQuerySet:
        too_long = (
            Q(status__in=TaskStatus.ended(), unique_until=None)
            | Q(unique_until__lte=DbNow())
            | Q(unique_for=UniqueFor.WAITING, status=TaskStatus.RUNNING)
            | Q(unique_for=UniqueFor.RUNNING, status=TaskStatus.READY, attempts__gt=0)
        )
        return _tasks().filter(too_long, unique_key__isnull=False)

    def columns(self) -> dict[str, Any]:
        return {"unique_key": None}


class OpenAttempt(Invariant):
    """The lists of leases would show it as held, although nobody can do anything under it."""

    kind = "open_attempt"
    what = "not running, but its lease is still open"
    remedy = "lease closed"

    def violations(self) -> TaskQuerySet:
        # The deadline stands in no index; the moment of the claim does.
        lately = _tasks().filter(acquired_at__gte=after(-CLAIMED_WITHIN))
        open_ = lately.filter(released_at=None, expires_at__gt=DbNow())
        return open_.exclude(status=TaskStatus.RUNNING)

    def columns(self) -> dict[str, Any]:
        return {"released_at": DbNow(), "expires_at": Least(F("expires_at"), DbNow())}


class Unplanned(Invariant):
    """A scheduler that has the code plans it as it comes by; here it is done at once."""

    kind = "unplanned"
    what = "schedule is not paused but has no next due time"
    remedy = "next due time set"

    def violations(self) -> ScheduleQuerySet:
        schedules: ScheduleQuerySet = Schedule._default_manager.home()
        return schedules.filter(paused_at=None, next_at=None)

    def repair(self) -> int:
        keys = [schedule.pk for schedule in self.find()]
        for key in keys:
            with suppress(TaskError, ValueError):  # the schedulers say what is wrong with it
                self.violations().serve(key)
        return len(keys) - self.violations().filter(pk__in=keys).count()


class NoWorker(Invariant):
    kind = "no_worker"
    what = "due, in a queue that is not paused and that no worker serves"

    def violations(self) -> TaskQuerySet:
        paused = Queue._default_manager.home().paused()
        # Remote workers send no heartbeats: they are seen while they hold tasks.
        held = _tasks().running().unexpired().order_by()
        unserved = self.candidates().exclude(queue__in=list(_served()))
        return unserved.exclude(queue__in=paused.values("name")).exclude(
            queue__in=held.values("queue")
        )

    def candidates(self) -> TaskQuerySet:
        return _tasks().ready()


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


#: Tasks that a worker has claimed and given back, and will claim again. Those of a handler that
#: snoozed them are among them.
GIVEN_BACK = Q(
    status=TaskStatus.READY,
    started_at__isnull=False,
    scheduled_at__lte=after(UNKNOWN_DELAY),
    grants__gt=F("attempts"),
)


class UnknownName(Invariant):
    """Workers that lack the code give the task back for a while, so it is looked for then too."""

    kind = "unknown_task"
    what = "due, but no worker of its queue has its handler"

    def violations(self) -> TaskQuerySet:
        unknown = Q(pk__in=[])
        for queue, names in self._counted().items():
            unknown |= Q(queue=queue, name__in=list(names))
        return self.candidates().filter(unknown)

    def candidates(self) -> TaskQuerySet:
        return _tasks().filter(status=TaskStatus.READY, scheduled_at__lte=after(UNKNOWN_DELAY))

    def by_name(self) -> dict[str, Unknown]:
        """Return these tasks by name, of MAX_NAMED names, the most first."""
        found: dict[str, Unknown] = {}
        for names in self._counted().values():
            for name, unknown in names.items():
                found[name] = found[name] + unknown if name in found else unknown
        most = sorted(found.items(), key=lambda item: -item[1].count)
        return dict(most[:MAX_NAMED])

    def put_off(self) -> dict[str, tuple[int, datetime]]:
        """Return, by queue, the number of these tasks that workers have given back and that are
        scheduled for the next minute, and since when the first that they gave back is due."""
        served = _served()
        # Of one that never began an attempt, the first claim shows since when it was due; its due
        # time moves on with each claim.
        since = Case(When(attempts=0, then=F("started_at")), default=F("acquired_at"))
        rows: Any = _tasks().filter(GIVEN_BACK).order_by().values_list("queue", "name")
        later = Count("pk", filter=Q(scheduled_at__gt=DbNow()))
        found: dict[str, tuple[int, datetime]] = {}
        for queue, name, count, first in rows.annotate(later=later, since=Min(since)):
            if queue in served and name not in served[queue].names:
                others, since_others = found.get(queue, (0, first))
                found[queue] = others + count, min(since_others, first)
        return found

    def _counted(self) -> dict[str, dict[str, Unknown]]:
        """Return these tasks by queue and name, of MAX_NAMES names. The names that tasks have are
        compared here, for they are few: those that workers have, times their queues, may be more
        than a statement can have parameters."""
        served = _served()
        rows: Any = self.candidates().order_by().values_list("queue", "name")
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


class UnseenCancel(Invariant):
    """Its holder gave it back, or died, before it heard."""

    kind = "unseen_cancel"
    what = "waiting, although its cancellation was requested"
    remedy = "cancelled"

    def violations(self) -> TaskQuerySet:
        asked = _tasks().filter(cancel_requested_at__isnull=False)
        return asked.filter(status=TaskStatus.READY)

    def columns(self) -> dict[str, Any]:
        return {"status": TaskStatus.CANCELLED, **closing()}

    def tell(self, task: Task) -> None:
        super().tell(task)
        _tasks()._tell_cancelled(task)


class LeftBehind(Invariant):
    """Enqueued while its parent was being cancelled, or the process that cancelled both died."""

    kind = "left_behind"
    what = "open and not asked to stop, although its parent is"
    remedy = "cancelled with its parent, and its children too"

    def violations(self) -> TaskQuerySet:
        # By their parents' keys, which are few: a join is planned for as many as were cancelled,
        # whose children were too, and would read the whole table.
        parents = list(self.candidates().values_list("pk", flat=True)[:MAX_COUNTED])
        return _open_children().filter(parent__in=parents)

    def candidates(self) -> TaskQuerySet:
        """The parents. Compared with None a subquery is no join: one look at the index of children
        for each task that was stopped lately."""
        child = _open_children().filter(parent=OuterRef("pk")).order_by().values("pk")[:1]
        parents: TaskQuerySet = _tasks().stopped().alias(child=Subquery(child))
        return parents.exclude(child=None)

    def repair(self) -> int:
        keys, cancelled = [task.pk for task in self.find()], 0
        while some := self.violations().cancel("recovery", WITH_PARENT):
            cancelled += some
        for task in _tasks().filter(CANCEL_REQUESTED, pk__in=keys).order_by("pk"):
            self.tell(task)
        return cancelled


class IgnoredCancel(Invariant):
    kind = "ignored_cancel"
    what = "still running, although its cancellation was requested; a thread cannot be killed"

    def violations(self) -> TaskQuerySet:
        return _tasks().running().filter(cancel_requested_at__lte=after(-CANCEL_GRACE))


#: In the order in which they are looked for: what is repaired first may heal what comes later.
INVARIANTS: Sequence[Invariant] = (
    Expired(),
    HolderGone(),
    KeptSlot(),
    KeptKey(),
    OpenAttempt(),
    Unplanned(),
    UnseenCancel(),
    LeftBehind(),
    IgnoredCancel(),
    NoWorker(),
    UnknownName(),
)


def is_anything_amiss() -> bool:
    """Return True if any row violates an invariant, or may: by one query, for it is rare."""
    using = leasing_settings.DATABASE
    found = query_scalars(
        Task, using, "amiss", lambda: {each.kind: Exists(each.candidates()) for each in INVARIANTS}
    )
    return any(found.values())


def in_batches(recover: Callable[[int], int], until: float = math.inf) -> int:
    """Recover all there is, some at a time, or what can be ``until`` then by the holder's clock.
    Returns how many."""
    total = 0
    while True:
        recovered = recover(SWEEP_BATCH)
        total += recovered
        if recovered < SWEEP_BATCH or clock() >= until:
            return total


def _tasks() -> TaskQuerySet:
    tasks: TaskQuerySet = Task.objects.home().defer(*PAYLOAD)
    return tasks


def _open_children() -> TaskQuerySet:
    return _tasks().filter(status__in=OPEN, cancel_requested_at=None)


def _served() -> dict[str, Served]:
    """Return the queues that workers serve who were seen lately."""
    served: dict[str, Served] = {}
    rows = Worker.objects.home().present().only("queues", "handlers", "started_at")
    for worker in rows.order_by("started_at"):
        for queue in worker.queues:
            names = served.get(queue, Served()).names
            served[queue] = Served(names | set(worker.handlers), worker.started_at)
    return served
