"""Read the workers, queues and recent losses that a diagnosis needs in addition to the tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import Count, Min, OuterRef, Q, Subquery

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_instances, query_rows
from leasing.db.row_locks import RowLock, row_locks
from leasing.diagnosis.base import FLAPPING_WITHIN, FLAPS
from leasing.diagnosis.lease import waited_for
from leasing.functions import EPOCH, DbNow, after, database_now
from leasing.humanize import Sentence
from leasing.models import Lease
from leasing.web.badges import is_late
from leasing.web.cache import shared
from leasing.web.counts import Capped
from tasks.diagnosis.handlers import HandlerUse, usual
from tasks.diagnosis.slots import Slots, slots_of
from tasks.models import AttemptOutcome, Queue, Task, TaskAttempt, Worker, WorkerRole, WorkerState
from tasks.payload import MISMATCH
from tasks.querysets import TaskStatus
from tasks.querysets.compensation import key_of
from tasks.querysets.recovery import is_lost_with_worker

#: The greatest number of workers that are read.
MAX_WORKERS: Final = 1000
#: The greatest number of combinations of a holder, a name and a concurrency key that are read.
MAX_GROUPS: Final = 10_000
#: The greatest number of attempts that are read.
MAX_ATTEMPTS_READ: Final = 1_000
#: The greatest number of due tasks that are read to count those that wait for a key.
MAX_WAITING: Final = 10_000
#: Outcomes of attempts whose worker ended, rather than their handler.
_LOST: Final = (AttemptOutcome.LOST, AttemptOutcome.RETURNED)
#: Parts of the reasons for which a healthy worker gives back a task that it cannot run.
_NOT_BEGUN: Final = ("No handler is registered", "Another release may have enqueued it")
#: Outcomes of attempts after which a task is postponed without spending one.
_PUT_OFF: Final = (AttemptOutcome.RETURNED, AttemptOutcome.SNOOZED)


@dataclass(frozen=True)
class DiagnosisContext:
    """The workers that were seen recently, and their tasks: read once for many diagnoses."""

    now: datetime
    workers: dict[str, Worker]
    #: The number of tasks that each of them holds, by the kind of slot.
    held: dict[str, Counter[str]] = field(default_factory=dict)
    #: The number of tasks that each worker holds, by handler, with the moment of the first claim.
    busy: dict[str, dict[str, tuple[int, datetime]]] = field(default_factory=dict)
    paused: dict[str, Queue] = field(default_factory=dict)
    #: The number of running tasks of each concurrency key.
    keys: Counter[str] = field(default_factory=Counter)
    #: The running tasks of the keys that tasks wait for, and the number of tasks that wait for the
    #: keys of running ones.
    key_holders: dict[str, list[Task]] = field(default_factory=dict)
    key_waiters: dict[str, Capped] = field(default_factory=dict)
    #: The queues of tasks that somebody holds: remote workers send no heartbeats.
    held_queues: frozenset[str] = frozenset()
    #: The holders that recently lost a task, by its id, if there were several; each with True if
    #: it died or was silent.
    losses: dict[int, list[tuple[str, bool]]] = field(default_factory=dict)
    #: The reasons for which tasks were postponed, by their ids, as far as a reason was stored.
    put_off: dict[int, str] = field(default_factory=dict)
    #: The usual durations of the handlers of running tasks, by name.
    usual: dict[str, HandlerUse] = field(default_factory=dict)
    #: The waits of workers for named leases, with the holders of these, by the workers' names.
    lease_waits: dict[str, Sentence] = field(default_factory=dict)
    #: The sessions that have locked the rows of late tasks, by id.
    locks: dict[int, RowLock] = field(default_factory=dict)
    #: The compensations of failed tasks, by the ids of these.
    undoing: dict[int, Task] = field(default_factory=dict)

    @property
    def someone_sweeps(self) -> bool:
        return any(worker.sweeps for worker in self.workers.values())

    def serving(self, queue: str) -> list[Worker]:
        return [worker for worker in self.workers.values() if queue in worker.queues]

    @property
    def relays(self) -> list[Worker]:
        """Return the live relays."""
        return [
            w for w in self.workers.values() if w.role == WorkerRole.RELAY and self.is_live(w.name)
        ]

    def slots_for(self, name: str, workers: Iterable[Worker]) -> list[Slots]:
        """Return the slots of ``workers`` that run tasks called ``name``."""
        return [
            slots
            for worker in workers
            for slots in slots_of(worker, self.held.get(worker.name, {}))
            if slots.kind == worker.kind_of(name)
        ]

    def is_replaced(self, task: Task) -> bool:
        """Return True if another process has started under the name of the holder of ``task``, and
        no heartbeat for the task has arrived since."""
        worker, seen_at = self.workers.get(task.holder), task.renewed_at or task.acquired_at
        return worker is not None and seen_at is not None and seen_at < worker.started_at

    def is_live(self, name: str) -> bool:
        worker = self.workers.get(name)
        return worker is not None and getattr(worker, "state", "") == WorkerState.LIVE


def read_context(
    tasks: Iterable[Task] = (), now: datetime | None = None, *, fresh: bool = True
) -> DiagnosisContext:
    """Read what ``diagnose`` needs in addition to ``tasks``: four queries, and one each if some of
    the tasks were claimed often, were postponed, wait for a key, run with a key, or are late on
    PostgreSQL; two if some run, and a third if their handlers seldom succeed.

    Args:
        tasks: The tasks to diagnose. Other tasks are never diagnosed as flapping.
        now: The database's clock, if it was read already.
        fresh: False if the answer may be up to SHARED_FOR old.
    """
    tasks = list(tasks)
    context = shared("diagnosis", _everyone, fresh=fresh)
    now = now or database_now(leasing_settings.DATABASE)
    held = [task for task in tasks if task.status == TaskStatus.RUNNING and task.expires_at > now]
    late = [task.pk for task in tasks if task.status == TaskStatus.RUNNING and is_late(task, now)]
    return replace(
        context,
        now=now,
        losses=_losses(tasks),
        put_off=_put_off(tasks, now),
        usual=usual({task.name for task in held}, now),
        lease_waits=_lease_waits({task.holder for task in held}, now),
        key_holders=holders_of_keys(tasks, context),
        key_waiters=_key_waiters(tasks),
        locks=row_locks(Task.objects.home().filter(pk__in=late)) if late else {},
        undoing=_undoing(tasks),
    )


def holders_of_keys(tasks: Iterable[Task], context: DiagnosisContext) -> dict[str, list[Task]]:
    """Return the tasks that hold the keys for which the ready ones of ``tasks`` wait."""
    keys = {
        task.concurrency_key
        for task in tasks
        if task.status == TaskStatus.READY and context.keys[task.concurrency_key]
    }
    holders: defaultdict[str, list[Task]] = defaultdict(list)
    if keys:
        running = Task.objects.home().running().filter(concurrency_key__in=keys).order_by("pk")
        columns = "name", "concurrency_key", "holder", "acquired_at", "progress"
        for task in running.only(*columns)[:MAX_GROUPS]:
            holders[task.concurrency_key].append(task)
    return dict(holders)


def _lease_waits(holders: set[str], now: datetime) -> dict[str, Sentence]:
    leases = Lease.objects.home().filter(wanted_until__gt=DbNow(), wanted_by__in=holders)
    return {lease.wanted_by: waited_for(lease, now) for lease in leases} if holders else {}


def _key_waiters(tasks: Iterable[Task]) -> dict[str, Capped]:
    """Return the number of tasks that wait for each key of the running ones of ``tasks``."""
    keys = {t.concurrency_key for t in tasks if t.status == TaskStatus.RUNNING} - {""}
    if not keys:
        return {}
    due = Task.objects.home().filter(status=TaskStatus.READY, scheduled_at__lte=DbNow())
    first = due.order_by("scheduled_at", "pk").values("pk", "concurrency_key")[: MAX_WAITING + 1]
    listed = sorted(keys)
    counts = {f"k{i}": Count("pk", filter=Q(concurrency_key=k)) for i, k in enumerate(listed)}
    counted = first.aggregate(all=Count("pk"), **counts)
    more = counted["all"] > MAX_WAITING
    return {key: Capped(counted[f"k{i}"], MAX_WAITING, more) for i, key in enumerate(listed)}


def _everyone() -> DiagnosisContext:
    using = leasing_settings.DATABASE
    present = query_instances((_present, using), _present)
    workers: dict[str, Worker] = {worker.name: worker for worker in present}
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    busy: defaultdict[str, dict[str, tuple[int, datetime]]] = defaultdict(dict)
    keys: Counter[str] = Counter()
    held_queues = set()
    for holder, name, key, queue, tasks, own, valid, since in query_rows((_held, using), _held):
        if valid:
            held_queues.add(queue)
        if key:
            keys[key] += tasks
        if own and (worker := workers.get(holder)):
            held[holder][worker.kind_of(name)] += own
            others, first = busy[holder].get(name, (0, since))
            busy[holder][name] = others + own, min(first, since)
    return DiagnosisContext(
        now=EPOCH,
        workers=workers,
        held=dict(held),
        busy=dict(busy),
        paused={queue.name: queue for queue in query_instances((_paused, using), _paused)},
        keys=keys,
        held_queues=frozenset(held_queues),
    )


def _present() -> Any:
    return Worker.objects.home().present().with_state().order_by("id")[:MAX_WORKERS]


def _held() -> Any:
    """The running tasks by holder, handler, key and queue: how many, how many that this process of
    the holder has claimed, how many whose lease lasts, and the first claim."""
    # What a former process of the same name left occupies no slot of this one.
    since = Worker.objects.home().filter(name=OuterRef("holder")).values("started_at")
    running: Any = Task.objects.home().running()
    return running.values_list("holder", "name", "concurrency_key", "queue").annotate(
        tasks=Count("id"),
        own=Count("id", filter=Q(acquired_at__gte=Subquery(since))),
        valid=Count("id", filter=Q(expires_at__gt=DbNow())),
        since=Min("acquired_at"),
    )[:MAX_GROUPS]


def _paused() -> Any:
    return Queue.objects.home().paused()


def _losses(tasks: Iterable[Task]) -> dict[int, list[tuple[str, bool]]]:
    """Return the holders that recently lost each of ``tasks``, the latest first, for tasks that
    have not ended and were lost at least FLAPS times."""
    often = [
        task.pk for task in tasks if task.grants >= FLAPS and task.status not in TaskStatus.ended()
    ]
    if not often:
        return {}
    lately = TaskAttempt.objects.home().filter(
        task__in=often, outcome__in=_LOST, ended_at__gt=after(-FLAPPING_WITHIN)
    )
    losses: defaultdict[int, list[tuple[str, bool]]] = defaultdict(list)
    for reason in _NOT_BEGUN:
        lately = lately.exclude(error__startswith=reason)
    lately = lately.exclude(error__contains=MISMATCH)
    rows = lately.order_by("-pk").values_list("task", "holder", "outcome", "error")
    for key, holder, outcome, error in rows[:MAX_ATTEMPTS_READ]:
        has_died = outcome == AttemptOutcome.LOST and is_lost_with_worker(error)
        losses[key].append((holder, has_died))
    return {key: holders for key, holders in losses.items() if len(holders) >= FLAPS}


def _put_off(tasks: list[Task], now: datetime) -> dict[int, str]:
    """Return why the latest attempt of each of ``tasks`` postponed it, if that spent no attempt."""
    later = [
        task.pk
        for task in tasks
        if task.status == TaskStatus.READY and task.scheduled_at > now
        if task.grants > task.attempts
    ]
    if not later:
        return {}
    attempts = TaskAttempt.objects.home().filter(task__in=later).order_by("-pk")
    latest: dict[int, list[str]] = {}
    for key, *end in attempts.values_list("task", "outcome", "error")[:MAX_ATTEMPTS_READ]:
        latest.setdefault(key, end)
    return {key: why for key, (outcome, why) in latest.items() if outcome in _PUT_OFF and why}


def _undoing(tasks: list[Task]) -> dict[int, Task]:
    keys = [
        key_of(task) for task in tasks if task.status == TaskStatus.FAILED and task.compensation
    ]
    if not keys:
        return {}
    rows = Task.objects.home().filter(idempotency_key__in=keys).only("status", "parent")
    return {undo.parent_id: undo for undo in rows if undo.parent_id is not None}
