"""Read the state of each queue, for pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import (
    Count,
    DateTimeField,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    Subquery,
    Value,
)
from django.db.models.functions import Coalesce, Least, NullIf

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_rows
from leasing.functions import DbNow, database_now
from leasing.web.badges import Badge
from leasing.web.cache import shared
from leasing.web.counts import COUNT_CAP, Capped
from tasks.dashboard.badges import OPEN, PAUSED, UNSERVED
from tasks.dashboard.listing import count_of
from tasks.diagnosis.reasons import WAITS, Reason, reasons
from tasks.maintenance.depths import Depth, count_depths
from tasks.models import Queue, Sample, Task, TaskStatus, Worker
from tasks.querysets.base import CLAIM_ORDER, lapse
from tasks.registry import KINDS

#: More queues than this are not listed.
QUEUES_SHOWN = 200
#: Seconds that polls share why tasks wait, which takes the diagnosis of up to a thousand a queue.
REASONS_FOR = 10
#: The time within which recovery must find a task; later it is reported as stuck.
SWEPT_WITHIN = timedelta(seconds=5)
#: A task whose renewal is late: less than half of its time is left.
LATE = Q(expires_at__lt=ExpressionWrapper(DbNow() + F("ttl") / 2, output_field=DateTimeField()))
#: Shown if the number is not known.
MANY = Capped(COUNT_CAP + 1)


@dataclass(frozen=True)
class QueueLine:
    """One queue: whether it is paused, what waits and runs, and how many workers serve it."""

    name: str
    queue: Queue | None
    ready: Capped
    scheduled: Capped
    running: int
    #: Since when the task that is claimed next has been due.
    due_since: datetime | None
    workers: int
    #: Why its tasks wait, where one has been due for longer than WAITS.
    reasons: list[Reason] = field(default_factory=list)

    @property
    def is_paused(self) -> bool:
        return self.queue is not None and self.queue.paused_at is not None

    @property
    def is_unserved(self) -> bool:
        """Return True if tasks wait and no worker serves the queue. Where some run, a remote one
        does, which sends no heartbeats."""
        return not (not self.ready or self.workers or self.running or self.is_paused)

    @property
    def badge(self) -> Badge:
        """Return its badge: open, paused, or open and served by nobody."""
        if self.is_unserved:
            return UNSERVED
        return PAUSED if self.is_paused else OPEN


@dataclass(frozen=True)
class Queues:
    """All queues, by name."""

    lines: list[QueueLine]
    ready: Capped
    scheduled: Capped
    running: Capped
    #: Of those that run, the ones whose lease has expired or that make no progress, those that
    #: recovery should have found, and those whose renewal is late.
    stuck: Capped
    overdue: Capped
    late: Capped
    #: True if more tasks wait than are counted one by one, and the time of the sample that stands
    #: in for the count.
    is_deep: bool = False
    counted_at: datetime | None = None

    @property
    def oldest(self) -> tuple[datetime, str] | None:
        """Since when the task has been due that has waited longest in a queue that somebody serves,
        and its queue. Remote workers send no heartbeats: they serve the queues whose tasks they
        run."""
        return min(_waiting_longest(self.lines), default=None)


def _waiting_longest(lines: list[QueueLine]) -> list[tuple[datetime, str]]:
    """Return since when the first task of each queue has been due that is served and not paused,
    and the queue's name, the longest first."""
    return sorted(
        (line.due_since, line.name)
        for line in lines
        if line.due_since and not line.is_paused and (line.workers or line.running)
    )


def read_queues(
    workers: Iterable[Worker] | None = None, now: datetime | None = None, *, fresh: bool = True
) -> Queues:
    """Return every queue that is known, or that has tasks, with the reasons where tasks have waited
    for longer than WAITS. ``workers`` are those that are present.

    Up to ``COUNT_CAP`` waiting tasks are counted one by one. Beyond it the depths are those of
    the latest sample, and the moments those of the tasks that are claimed next, so that the
    millionth task costs nothing. Unless ``fresh``, the choice may be a minute old.
    """
    using = leasing_settings.DATABASE
    known = {queue.name: queue for queue in Queue.objects.home()[:QUEUES_SHOWN]}
    if workers is None:
        workers = Worker.objects.home().present().only("queues")
    serving = Counter(name for worker in workers for name in worker.queues)
    running = {name: counts for name, *counts in query_rows((_running, using), _running)}
    all_running, stuck, overdue, late = (
        Capped(sum(counts[place] for counts in running.values())) for place in range(4)
    )
    is_deep = count_of("ready", "scheduled", fresh=fresh).value > COUNT_CAP
    counted_at = None
    if is_deep:
        read = query_rows((_sampled, using), _sampled)
        depths = {queue: Depth(*figures) for queue, *figures, _ in read}
        counted_at = next((Sample(slot=slot).at for *_, slot in read), None)
    else:
        depths = count_depths()
    names = sorted({*known, *depths, *running, *serving})[:QUEUES_SHOWN]
    lines = [
        QueueLine(
            name,
            known.get(name),
            Capped(depth.ready),
            Capped(depth.scheduled),
            running[name][0] if name in running else 0,
            depth.due_since,
            serving[name],
        )
        for name in names
        for depth in [depths.get(name, Depth())]
    ]
    now = now or database_now(using)
    if waiting := [name for since, name in _waiting_longest(lines) if since < now - WAITS]:
        read_reasons = partial(reasons, waiting, now, fresh=fresh)
        why = shared(("reasons", waiting), read_reasons, fresh=fresh, seconds=REASONS_FOR)
        lines = [replace(line, reasons=why.get(line.name, [])) for line in lines]
    return Queues(
        lines,
        # Too many to count, and nobody samples.
        Capped(sum(depth.ready for depth in depths.values())) if depths or not is_deep else MANY,
        Capped(sum(depth.scheduled for depth in depths.values())),
        all_running,
        stuck,
        overdue,
        late,
        is_deep,
        counted_at,
    )


def _running() -> Any:
    by_queue = Task.objects.home().running().order_by().values_list("queue")
    return by_queue.annotate(
        all=Count("pk"),
        stuck=Count("pk", filter=lapse()),
        overdue=Count("pk", filter=Q(expires_at__lte=DbNow() - SWEPT_WITHIN)),
        late=Count("pk", filter=LATE),
    )


def _sampled() -> Any:
    """Return the latest sampled depth of each queue, and its slot."""
    # The slot under way has renewals already, in a row of no queue.
    samples = Sample.objects.exclude(queue="")
    latest = samples.order_by("-slot").values("slot")[:1]
    due = Task.objects.home().filter(
        status=TaskStatus.READY, queue=OuterRef("queue"), scheduled_at__lte=DbNow()
    )
    first = [
        Subquery(due.filter(kind=kind).order_by(*CLAIM_ORDER).values("scheduled_at")[:1])
        for kind in KINDS
    ]
    # Now, where none of a kind is due.
    since = NullIf(Least(*(Coalesce(each, DbNow()) for each in first)), DbNow())
    newest = samples.filter(slot=Subquery(latest)).order_by()
    none = Value(0)
    return newest.values_list(
        "queue", Coalesce("ready", none), Coalesce("scheduled", none), since, "slot"
    )
