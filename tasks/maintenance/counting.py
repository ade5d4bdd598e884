"""Count the events of ten seconds from the existing ledgers: no process has to report its work, so
nothing is missing of one that crashed, or that works over HTTP.

Each read goes over an index and ends with its slot: what ended and what was claimed by the
moments of it, what was enqueued and what the ledgers say backwards from the newest key, which
follows the time. A slot that is counted again gives the same.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import models
from django.db.models import Count, Exists, F, Min, Q, Subquery

from leasing.db.compiled_queries import query_scalars
from leasing.functions import DbNow
from leasing.models import EventKind, LeaseEvent
from leasing.web.counts import COUNT_CAP
from tasks.maintenance.invariants import unknown_put_off
from tasks.models import AttemptOutcome, Sample, Task, TaskAttempt, TaskStatus
from tasks.querysets.base import CLAIM_ORDER, GIVEN_BACK, is_paused
from tasks.registry import KINDS

#: Outcomes of an attempt that failed.
FAILURES: Final = (AttemptOutcome.FAILED, AttemptOutcome.LOST)
#: Claims of a slot whose waits are measured, and successes whose durations are.
WAITS: Final = 2_000
#: By how much the order of keys may differ from that of times: a transaction takes its time.
OUT_OF_ORDER: Final = timedelta(seconds=10)

#: The lease of the sampler. It is not counted: else a slot in which it changes hands, and the
#: next, would never be quiet.
RESOURCE: Final = "leasing_tasks.sampling"

Columns = dict[str, Any]
ENDS: Final = {
    TaskStatus.SUCCEEDED.value: "completed",
    TaskStatus.FAILED.value: "failed",
    TaskStatus.CANCELLED.value: "cancelled",
}


@dataclass(frozen=True)
class Slot:
    """Ten seconds, from ``number`` seconds after 1970."""

    number: int

    @classmethod
    def before(cls, moment: datetime) -> Slot:
        """The last slot that was over at ``moment``."""
        return cls(int(moment.timestamp()) // Sample.SLOT * Sample.SLOT - Sample.SLOT)

    @property
    def begins_at(self) -> datetime:
        return datetime.fromtimestamp(self.number, UTC)

    @property
    def ends_at(self) -> datetime:
        return self.begins_at + timedelta(seconds=Sample.SLOT)

    def holds(self, column: str) -> Q:
        """The rows whose ``column`` lies in it."""
        return Q(**{f"{column}__gte": self.begins_at, f"{column}__lt": self.ends_at})


#: The columns of each queue's sample; those of leases apart from tasks under "".
Counted = defaultdict[str, Columns]


def depths(queues: Iterable[str], now: datetime) -> dict[str, Columns]:
    """Return the numbers of tasks of each queue that are ready, scheduled and running ``now``, each
    kind counted up to COUNT_CAP, and the seconds for which the oldest of those has been due, unless
    the queue is paused: by one query for each kind in each of ``queues``, and one for running
    tasks of every queue."""
    tasks = Task.objects.home()
    found: dict[str, Columns] = {}
    given_back = 0
    for queue in queues:
        found[queue] = {"ready": 0, "scheduled": 0, "running": 0, "oldest": 0.0}
        for kind in KINDS:
            # In the order of the index for claims: due tasks come first.
            waiting = tasks.filter(queue=queue, kind=kind, status=TaskStatus.READY)
            ordered = waiting.order_by(*CLAIM_ORDER).values("id", "scheduled_at")
            due = Q(scheduled_at__lte=DbNow())
            seen = ordered[: COUNT_CAP + 1].aggregate(
                all=Count("id"),
                due=Count("id", filter=due),
                since=Min("scheduled_at", filter=due & ~Q(is_paused(queue))),
                given_back=Count("id", filter=GIVEN_BACK),
            )
            given_back += seen["given_back"]
            waits = (now - seen["since"]).total_seconds() if seen["since"] else 0.0
            found[queue]["oldest"] = max(found[queue]["oldest"], waits)
            found[queue]["ready"] += seen["due"]
            found[queue]["scheduled"] += seen["all"] - seen["due"]
    # Those that no worker has a handler for are due while a worker has put them off.
    for queue, (count, since) in (unknown_put_off() if given_back else {}).items():
        if each := found.get(queue):
            count = min(count, each["scheduled"])
            each["ready"] += count
            each["scheduled"] -= count
            each["oldest"] = max(each["oldest"], (now - since).total_seconds())
    running = tasks.running().order_by("pk").values_list("queue", flat=True)[: COUNT_CAP + 1]
    for queue, count in Counter(running).items():
        found.setdefault(queue, {"ready": 0, "scheduled": 0})["running"] = count
    return found


@dataclass(frozen=True)
class Activity:
    """The moment of the latest event, and whether any task waits or runs: in a slot without events
    there is nothing to count."""

    now: datetime
    #: The latest slot that has a sample of a queue.
    sampled: int | None
    latest: datetime | None
    is_any_live: bool

    @classmethod
    def of_now(cls) -> Activity:
        """Ask for it: one statement, every part of it over an index."""
        found = dict(query_scalars(Task, Task.objects.home().db, "outlook", _activity))
        now, sampled, ready, running = map(found.pop, ("now", "sampled", "ready", "running"))
        latest = max(filter(None, found.values()), default=None)
        return cls(now, sampled, latest, bool(ready or running))

    def is_quiet(self, slot: Slot) -> bool:
        """Return True if ``count`` would find nothing in ``slot``."""
        return self.latest is None or self.latest < slot.begins_at - OUT_OF_ORDER

    def is_idle(self, slot: Slot) -> bool:
        """Return True if nothing has happened since ``slot`` began, and no task waits or runs."""
        return not self.is_any_live and self.is_quiet(slot)


def _activity() -> dict[str, Any]:
    tasks = Task.objects.home()
    samples = Sample.objects.using(tasks.db).exclude(queue="").order_by("-slot")
    attempts = TaskAttempt.objects.using(tasks.db).order_by("-pk")
    events = _counted_events().order_by("-pk")
    return {
        "now": DbNow(),
        "sampled": _first(samples, "slot"),
        "enqueued": _first(tasks.order_by("-pk"), "created_at"),
        "attempted": _first(attempts, "ended_at"),
        "noted": _first(events, "at"),
        **{
            f"claimed {number}": _latest(tasks.filter(part), "acquired_at")
            for number, part in enumerate(Task.listing.parts)
        },
        **{end: _latest(tasks.filter(status=end), "processed_at") for end in ENDS},
        "ready": Exists(tasks.filter(status=TaskStatus.READY)),
        "running": Exists(tasks.running()),
    }


def _first(rows: models.QuerySet[Any], column: str) -> Subquery:
    return Subquery(rows.values(column)[:1])


def _latest(rows: models.QuerySet[Any], column: str) -> Subquery:
    known = rows.filter(**{f"{column}__isnull": False})
    return _first(known.order_by(f"-{column}", "-pk"), column)


def count(slot: Slot) -> dict[str, Columns]:
    """The columns of each queue in ``slot``; a fixed number of queries."""
    counted: Counted = defaultdict(lambda: defaultdict(int))
    _enqueued(slot, counted)
    claimed = _claimed(slot, counted)
    completed = _ended(slot, counted)
    _runs(slot, counted, completed)
    _attempts(slot, counted)
    _waits(slot, counted, claimed)
    _events(slot, counted)
    return {queue: dict(columns) for queue, columns in counted.items()}


def _enqueued(slot: Slot, counted: Counted) -> None:
    new = _since(Task.objects.home(), "created_at", slot).filter(slot.holds("created_at"))
    for queue, number in new.order_by().values_list("queue").annotate(Count("pk")):
        counted[queue]["enqueued"] += number


def _claimed_in(slot: Slot, read: Callable[[Any], Any]) -> Any:
    """Return what ``read`` selects of the tasks whose latest claim was in ``slot``: of parts that
    have an index each, in one statement, or it would have a task that ends meanwhile twice."""
    tasks = Task.objects.home().filter(slot.holds("acquired_at")).order_by()
    first, *others = [read(tasks.filter(part)) for part in Task.listing.parts]
    return first.union(*others, all=True)


def _claimed(slot: Slot, counted: Counted) -> int:
    """The claims that their tasks still show; returns how many."""

    def read(tasks: Any) -> Any:
        return tasks.values_list("queue").annotate(Count("pk"))

    total = 0
    for queue, number in _claimed_in(slot, read):
        counted[queue]["claimed"] += number
        total += number
    return total


def _ended(slot: Slot, counted: Counted) -> int:
    """The ends of tasks; returns how many succeeded."""
    tasks = Task.objects.home().ended().filter(slot.holds("processed_at"))
    read = tasks.order_by().values_list("queue", "status").annotate(Count("pk"))
    completed = 0
    for queue, status, number in read:
        counted[queue][ENDS[status]] += number
        if status == TaskStatus.SUCCEEDED:
            counted[queue]["releases"] += number
            completed += number
    return completed


def _runs(slot: Slot, counted: Counted, completed: int) -> None:
    """Count by handler for how long the tasks that succeeded ran and waited, or evenly some."""
    if not completed:
        return
    tasks = Task.objects.home().succeeded().filter(slot.holds("processed_at")).order_by()
    step = -(-completed // WAITS)
    rows = _one_in(step, tasks).filter(acquired_at__isnull=False)
    for queue, name, due_at, claimed_at, ended_at in rows.values_list(
        "queue", "name", "scheduled_at", "acquired_at", "processed_at"
    ):
        handler = _handler(counted, queue, name)
        for kind, length in ("runs", ended_at - claimed_at), ("waits", claimed_at - due_at):
            seconds = max(length.total_seconds(), 0.001)
            handler[kind][str(round(math.log(seconds, Sample.BASE)))] += step


def _one_in(step: int, tasks: Any) -> Any:
    """Return one of each ``step`` of ``tasks``, at another place each time: their handlers, or
    queues, may take turns."""
    if step == 1:
        return tasks
    return tasks.annotate(place=(F("id") + F("id") / step) % step).filter(place=0)


def _handler(counted: Counted, queue: str, name: str) -> dict[str, Any]:
    handlers: dict[str, Columns] = counted[queue].setdefault("handlers", {})
    return handlers.setdefault(name, {"failures": 0, "runs": Counter(), "waits": Counter()})


def _attempts(slot: Slot, counted: Counted) -> None:
    """Count attempts that failed, and claims that their tasks do not show any more."""
    attempts = TaskAttempt.objects.using(Task.objects.home().db)
    recent = _since(attempts, "ended_at", slot)
    ended = slot.holds("ended_at")
    lost = Q(outcome=AttemptOutcome.LOST)
    for_good = Q(task__status=TaskStatus.FAILED, number=F("task__attempts"))
    overtaken = slot.holds("started_at") & ~Q(grant_id=F("task__grant_id"))
    read = (
        recent.order_by()
        .values("task__queue", "task__name")
        .annotate(
            claimed=Count("pk", filter=overtaken),
            recovered=Count("pk", filter=ended & lost),
            retried=Count("pk", filter=ended & Q(outcome=AttemptOutcome.FAILED) & ~for_good),
            expirations=Count("pk", filter=ended & lost),
            releases=Count("pk", filter=ended & ~lost),
            failures=Count("pk", filter=ended & Q(outcome__in=FAILURES)),
        )
    )
    for row in read:
        queue, name, failures = (row.pop(key) for key in ("task__queue", "task__name", "failures"))
        if failures:
            _handler(counted, queue, name)["failures"] += failures
        for column, number in row.items():
            counted[queue][column] += number


def _waits(slot: Slot, counted: Counted, claimed: int) -> None:
    """Measure the waits before the claims of ``slot``, or evenly those of some of them."""
    if not claimed:
        return
    # Not of what was taken back, whose first wait would be told again; nor of what has failed
    # meanwhile, and is due in the future.
    first = Q(started_at__gte=F("acquired_at")) | Q(scheduled_at__gt=F("started_at"))
    step = -(-claimed // WAITS)
    waits: defaultdict[str, list[float]] = defaultdict(list)

    def read(tasks: Any) -> Any:
        sampled = _one_in(step, tasks.filter(first))
        return sampled.values_list("queue", "scheduled_at", "acquired_at")

    for queue, due_at, claimed_at in _claimed_in(slot, read):
        if due_at <= claimed_at:
            waits[queue].append((claimed_at - due_at).total_seconds())
    for queue, lengths in waits.items():
        lengths.sort()
        counted[queue]["wait_p50"] = percentile(lengths, 0.50)
        counted[queue]["wait_p95"] = percentile(lengths, 0.95)


def percentile(lengths: list[float], share: float) -> float:
    """The least of ``lengths``, which are in order and not none, that ``share`` of them do not
    exceed."""
    return lengths[max(0, -(-int(share * 100) * len(lengths) // 100) - 1)]


def _events(slot: Slot, counted: Counted) -> None:
    recent = _since(_counted_events(), "at", slot).filter(slot.holds("at"))
    found = recent.order_by().aggregate(
        expirations=Count("pk", filter=Q(kind=EventKind.TAKEN_OVER)),
        releases=Count("pk", filter=Q(kind__in=[EventKind.RELEASED, EventKind.REVOKED])),
    )
    for column, number in found.items():
        counted[""][column] += number


def _counted_events() -> models.QuerySet[LeaseEvent]:
    return LeaseEvent.objects.using(Task.objects.home().db).exclude(resource=RESOURCE)


def _since(rows: models.QuerySet[Any], column: str, slot: Slot) -> models.QuerySet[Any]:
    """The rows from ``slot`` on, found backwards from the newest."""
    older = rows.filter(**{f"{column}__lt": slot.begins_at - OUT_OF_ORDER})
    last = older.order_by("-pk").values_list("pk", flat=True).first()
    return rows if last is None else rows.filter(pk__gt=last)
