"""Count this process's work on leases, for Prometheus.

Imported only where a process counts: ``connect()`` counts from now on, in the client library's
registry. How things stand in the database is read elsewhere: ``leasing.metrics.database``.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import Metric

from leasing.exceptions import LeaseHeld, LeaseTimeout
from leasing.holding.keeper import keeper
from leasing.leader import leaders
from leasing.metrics.database import Family
from leasing.runtime.event_lines import log
from leasing.runtime.events import Subscriber, subscribe, unsubscribe
from leasing.runtime.threads import replaced
from leasing.store import Renewals, why_of

#: Seconds, for what usually takes milliseconds and may take as long as a ttl.
DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Seconds, for what takes as long as a ttl.
TERMS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 45, 60, 90, 120, 300, 900)
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Verbs of this package; other code may give names of its own.
VERBS = frozenset(
    {
        *("renew", "heartbeat", "release", "commit", "guarded_write", "finish"),
        *("complete", "fail", "cancel", "give_back", "snooze", "progress", "checkpoint", "step"),
    }
)


ACQUIRES = Counter("leasing_acquires_total", "Calls of acquire, by outcome.", ["model", "outcome"])
ACQUIRE_WAIT = Histogram(
    "leasing_acquire_wait_seconds",
    "Duration of acquire, with its waiting.",
    ["model", "outcome"],
    buckets=DURATIONS,
)
RENEWALS = Counter("leasing_renewals_total", "Renewals, one for each lease.", ["model", "outcome"])
RENEW_DURATION = Histogram(
    "leasing_renew_duration_seconds",
    "Duration of one request that renews leases.",
    ["model"],
    buckets=DURATIONS,
)
SLACK = Histogram(
    "leasing_renewal_slack_ratio",
    "Share of the ttl that was left when a renewal was answered.",
    ["model"],
    buckets=RATIOS,
)
LOSSES = Counter(
    "leasing_losses_total",
    "Terms that ended before their holder released them.",
    ["model", "reason"],
)
EXPIRATIONS = Counter(
    "leasing_expirations_total", "Terms that expired, counted by their successors.", ["model"]
)
GAP = Histogram(
    "leasing_takeover_gap_seconds", "From an expiry to the takeover.", ["model"], buckets=TERMS
)
RELEASES = Counter("leasing_releases_total", "Released leases.", ["model"])
REVOCATIONS = Counter("leasing_revocations_total", "Leases that operators revoked.", ["model"])
PREEMPTIONS = Counter("leasing_preemptions_total", "Holders that were asked to yield.", ["model"])
REJECTIONS = Counter("leasing_fence_rejections_total", "Refused late writes.", ["model", "verb"])
TRANSITIONS = Counter(
    "leasing_leader_transitions_total",
    "Terms of leaders in this process: elected, lost, left.",
    ["kind"],
)


def label_of(model: Any) -> str:
    """Return the label of ``model`` in metrics; "other" where it is none, as of leases in
    memory."""
    meta = getattr(model, "_meta", None)
    return "other" if meta is None else str(meta.concrete_model._meta.label_lower)


def _add(metric: Counter, *labels: str) -> Subscriber:
    """Return what adds the rows of an event to ``metric``, those of each model apart."""

    def add(rows: Sequence[Any], **details: Any) -> None:
        for model, number in Tally(map(type, rows)).items():
            metric.labels(label_of(model), *labels).inc(number)

    return add


def _taken_over(rows: Sequence[Any], **details: Any) -> None:
    for row in rows:
        label = label_of(type(row))
        ACQUIRES.labels(label, "taken_over").inc()
        EXPIRATIONS.labels(label).inc()
        if row.previous_expired_at is not None:
            gap = (row.acquired_at - row.previous_expired_at).total_seconds()
            GAP.labels(label).observe(max(0.0, gap))


def _lost(rows: Sequence[Any], *, reason: str, **details: Any) -> None:
    _add(LOSSES, why_of(reason).value)(rows)


def _refused(rows: Sequence[Any], *, verb: str, **details: Any) -> None:
    verb = verb.replace(" ", "_")
    _add(REJECTIONS, verb if verb in VERBS else "other")(rows)


def _asked(
    rows: Sequence[Any],
    *,
    model: Any,
    seconds: float,
    error: BaseException | None,
    **details: Any,
) -> None:
    label = label_of(model)
    if rows:  # counted as it was granted
        outcome = "acquired" if rows[0].previous_expired_at is None else "taken_over"
    else:
        is_held = isinstance(error, LeaseHeld)
        outcome = "timed_out" if isinstance(error, LeaseTimeout) else "held" if is_held else "other"
        ACQUIRES.labels(label, outcome).inc()
    ACQUIRE_WAIT.labels(label, outcome).observe(seconds)


def _renewals(
    holds: Collection[Any], *, store: Any, answer: Renewals | None, sent_at: float, now: float
) -> None:
    label = label_of(getattr(store, "model", None))
    RENEW_DURATION.labels(label).observe(now - sent_at)
    if answer is None:
        RENEWALS.labels(label, "failed").inc(len(holds))
        return
    counts = Tally(
        "renewed"
        if hold.key in answer.renewed
        else "lost"
        if hold.key in answer.lost
        else "skipped"
        for hold in holds
    )
    for outcome, count in counts.items():
        RENEWALS.labels(label, outcome).inc(count)
    for hold in holds:
        if hold.key in answer.renewed and hold.is_kept:
            SLACK.labels(label).observe(max(0.0, hold.trusted_until - now) / hold.ttl)
    for renewal in answer.renewed.values():
        STATE.compare(renewal.expires_at.timestamp() - renewal.remaining, now - sent_at)
        break


def _led(kind: str) -> Subscriber:
    return lambda rows: TRANSITIONS.labels(kind).inc()


class State:
    """The holds of this process, read when metrics are collected."""

    def __init__(self) -> None:
        self._ahead: float | None = None

    def compare(self, there: float, took: float) -> None:
        """Record how far this host's clock is ahead of the database's, which read ``there`` seconds
        since 1970: within half of the time that the request ``took``, which was just answered."""
        self._ahead = time.time() - took / 2 - there

    def collect(self) -> Iterator[Metric]:
        models = Tally(label_of(getattr(h.store, "model", None)) for h in keeper.holds)
        held = Family("leasing_holds", "Leases that this process holds now.", "model")
        yield held.add_all(models)
        here = leaders()
        for name, help, value in (
            ("leasing_keeper_draining", "1: renewals fail or are slow.", keeper.draining),
            (
                "leasing_candidates",
                "Leaderships that this process campaigns for or has.",
                sum(leader.is_campaigning for leader in here),
            ),
            (
                "leasing_leading",
                "Leaderships that this process has now.",
                sum(leader.is_leading for leader in here),
            ),
        ):
            yield Family(name, help).add(value)
        ended = "Threads that ended early and were replaced."
        yield Family("leasing_threads_replaced_total", ended, "thread").add_all(replaced)
        if self._ahead is not None:
            ahead = "This host's wall clock minus the database's."
            yield Family("leasing_clock_offset_seconds", ahead).add(self._ahead)


STATE = State()
REGISTRY.register(STATE)

#: The subscribers of the hub, by the names of events.
HEARD: Mapping[str, Subscriber] = {
    "lease.acquired": _add(ACQUIRES, "acquired"),
    "lease.taken_over": _taken_over,
    "lease.renewed": _add(RENEWALS, "renewed"),
    "lease.released": _add(RELEASES),
    "lease.revoked": _add(REVOCATIONS),
    "lease.preempted": _add(PREEMPTIONS),
    "lease.lost": _lost,
    "lease.refused": _refused,
    "lease.asked": _asked,
    "lease.renewals": _renewals,
    "clock.read": lambda rows, *, now, took: STATE.compare(now.timestamp(), took),
    "leader.elected": _led("elected"),
    "leader.lost": _led("lost"),
    "leader.left": _led("left"),
}


def connect() -> None:
    """Count what this process does with leases, from now on."""
    subscribe(HEARD, log.metrics_failed)


def disconnect() -> None:
    """Stop counting."""
    unsubscribe(HEARD)
