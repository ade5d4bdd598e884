"""Read the charts from samples, never from the tasks themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Count, F, Max, Q, Sum

from tasks.models import Sample

#: Points that a line has at most: several slots share one where there are more.
MAX_POINTS: Final = 120
MINUTE: Final = 60.0
#: Counts that charts show per minute, of tasks and of leases.
TASK_COUNTS: Final = ("enqueued", "completed", "failed", "retried", "recovered")
LEASE_COUNTS: Final = ("renewals", "expirations", "releases")
COUNTS: Final = (*TASK_COUNTS, *LEASE_COUNTS)
DEPTHS: Final = ("ready", "scheduled", "running")
#: The slots that pass before another worker samples in place of one that is gone.
BRIDGED: Final = 2
#: Excludes the row of no queue, to which each worker adds its renewals even if nobody samples.
SAMPLED: Final = ~Q(queue="")


@dataclass(frozen=True)
class Line:
    """One line of a chart: a value for each moment, None if it is unknown."""

    name: str
    values: Sequence[float | None]
    #: Unknown moments in a row across which the line goes on. The depth of a queue is recorded when
    #: it is counted, and cannot be counted later, as events can; but from one moment to the next it
    #: does not drop to nothing.
    bridged: int = 0

    @property
    def greatest(self) -> float:
        return max((value for value in self.values if value is not None), default=0.0)


@dataclass(frozen=True)
class Chart:
    """A chart. Its lines share ``moments``, the beginning of each point. A moment without a sample
    has None in every line: nobody sampled, which does not mean that nothing happened."""

    key: str
    title: str
    unit: str
    moments: Sequence[datetime]
    lines: Sequence[Line]

    @property
    def greatest(self) -> float:
        return max((line.greatest for line in self.lines), default=0.0)

    @property
    def rows(self) -> list[tuple[datetime, list[float | None]]]:
        """The chart as a table."""
        return [
            (moment, [line.values[index] for line in self.lines])
            for index, moment in enumerate(self.moments)
        ]


def series(
    since: datetime, until: datetime, *, queue: str | None = None, points: int = MAX_POINTS
) -> list[Chart]:
    """Return four charts of the samples: tasks a minute ("rate"), seconds waited before claims
    and by the oldest task that still waits ("wait"), tasks waiting and running ("depth"), and the
    ends of leases a minute ("leases"), which are those of all queues.

    One query. Where several slots share a point, it shows their means, and the greatest p95; the
    p50 of several queues or slots is their mean weighted by the claimed tasks.

    Args:
        since: The beginning, by the database's clock.
        until: The end, by the same.
        queue: The name of one queue; None: all of them.
        points: The number of points of a line, at most.
    """
    width = _width(since, until, points)
    first = int(since.timestamp()) // width * width
    last = int(until.timestamp())
    buckets = _read(first, last, width, queue)
    begins = range(first, last, width)
    moments = [datetime.fromtimestamp(begin, UTC) for begin in begins]
    points_read = [buckets.get(begin) for begin in begins]

    def line(name: str, column: str, bridged: int = 0) -> Line:
        return Line(name, [None if each is None else each[column] for each in points_read], bridged)

    per_minute = "per minute"
    waits = [
        line("p50", "wait_p50"),
        line("p95", "wait_p95"),
        line("still waiting", "oldest", BRIDGED),
    ]
    depths = [line(name, name, BRIDGED) for name in DEPTHS]
    tasks, leases = ([line(name, name) for name in names] for names in (TASK_COUNTS, LEASE_COUNTS))
    return [
        Chart("rate", "Tasks per minute", per_minute, moments, tasks),
        Chart("wait", "Waiting time", "s", moments, waits),
        Chart("depth", "Queue depth", "tasks", moments, depths),
        Chart("leases", "Leases per minute", per_minute, moments, leases),
    ]


def _width(since: datetime, until: datetime, points: int) -> int:
    """The seconds of one point: a multiple of a slot."""
    slots = math.ceil((until - since).total_seconds() / Sample.SLOT)
    return Sample.SLOT * max(1, math.ceil(slots / points))


def _read(first: int, last: int, width: int, queue: str | None) -> dict[int, dict[str, Any]]:
    """Return the values of each point, by its beginning."""
    samples = Sample.objects.all()
    if queue is not None:
        samples = samples.filter(queue=queue)
    sums: dict[str, Any] = {f"sum_{name}": Sum(name) for name in (*COUNTS, *DEPTHS)}
    read: Any = (
        samples.filter(slot__gte=first, slot__lt=last)
        .order_by()
        .values(begins=F("slot") - F("slot") % width)
        .annotate(
            slots=Count("slot", distinct=True, filter=SAMPLED),
            depth_slots=Count("slot", distinct=True, filter=Q(ready__isnull=False)),
            sum_claimed=Sum("claimed"),
            waited=Sum(F("wait_p50") * F("claimed")),
            wait_p95=Max("wait_p95"),
            oldest=Max("oldest"),
            **sums,
        )
    )
    return {row["begins"]: _point(row) for row in read if row["slots"]}


def _point(row: dict[str, Any]) -> dict[str, float | None]:
    minutes, depth_slots = row["slots"] * Sample.SLOT / MINUTE, row["depth_slots"]
    waited = row["waited"]
    return {
        **{name: row[f"sum_{name}"] / minutes for name in COUNTS},
        **{
            name: (row[f"sum_{name}"] or 0) / depth_slots if depth_slots else None
            for name in DEPTHS
        },
        "wait_p50": None if waited is None else waited / row["sum_claimed"],
        "wait_p95": row["wait_p95"],
        "oldest": row["oldest"],
    }
