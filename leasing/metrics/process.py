"""Count this process's work on leases, for Prometheus.

``connect()`` counts from now on, in the client library's registry. How things stand in the
database is read elsewhere: ``leasing.metrics.database``.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from leasing import signals
from leasing.holding.keeper import keeper
from leasing.leader import leaders
from leasing.metrics.family import Family
from leasing.runtime import probes
from leasing.runtime.probes import Probe, Receiver, Round
from leasing.runtime.threads import replaced
from leasing.store import why_of

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

Details = Mapping[str, Any]


class ProcessMetrics:
    """Counts what signals and probes tell in ``registry``, from ``connect`` to ``disconnect``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        """Return a new counter of this registry.

        Args:
            name: Its name, with the ending _total.
            help: Its description.
            labels: The names of its labels.
        """
        return Counter(name, help, labels, registry=self._registry)

    def histogram(
        self, name: str, help: str, *labels: str, buckets: Sequence[float] = DURATIONS
    ) -> Histogram:
        """Return a new histogram of this registry. The other arguments are those of ``counter``.

        Args:
            buckets: The upper bounds, in its unit: seconds for the default ones.
        """
        return Histogram(name, help, labels, registry=self._registry, buckets=buckets)

    @cached_property
    def receivers(self) -> Mapping[Probe, Receiver]:
        return {}

    def connect(self) -> None:
        """Count from now on."""
        for probe, receiver in self.receivers.items():
            probe.connect(receiver)

    def disconnect(self) -> None:
        """Stop counting."""
        for probe, receiver in self.receivers.items():
            probe.disconnect(receiver)


class LeaseMetrics(ProcessMetrics):
    """Counts of leases."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        counter, histogram, model = self.counter, self.histogram, "model"
        self.acquires = counter(
            "leasing_acquires_total", "Calls of acquire, by outcome.", model, "outcome"
        )
        self.acquire_wait = histogram(
            "leasing_acquire_wait_seconds",
            "Duration of acquire, with its waiting.",
            model,
            "outcome",
        )
        self.renewals = counter(
            "leasing_renewals_total", "Renewals, one for each lease.", model, "outcome"
        )
        self.renew_duration = histogram(
            "leasing_renew_duration_seconds", "Duration of one request that renews leases.", model
        )
        self.slack = histogram(
            "leasing_renewal_slack_ratio",
            "Share of the ttl that was left when a renewal was answered.",
            model,
            buckets=RATIOS,
        )
        self.losses = counter(
            "leasing_losses_total",
            "Terms that ended before their holder released them.",
            *(model, "reason"),
        )
        self.expirations = counter(
            "leasing_expirations_total", "Terms that expired, counted by their successors.", model
        )
        self.gap = histogram(
            "leasing_takeover_gap_seconds",
            "From an expiry to the takeover.",
            model,
            buckets=TERMS,
        )
        self.releases = counter("leasing_releases_total", "Released leases.", model)
        self.revocations = counter(
            "leasing_revocations_total", "Leases that operators revoked.", model
        )
        self.preemptions = counter(
            "leasing_preemptions_total", "Holders that were asked to yield.", model
        )
        self.rejections = counter(
            "leasing_fence_rejections_total", "Refused late writes.", model, "verb"
        )
        self.transitions = counter(
            "leasing_leader_transitions_total",
            "Terms of leaders in this process: elected, lost, left.",
            "kind",
        )
        self.state = State()
        registry.register(self.state)

    @cached_property
    def receivers(self) -> dict[Probe, Receiver]:
        return {
            signals.acquired.counts: _counting(self.acquires, "acquired"),
            signals.taken_over.counts: self._taken_over,
            signals.renewed.counts: _counting(self.renewals, "renewed"),
            signals.released.counts: _counting(self.releases),
            signals.revoked.counts: _counting(self.revocations),
            signals.preempted.counts: _counting(self.preemptions),
            signals.lost.counts: self._lost,
            signals.refused.counts: self._refused,
            probes.acquiring: self._asked,
            probes.renewing: self._round,
            probes.comparing: self.state.compared,
            probes.leading: self._led,
        }

    # Signals

    def _taken_over(self, rows: Sequence[Any], details: Details) -> None:
        for row in rows:
            label = label_of(row)
            self.acquires.labels(label, "taken_over").inc()
            self.expirations.labels(label).inc()
            if row.previous_expired_at is not None:
                gap = (row.acquired_at - row.previous_expired_at).total_seconds()
                self.gap.labels(label).observe(max(0.0, gap))

    def _lost(self, rows: Sequence[Any], details: Details) -> None:
        why = why_of(details.get("reason", ""))
        _counting(self.losses, why.value)(rows, details)

    def _refused(self, rows: Sequence[Any], details: Details) -> None:
        verb = str(details.get("verb", "")).replace(" ", "_")
        _counting(self.rejections, verb if verb in VERBS else "other")(rows, details)

    # Probes

    def _asked(self, model: type[Any], outcome: str, seconds: float) -> None:
        label = label_of_model(model)
        self.acquire_wait.labels(label, outcome).observe(seconds)
        if outcome not in ("acquired", "taken_over"):  # of which the signals tell
            self.acquires.labels(label, outcome).inc()

    def _round(self, round: Round) -> None:
        label = label_of_model(getattr(round.store, "model", None))
        self.renew_duration.labels(label).observe(round.took)
        for outcome in ("renewed", "lost", "skipped", "failed"):
            if count := getattr(round, outcome):
                self.renewals.labels(label, outcome).inc(count)
        slack = self.slack.labels(label)
        for each in round.slack:
            slack.observe(each)

    def _led(self, kind: str) -> None:
        self.transitions.labels(kind).inc()


class State:
    """The holds of this process, read when metrics are collected."""

    def __init__(self) -> None:
        self._ahead: float | None = None

    def compared(self, ahead: float) -> None:
        """Record by how many seconds this host's wall clock is ahead of the database's."""
        self._ahead = ahead

    def collect(self) -> Iterator[Metric]:
        models = Tally(label_of_model(getattr(h.store, "model", None)) for h in keeper.holds)
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


def label_of_model(model: Any) -> str:
    """Return the label of ``model`` in metrics; "other" where it is none, as of leases in
    memory."""
    meta = getattr(model, "_meta", None)
    return "other" if meta is None else str(meta.concrete_model._meta.label_lower)


def label_of(row: Any) -> str:
    return label_of_model(type(row))


def _counting(metric: Counter, *labels: str) -> Receiver:
    """Return what adds the rows of a signal to ``metric``, those of each model apart."""

    def count(rows: Sequence[Any], details: Details) -> None:
        for model, number in Tally(type(row) for row in rows).items():
            metric.labels(label_of_model(model), *labels).inc(number)

    return count


_metrics: LeaseMetrics | None = None


def connect() -> None:
    """Count what this process does with leases, from now on."""
    global _metrics
    if _metrics is None:
        _metrics = LeaseMetrics(REGISTRY)
    _metrics.connect()


def metrics() -> LeaseMetrics:
    """Return the counters of this process. Raises RuntimeError before ``connect``."""
    if _metrics is None:
        raise RuntimeError("Nothing is counted yet: call leasing.metrics.registry.connect().")
    return _metrics
