"""Compute a ttl from the terms that the database has recorded.

    not renewed   ttl = P99 of the work + P99 of the round trip + margin
    renewed       ttl = pause + P99 of the delay of heartbeats + P99 of the round trip + margin

Work that is renewed may take any time: its lease has to last from one renewal to the next. The
pause between them is a share of the ttl itself, so the least ttl that is long enough is looked for.

A row keeps the number of its renewals and the moment of the last, for its latest term only. So a
term yields one delay: that of its mean pause, or of its last if that is longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import perf_counter
from typing import Final, NamedTuple

from leasing.conf import leasing_settings
from leasing.functions import database_now
from leasing.holding.term import interval, longest_pause, margin
from leasing.humanize import plural
from leasing.models import Lease, LeaseEvent

#: The fewest samples of which one in a hundred can be told.
FEWEST: Final = 100
#: Rows that are read at most, the newest.
NEWEST: Final = 10_000
#: Round trips that are measured.
ROUND_TRIPS: Final = 100


class TooFewSamples(Exception):
    """Not enough is recorded to suggest a ttl; the message says how much."""


class Heartbeats(NamedTuple):
    """The renewals of one term, as its row has them."""

    acquired_at: datetime
    renewed_at: datetime
    renewals: int
    ttl: timedelta
    #: The moment at which the term was known to last: its end, or now. None if its holder died.
    lasted_until: datetime | None

    def delay(self) -> float:
        """Return by how many seconds a renewal came later than planned."""
        pause = interval(self.ttl.total_seconds())
        delays = [(self.renewed_at - self.acquired_at).total_seconds() / self.renewals - pause]
        if self.lasted_until is not None:
            since = (self.lasted_until - self.renewed_at).total_seconds()
            delays.append(since - longest_pause(self.ttl.total_seconds()))
        return max(0.0, *delays)


@dataclass(frozen=True)
class History:
    """Records of the terms of a lease, or of the tasks of a queue."""

    #: The name of what the terms are of, and the noun for one of these.
    subject: str
    noun: str
    #: Seconds of each term that its holder ended.
    lengths: list[float]
    #: The number of terms that their holder did not end.
    lost: int
    heartbeats: list[Heartbeats]
    #: The noun for one of the rows that send the heartbeats.
    renewed: str
    #: The ttl of the latest term, in seconds; None if there was none.
    ttl: float | None
    #: The database in which all of that is.
    database: str


@dataclass(frozen=True)
class Sample:
    """Seconds that were measured."""

    samples: int
    p99: float
    longest: float

    @classmethod
    def of(cls, lengths: Iterable[float]) -> Sample:
        """Sum up ``lengths``, which may be none."""
        ordered = sorted(lengths) or [0.0]
        at = max(0, math.ceil(0.99 * len(ordered)) - 1)
        return cls(len(ordered), ordered[at], ordered[-1])


@dataclass(frozen=True)
class Suggestion:
    """A ttl, and what it is made of, in seconds."""

    ttl: float
    history: History
    #: None: fewer than FEWEST were recorded.
    work: Sample | None
    #: None: fewer than FEWEST were recorded, so the work counts.
    heartbeat: Sample | None
    round_trip: Sample

    @property
    def is_renewed(self) -> bool:
        """Return True if the ttl is that of leases that are renewed."""
        return self.heartbeat is not None

    def samples(self) -> dict[str, Sample | None]:
        """Return what was measured, by its name."""
        return {
            "work": self.work,
            "heartbeat": self.heartbeat,
            "round_trip": self.round_trip,
        }

    def pause(self, ttl: float) -> float:
        """Return the longest planned pause between two renewals; 0 if nothing is renewed."""
        return longest_pause(ttl) if self.is_renewed else 0.0


def suggest(history: History) -> Suggestion:
    """Suggest a ttl for what ``history`` is about. Raises TooFewSamples."""
    work = Sample.of(history.lengths) if len(history.lengths) >= FEWEST else None
    heartbeat = None
    if len(history.heartbeats) >= FEWEST:
        heartbeat = Sample.of(each.delay() for each in history.heartbeats)
    basis = heartbeat or work
    if basis is None:
        raise TooFewSamples(
            f"Not enough data on {history.subject} to suggest a ttl: "
            f"{plural(len(history.lengths), history.noun)} that ended normally, and the renewals "
            f"of {plural(len(history.heartbeats), history.renewed)}. {FEWEST} of either are needed."
        )
    trip = Sample.of(round_trips(history.database))
    ttl = least_ttl(basis.p99 + trip.p99, is_renewed=heartbeat is not None)
    return Suggestion(ttl, history, work, heartbeat, trip)


def least_ttl(lasting: float, *, is_renewed: bool) -> float:
    """Return the least ttl, in whole seconds, that lasts ``lasting`` seconds longer than its margin
    and, if ``is_renewed``, than the pause between two renewals."""
    ttl = float(math.ceil(leasing_settings.MIN_TTL))
    # Pause and margin take at most half of a ttl and a third of it, so that ends.
    while ttl < (needed := lasting + margin(ttl) + (longest_pause(ttl) if is_renewed else 0.0)):
        ttl = float(max(math.ceil(needed), ttl + 1))
    return ttl


def spare(ttl: float) -> float:
    """Return by how much a renewal may be late under ``ttl``."""
    return max(0.0, ttl - longest_pause(ttl) - margin(ttl))


def round_trips(database: str) -> list[float]:
    """Measure how many seconds a query takes from here to ``database``, again and again."""
    database_now(database)  # which may have to connect
    measured = []
    for _ in range(ROUND_TRIPS):
        began = perf_counter()
        database_now(database)
        measured.append(perf_counter() - began)
    return measured


def history_of_lease(lease: Lease) -> History:
    """Return what is recorded about the terms of ``lease``. Its row has the heartbeats of one term
    only, so they are those of all named leases."""
    using = str(lease._state.db)
    ended, lost = LeaseEvent.objects.using(using).lengths(lease.resource, NEWEST)
    return History(
        subject=lease.resource,
        noun="term",
        lengths=ended,
        lost=lost,
        heartbeats=[Heartbeats(*row) for row in Lease.objects.using(using).heartbeats(NEWEST)],
        renewed="lease",
        ttl=lease.ttl.total_seconds() if lease.grants else None,
        database=using,
    )


#: The paths of functions that read the history of something else by its name: "queue", where the
#: app of the tasks is installed.
readers: dict[str, str] = {}
