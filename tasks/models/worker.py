"""Worker processes, relays, generators and others that send heartbeats."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import models, transaction
from django.db.models import Case, Q, Subquery, Value, When
from django.db.models.functions import Length

from leasing.db.dialects import take_write_lock
from leasing.db.routing import RoutedQuerySet
from leasing.functions import DbNow
from tasks.models.queue import Queue
from tasks.registry import Kind
from tasks.runtime.timing import USUAL


class WorkerState(models.TextChoices):
    """The state of a worker by its last heartbeat."""

    LIVE = "live"
    LATE = "late"
    GONE = "gone"
    STOPPED = "stopped"


class WorkerRole(models.TextChoices):
    """The role of a process that sends heartbeats."""

    WORKER = "worker"
    RECOVERY = "recovery"
    GENERATOR = "generator"
    #: A Celery worker: it runs only tasks that a message of the broker announces.
    CELERY = "celery"
    RELAY = "relay"

    @classmethod
    def running(cls) -> tuple[WorkerRole, ...]:
        """Return the roles that run tasks."""
        return (cls.WORKER, cls.CELERY)


#: The length of what a name has behind its label: a colon and eight digits.
DIGITS: Final = 9
#: Ends of a process that no parent has seen: it signed off, or, killed or cut off, it did not.
_STOPPED: Final = "stopped cleanly"
_UNSEEN: Final = "ended without signing off"


class ProcessEnd(NamedTuple):
    """The end of a process that a worker has succeeded."""

    pid: int
    started_at: datetime
    #: Its last sign of life, if nobody saw its end.
    at: datetime
    how: str

    @property
    def is_clean(self) -> bool:
        return self.how == _STOPPED


class WorkerQuerySet(RoutedQuerySet["Worker"]):
    """Worker processes, and others that send heartbeats: ``Worker.objects``."""

    def generators(self) -> WorkerQuerySet:
        """Return the processes that generate tasks, and their standbys."""
        return self.filter(role=WorkerRole.GENERATOR)

    def with_state(self) -> WorkerQuerySet:
        """Annotate ``state`` (a WorkerState) and ``now`` by the database's clock."""
        return self.annotate(
            now=DbNow(),
            state=Case(
                When(stopped_at__isnull=False, then=Value(WorkerState.STOPPED.value)),
                When(last_seen_at__lt=DbNow() - Worker.GONE_AFTER, then=Value("gone")),
                When(last_seen_at__lt=DbNow() - Worker.LATE_AFTER, then=Value("late")),
                default=Value(WorkerState.LIVE.value),
                output_field=models.CharField(),
            ),
        )

    def present(self) -> WorkerQuerySet:
        """Return the workers that were seen recently and have not stopped."""
        return self.filter(stopped_at=None, last_seen_at__gte=DbNow() - Worker.GONE_AFTER)

    def labelled(self, label: str) -> WorkerQuerySet:
        """Return the workers whose name is ``label`` and eight digits."""
        named = self.filter(name__startswith=f"{label}:")
        return named.alias(size=Length("name")).filter(size=len(label) + DIGITS)

    def called(self, name: str) -> WorkerQuerySet:
        """Return the worker called ``name``; if that is a label, its newest live process, or else
        its newest; if it is the name of a parent, that of each number, but for those that have
        stopped while others run."""
        if self.filter(name=name).exists():
            return self.filter(name=name)
        alive = (WorkerState.LIVE, WorkerState.LATE)
        rows: Any = self.filter(fleet=name) | self.filter(pk__in=self.labelled(name).values("pk"))
        newest: dict[int | None, Any] = {}
        for each in rows.with_state().order_by("pk"):
            other = newest.get(each.fleet_index)
            if other is None or each.state in alive or other.state not in alive:
                newest[each.fleet_index] = each
        found = list(newest.values())
        running = [each for each in found if each.stopped_at is None] or found
        return self.filter(pk__in=[each.pk for each in running])

    def register(self, name: str, **what: Any) -> None:
        """Record that a worker called ``name`` is there, where no row says so.

        Args:
            name: Its name, which no other process has.
            what: The columns to write.
        """
        seen: dict[str, Any] = {"last_seen_at": DbNow(), "stopped_at": None}
        with transaction.atomic(using=self.db):
            take_write_lock(self)
            self.get_or_create(name=name, defaults={"started_at": DbNow(), **seen, **what})
            self.succeed(name)
        Queue.objects.using(self.db).declare(what.get("queues", ()))

    def succeed(self, name: str) -> None:
        """Delete the rows of the processes before the worker called ``name`` that had its label on
        its host and have ended: its row has their ends from now on."""
        mine = self.filter(name=name)
        before = self.labelled(Worker(name=name).label).filter(
            hostname=Subquery(mine.values("hostname")), pk__lt=Subquery(mine.values("pk"))
        )
        gone = Q(last_seen_at__lt=DbNow() - Worker.GONE_AFTER)
        ended = list(before.filter(gone | Q(stopped_at__isnull=False)))
        if ended and (worker := mine.first()):
            mine.update(ends=_ends_of(ended, worker.former_ends))
            self.filter(pk__in=[each.pk for each in ended]).delete()

    def forget_gone(self) -> None:
        """Delete workers that have not been seen for a day."""
        self.filter(last_seen_at__lt=DbNow() - Worker.FORGOTTEN_AFTER).delete()

    def seen(self, name: str, **news: Any) -> int:
        """Record a heartbeat of the worker called ``name`` with the columns that have changed.
        Returns 0 if it has no row any more."""
        return self.filter(name=name).update(last_seen_at=DbNow(), stopped_at=None, **news)

    def sign_off_dead(self, name: str, death: str) -> int:
        """Note that the worker called ``name`` is gone: its parent has seen its ``death``."""
        mine = self.filter(name=name, stopped_at=None)
        return mine.update(stopped_at=DbNow(), death=death[:200])

    def sign_off(self, name: str) -> int:
        """Note that the worker called ``name`` has stopped."""
        return self.filter(name=name).update(last_seen_at=DbNow(), stopped_at=DbNow())


