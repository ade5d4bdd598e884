"""Workers, and what each of them does now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from django.urls import reverse

from leasing.humanize import in_a_row
from tasks.diagnosis.slots import Slots, slots_of
from tasks.models import Task, TaskAttempt, Worker, WorkerState
from tasks.models.worker import ProcessEnd

#: The most running tasks that are read for one page of workers.
SHOWN = 1_000
#: The number of tasks of each worker that a list of workers names.
LISTED = 3
#: The latest claims, and the latest attempts that failed, that are searched for those of one
#: worker: neither has an index by holder, which every claim would pay for.
LOOKED_THROUGH = 1_000
#: The number of those rows that are shown.
REMEMBERED = 20


@dataclass(frozen=True)
class Fleet:
    """A parent, above its workers in a list."""

    name: str
    #: The number of its workers that stand below.
    listed: int
    #: The number of workers that these have replaced.
    restarts: int


class _HoldsTasks:
    """A row with tasks, of which a list of workers shows the first."""

    tasks: list[Task]

    @property
    def first_tasks(self) -> list[Task]:
        return self.tasks[:LISTED]

    @property
    def more_tasks(self) -> int:
        return max(0, len(self.tasks) - LISTED)


@dataclass(frozen=True)
class WorkerRow(_HoldsTasks):
    """A worker with the tasks that it holds."""

    worker: Worker = field(compare=False)
    tasks: list[Task]
    #: Tasks that a stopped process of the same name held, which no process runs.
    left: list[Task] = field(default_factory=list)
    #: Its parent, if it is the first below that in a list.
    under: Fleet | None = None
    #: The shown values of the worker. The seconds since a live one was seen are left out: a page
    #: that showed them would change with each heartbeat.
    shown: list[object] = field(init=False)

    def __post_init__(self) -> None:
        worker = self.worker
        seen = None if self.is_live else worker.last_seen_at
        shown = [worker.pk, worker.name, self.state, worker.pid, worker.started_at, seen]
        shown += worker.queues, self.slots, worker.stopped_at, worker.death, worker.ends
        object.__setattr__(self, "shown", shown)

    @property
    def state(self) -> str:
        return state_of(self.worker)

    @property
    def crash(self) -> ProcessEnd | None:
        """The end of the process before this one, if it was not clean."""
        before = self.worker.former_ends[:1]
        return next((end for end in before if not end.is_clean), None)

    @property
    def first_left(self) -> list[Task]:
        return self.left[:LISTED]

    @property
    def more_left(self) -> int:
        return max(0, len(self.left) - LISTED)

    @property
    def slots(self) -> list[Slots]:
        """Return its slots, a line for each kind."""
        held = Counter(self.worker.kind_of(task.name) for task in self.tasks)
        return slots_of(self.worker, held)

    @property
    def prefetched(self) -> int:
        """Return the number of tasks that it claimed before a slot was free."""
        return sum(each.prefetched for each in self.slots)

    @property
    def running(self) -> int:
        """Return the number of tasks that it runs."""
        return len(self.tasks) - self.prefetched

    @property
    def is_live(self) -> bool:
        return self.state == WorkerState.LIVE


@dataclass(frozen=True)
class Past:
    """The recent work of a worker, as far as stored rows show it."""

    claimed: list[Task]
    attempts: list[TaskAttempt]


def state_of(worker: Worker) -> str:
    """Return the WorkerState of a ``worker`` that was read ``with_state()``."""
    return str(worker.state)  # type: ignore[attr-defined]


def with_tasks(workers: Iterable[Worker]) -> list[WorkerRow]:
    """Return each of ``workers`` with its running tasks, read by one query. A second query reads
    the handlers of workers that hold tasks and have several kinds of slots: they tell which slots
    the tasks occupy."""
    workers = list(workers)
    names = [worker.name for worker in workers]
    held: defaultdict[str, list[Task]] = defaultdict(list)
    running = Task.objects.home().running().filter(holder__in=names)
    for task in running.only(
        "name", "queue", "status", "holder", "acquired_at", "expires_at", "ttl", "attempts"
    ).order_by("pk")[:SHOWN]:
        held[task.holder].append(task)
    _read_handlers([each for each in workers if held[each.name] and len(each.slots) > 1])
    return [_row_of(worker, held[worker.name]) for worker in workers]


@dataclass(frozen=True)
class RemoteRow(_HoldsTasks):
    """A holder that sends no heartbeats of its own, such as a remote worker: it is known by the
    tasks that it holds."""

    name: str
    tasks: list[Task]


def remote_rows() -> list[RemoteRow]:
    """Return the holders of running tasks that are no workers, by their names."""
    known = Worker.objects.home().values("name")
    running = Task.objects.home().running().exclude(holder__in=known)
    columns = "name", "status", "holder", "acquired_at", "expires_at"
    tasks = running.only(*columns).order_by("holder", "pk")[:SHOWN]
    return [RemoteRow(name, list(held)) for name, held in groupby(tasks, lambda task: task.holder)]


def by_fleet(rows: Iterable[WorkerRow]) -> list[WorkerRow]:
    """Return ``rows`` with those of one parent together, at the place of the first of them and by
    their number."""
    fleets: dict[object, list[WorkerRow]] = {}
    for row in rows:
        fleets.setdefault(row.worker.fleet or row.worker.pk, []).append(row)
    return [row for some in fleets.values() for row in _under_their_parent(some)]


def _under_their_parent(rows: list[WorkerRow]) -> list[WorkerRow]:
    name = rows[0].worker.fleet
    if name is None:
        return rows
    rows.sort(key=lambda row: (row.worker.fleet_index or 0, -row.worker.pk))
    restarts = {row.worker.fleet_index: row.worker.fleet_restarts or 0 for row in reversed(rows)}
    fleet = Fleet(name, len(rows), sum(restarts.values()))
    return [replace(rows[0], under=fleet), *rows[1:]]


def siblings_of(worker: Worker) -> list[WorkerRow]:
    """Return the other workers of the parent of ``worker`` that have not stopped, by their
    number."""
    if worker.fleet is None:
        return []
    rows: Any = Worker.objects.home().defer("handlers")
    mine = rows.filter(fleet=worker.fleet, stopped_at=None).exclude(pk=worker.pk)
    return [WorkerRow(each, []) for each in mine.with_state().order_by("fleet_index", "pk")]


def url_of_holder(name: str) -> str:
    """Return the URL of the worker called ``name``; "" if there is none."""
    pk = Worker.objects.home().filter(name=name).values_list("pk", flat=True).first()
    return reverse("leasing_tasks:worker", args=[pk]) if pk else ""


def _read_handlers(workers: list[Worker]) -> None:
    """Read the column ``handlers`` of ``workers``, which lists leave out."""
    deferred = {
        worker.pk: worker for worker in workers if "handlers" in worker.get_deferred_fields()
    }
    if not deferred:
        return
    rows = Worker.objects.home().filter(pk__in=deferred)
    handlers = dict(rows.values_list("pk", "handlers"))
    for pk, worker in deferred.items():
        worker.handlers = handlers.get(pk, {})  # {} if its row has gone meanwhile


def _row_of(worker: Worker, held: list[Task]) -> WorkerRow:
    own = [task for task in held if task.acquired_at and task.acquired_at >= worker.started_at]
    return WorkerRow(worker, own, [task for task in held if task not in own])


def past_of(worker: Worker) -> Past:
    """Return those of the latest claims and failures of all workers that are of ``worker``."""
    tasks = Task.objects.home()
    claims = tasks.filter(acquired_at__isnull=False).exclude(status="running")
    attempts: Any = TaskAttempt.objects.using(tasks.db)
    failures = attempts.order_by("-pk")
    return Past(
        list(
            tasks.filter(pk__in=_of(worker, claims.order_by("-acquired_at", "-pk")))
            .exclude(status="running")
            .only("name", "status", "acquired_at", "processed_at", "scheduled_at", "attempts")
            .order_by("-acquired_at", "-pk")
        ),
        list(
            attempts.filter(pk__in=_of(worker, failures))
            .select_related("task")
            .only(
                *("number", "outcome", "error", "started_at", "ended_at", "refused_at"),
                *("refused_verb", "task__name"),
            )
            .order_by("-pk")
        ),
    )


def _of(worker: Worker, rows: Any) -> list[int]:
    latest = rows.values_list("pk", "holder")[:LOOKED_THROUGH]
    return [pk for pk, holder in latest if holder == worker.name][:REMEMBERED]


def if_frozen(workers: Sequence[Worker]) -> str:
    """Return what to do if ``workers``, which are late or gone, are frozen."""
    processes = in_a_row([f"process {worker.pid} on {worker.hostname}" for worker in workers])
    exist, they, them = "exist", "they are", "them"
    if len(workers) == 1:
        exist, they, them = "exists", "it is", "it"
    return (
        f"If {processes} still {exist}, {they} frozen: end {them}, since a supervisor restarts "
        "only what has ended."
    )
