"""Attempts by handler: the numbers that ended and failed, their durations and waits.

Read from the samples of each ten seconds (``Sample.handlers``), so the cost of a span does not grow
with its tasks, and spans that nobody sampled are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from leasing.humanize import brief
from leasing.web.cache import shared
from tasks.models import Sample

#: Seconds of the spans from which a usual duration is read.
HOUR, DAY = 3_600, 86_400
#: The least number of durations that make a usual one.
USUAL_OF: Final = 5
#: The multiple of the p95 from which an attempt runs for long, and the least time.
LONG_FACTOR: Final = 3
LONG_AT_LEAST: Final = timedelta(seconds=10)


@dataclass
class HandlerUse:
    """The attempts of one handler that ended in a span."""

    name: str
    #: Attempts that failed or were lost with their worker.
    failures: int = 0
    #: The numbers of successful attempts by their durations, and by the waits before them, as
    #: exponents of Sample.BASE.
    runs: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.failures + self.runs.total()

    @property
    def usually(self) -> str:
        """Return its usual duration in words, for a handler that has succeeded."""
        assert self.run_p50 is not None and self.run_p95 is not None
        return f"{self.name} usually takes {brief(self.run_p50)} (p95 {brief(self.run_p95)})"

    def is_exceeded_by(self, ran: timedelta) -> bool:
        """Return True if ``ran`` is far longer than usual, for a handler that has succeeded."""
        assert self.run_p95 is not None
        return ran >= max(LONG_AT_LEAST, LONG_FACTOR * self.run_p95)

    @property
    def run_p50(self) -> timedelta | None:
        return _percentile(self.runs, 0.50)

    @property
    def run_p95(self) -> timedelta | None:
        return _percentile(self.runs, 0.95)

    @property
    def wait_p50(self) -> timedelta | None:
        return _percentile(self.waits, 0.50)

    @property
    def wait_p95(self) -> timedelta | None:
        return _percentile(self.waits, 0.95)


def read_handlers(now: datetime, seconds: int) -> dict[str, HandlerUse]:
    """Return the use of each handler, by name, in the ``seconds`` before ``now``: one query,
    over the index of samples."""
    begin = int(now.timestamp()) - seconds
    rows = Sample.objects.filter(slot__gte=begin, handlers__isnull=False).order_by()
    uses: dict[str, HandlerUse] = {}
    read: Iterable[Any] = rows.values_list("handlers", flat=True)
    for handlers in read:
        for name, counted in handlers.items():
            use = uses.setdefault(name, HandlerUse(name))
            use.failures += counted["failures"]
            for kind, lengths in ("runs", use.runs), ("waits", use.waits):
                for exponent, count in counted[kind].items():
                    lengths[exponent] += count
    return uses


def recent(now: datetime, seconds: int, *, fresh: bool) -> dict[str, HandlerUse]:
    """Return ``read_handlers``. Unless ``fresh``, polls share it for five seconds; a span of more
    than an hour, which is expensive, for ten minutes."""
    read = partial(read_handlers, now, seconds)
    shared_for = 600 if seconds > HOUR else 5
    return shared(("handlers", seconds), read, fresh=fresh, seconds=shared_for)


def usual(names: Collection[str], now: datetime) -> dict[str, HandlerUse]:
    """Return the use of each of the handlers ``names`` in the last hour, or in the last day if the
    hour had fewer than USUAL_OF successes. Handlers with fewer in the day too are left out."""
    typical: dict[str, HandlerUse] = {}
    for seconds in (HOUR, DAY):
        if missing := set(names).difference(typical):
            uses = recent(now, seconds, fresh=False)
            typical |= {
                name: uses[name]
                for name in missing
                if name in uses and uses[name].runs.total() >= USUAL_OF
            }
    return typical


def _percentile(counts: Counter[str], share: float) -> timedelta | None:
    """Return the least duration that ``share`` of ``counts`` do not exceed; None if all are 0."""
    left = counts.total() * share
    for exponent in sorted(map(int, counts)):
        left -= counts[str(exponent)]
        if left <= 1e-9:
            return timedelta(seconds=Sample.BASE**exponent)
    return None