def _ends_of(workers: Iterable[Worker], known: Iterable[ProcessEnd]) -> list[ProcessEnd]:
    """Return the ends of ``workers`` and of those before them, and those that are ``known``, the
    latest first, for the row of their successor."""
    ends = [*known, *(end for worker in workers for end in (worker.end, *worker.former_ends))]
    latest = sorted(ends, key=lambda end: end.at, reverse=True)[: Worker.ENDS_KEPT]
    return [
        end._replace(started_at=end.started_at.isoformat(), at=end.at.isoformat())  # type: ignore[arg-type]
        for end in latest
    ]


class Worker(models.Model):
    """A worker process: what it serves, and when it was last seen."""

    SEEN_EVERY = timedelta(seconds=USUAL.seen_every)
    LATE_AFTER = timedelta(seconds=14)
    GONE_AFTER = timedelta(seconds=30)
    FORGOTTEN_AFTER = timedelta(days=1)
    #: The number of ends of its predecessors that a row has.
    ENDS_KEPT: Final = 10
    #: The kind of the slots of a Celery worker, whose pool runs handlers of every kind.
    POOL: Final = "pool"

    id = models.BigAutoField(primary_key=True)
    #: The holder's name on its tasks: a label and eight random digits.
    name = models.CharField(max_length=200, unique=True)
    role = models.CharField(
        max_length=9, choices=WorkerRole, default=WorkerRole.WORKER.value, db_default="worker"
    )
    hostname = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    queues = models.JSONField(default=list)
    #: The names of the tasks that it has code for, each with the kind of slot that runs it.
    handlers = models.JSONField(default=dict)
    #: The number of tasks that it can run at a time, by kind, of the kinds it has handlers for.
    slots = models.JSONField(default=dict)
    #: Of these, at its last heartbeat, slots that take no task although they run none: their
    #: handler runs on although its task has ended, or their event loop does not respond.
    blocked = models.JSONField(default=dict)
    #: True if it runs recovery.
    sweeps = models.BooleanField(default=True)
    #: The name of its parent, its number among the workers of that, and how many had this number
    #: before it; None: it has none.
    fleet = models.CharField(max_length=200, null=True, default=None)
    fleet_index = models.PositiveSmallIntegerField(null=True, default=None)
    fleet_restarts = models.PositiveIntegerField(null=True, default=None)
    #: Its death, where its parent has seen that: "was killed by signal 9".
    death = models.CharField(max_length=200, default="")
    #: The ends of its predecessors, as ``former_ends`` reads them: its row is in place of theirs.
    ends = models.JSONField(default=list)
    started_at = models.DateTimeField(db_default=DbNow())
    last_seen_at = models.DateTimeField(db_default=DbNow())
    stopped_at = models.DateTimeField(null=True, default=None)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """Return its name without the digits that each process has anew."""
        return self.name.rpartition(":")[0]

    @property
    def concurrency(self) -> int:
        """Return the number of its slots of all kinds."""
        return sum(self.slots.values())

    @property
    def end(self) -> ProcessEnd:
        """The end of its process, for a worker that has ended."""
        how = self.death or (_STOPPED if self.stopped_at else _UNSEEN)
        return ProcessEnd(self.pid, self.started_at, self.stopped_at or self.last_seen_at, how)

    @property
    def former_ends(self) -> list[ProcessEnd]:
        """The ends of the processes before this one, the latest first."""
        return [
            ProcessEnd(pid, datetime.fromisoformat(begin), datetime.fromisoformat(end), how)
            for pid, begin, end, how in self.ends
        ]

    def kind_of(self, name: str) -> str:
        """Return the kind of slot in which it runs tasks called ``name``. A thread gives back a
        task that has no handler here."""
        if len(self.slots) == 1:
            return str(next(iter(self.slots)))
        return str(self.handlers.get(name, Kind.THREAD.value))

    @property
    def runs_tasks(self) -> bool:
        return self.role in WorkerRole.running()
