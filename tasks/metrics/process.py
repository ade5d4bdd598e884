"""Count this process's work on tasks, for Prometheus: see ``leasing.metrics.process``."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import Metric

from leasing.metrics import process as lease_metrics
from leasing.metrics.family import Family
from leasing.metrics.process import TERMS, Details, ProcessMetrics
from leasing.runtime.probes import Probe, Receiver
from tasks import registry, signals
from tasks.maintenance import recovery
from tasks.outbox.totals import totals as relayed
from tasks.querysets.claimed import ClaimedTask, waited
from tasks.runtime import probes
from tasks.worker.executor_pool import ExecutorPool
from tasks.worker.hand_back import abandoned

#: Seconds, for what may take a moment or an hour.
LONG = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
)
#: The label of tasks that have no code here: their names may be anything.
UNKNOWN = "unknown"


class TaskMetrics(ProcessMetrics):
    """Counts of tasks. ``leases`` counts what concerns leases."""

    def __init__(self, registry: CollectorRegistry, leases: lease_metrics.LeaseMetrics) -> None:
        super().__init__(registry)
        counter, histogram = self.counter, partial(self.histogram, buckets=LONG)
        queue = "queue"
        self._leases = leases
        self.enqueued = counter("tasks_enqueued_total", "Tasks enqueued.", queue)
        self.duplicates = counter(
            "tasks_duplicates_total", "Duplicate enqueues, ignored because of a key.", queue
        )
        self.claims = counter("tasks_claims_total", "Claims.", queue)
        self.latency = histogram(
            "tasks_queue_latency_seconds", "From being due to the claim.", queue
        )
        self.executions = counter(
            "tasks_executions_total", "Attempts whose end was stored.", *(queue, "task", "outcome")
        )
        self.duration = histogram(
            "tasks_execution_duration_seconds", "How long an attempt ran.", queue
        )
        self.failed = counter("tasks_failed_total", "Tasks that failed for good.", queue)
        self.recovered = counter("tasks_recovered_total", "Recovered tasks.", *(queue, "reason"))
        self.death = histogram(
            "tasks_death_to_requeue_seconds",
            "From a lost holder's last heartbeat or claim to the recovery.",
            queue,
            buckets=TERMS,
        )
        self.delay = histogram(
            "tasks_recovery_delay_seconds",
            "From the deadline to the recovery.",
            queue,
            buckets=TERMS,
        )
        # Looking a child up by its labels takes as long as counting: these are counted each.
        self._latencies: dict[str, Histogram] = {}
        self._durations: dict[str, Histogram] = {}
        self.state = State()
        registry.register(self.state)

    @cached_property
    def receivers(self) -> dict[Probe, Receiver]:
        return {
            signals.enqueued.counts: self._enqueued,
            signals.duplicate.counts: self._duplicate,
            signals.claimed.counts: self._claimed,
            signals.completed.counts: self._ending("succeeded"),
            signals.attempt_failed.counts: self._ending("attempt_failed"),
            signals.failed.counts: self._failed,
            signals.cancelled.counts: self._cancelled,
            signals.returned.counts: self._ending("returned"),
            signals.snoozed.counts: self._ending("snoozed"),
            signals.recovered.counts: self._recovered,
            probes.running: self._ran,
        }

    def _enqueued(self, rows: Sequence[Any], details: Details) -> None:
        # All of one call are of one queue, and none need be made for this but the first.
        self.enqueued.labels(rows[0].queue).inc(len(rows))

    def _duplicate(self, rows: Sequence[Any], details: Details) -> None:
        for row in rows:
            self.duplicates.labels(row.queue).inc()

    def _claimed(self, rows: Sequence[Any], details: Details) -> None:
        for queue, count in Tally([row.queue for row in rows]).items():
            self.claims.labels(queue).inc(count)
        for row in rows:
            seconds = row.waited if isinstance(row, ClaimedTask) else waited(row)
            if seconds is not None:
                _child(self._latencies, self.latency, row.queue).observe(seconds)

    def _ran(self, queue: str, seconds: float) -> None:
        _child(self._durations, self.duration, queue).observe(seconds)

    # Ends

    def _failed(self, rows: Sequence[Any], details: Details) -> None:
        for row in rows:
            self.failed.labels(row.queue).inc()
        self._ended([row for row in rows if _ended_an_attempt(row)], "failed")

    def _cancelled(self, rows: Sequence[Any], details: Details) -> None:
        self._ended([row for row in rows if _ended_an_attempt(row)], "cancelled")

    def _ending(self, outcome: str) -> Receiver:
        return lambda rows, details: self._ended(rows, outcome)

    def _ended(self, rows: Sequence[Any], outcome: str) -> None:
        for (queue, name), count in Tally([(row.queue, row.name) for row in rows]).items():
            known = name if registry.get(name) is not None else UNKNOWN
            self.executions.labels(queue, known, outcome).inc(count)

    def _recovered(self, rows: Sequence[Any], details: Details) -> None:
        self._ended(rows, "lost")
        kind = details.get("kind", "expired")
        silent: timedelta | None = details.get("silent_for")
        overdue: timedelta | None = details.get("overdue_for")
        for row in rows:
            self.recovered.labels(row.queue, kind).inc()
            if kind != "expired":
                continue
            self._leases.expirations.labels(lease_metrics.label_of(row)).inc()
            if silent is not None and overdue is not None:
                self.death.labels(row.queue).observe(max(0.0, silent.total_seconds()))
                self.delay.labels(row.queue).observe(max(0.0, overdue.total_seconds()))


class State:
    """The work of this process, read when metrics are collected."""

    def __init__(self) -> None:
        self.executors: ExecutorPool | None = None

    def collect(self) -> Iterator[Metric]:
        totals = recovery.totals
        yield from _moment(
            "tasks_recovery_last_success_timestamp_seconds",
            "When this process last completed a recovery sweep.",
            totals.succeeded_at,
        )
        counts: tuple[tuple[str, str, Mapping[str, int]], ...] = (
            ("tasks_repaired_total", "Repaired invalid states.", totals.repaired),
            ("tasks_suspected_total", "Invalid states that are only reported.", totals.suspected),
            (
                "tasks_abandoned_total",
                "Tasks given back because their thread, event loop or coroutine had ended.",
                abandoned,
            ),
        )
        for name, help, by_kind in counts:
            yield Family(name, help, "kind").add_all(by_kind)
        if self.executors is not None:
            yield from _slots(self.executors)
        if relayed.succeeded_at is not None or relayed.failures:
            yield from _relay()


def _moment(name: str, help: str, moment: float | None) -> Iterator[Metric]:
    if moment is not None:
        yield Family(name, help).add(moment)


def _slots(executors: ExecutorPool) -> Iterator[Metric]:
    there = Family("tasks_worker_slots", "Tasks that this worker may run at a time.", "kind")
    busy = Family("tasks_worker_slots_busy", "Of these slots, those that run a task.", "kind")
    blocked = Family(
        "tasks_worker_slots_blocked",
        "Of these, slots whose handler runs on although its task has ended.",
        "kind",
    )
    for kind, executor in executors.executors.items():
        there.add(executor.slots, kind.value)
        busy.add(executor.slots - max(0, executor.free), kind.value)
        blocked.add(executor.blocked, kind.value)
    yield from (there, busy, blocked)


def _relay() -> Iterator[Metric]:
    yield from _moment(
        "tasks_relay_last_success_timestamp_seconds",
        "When a pass of this relay last succeeded.",
        relayed.succeeded_at,
    )
    again = "Of these, tasks whose message the broker seemed to have lost."
    sent = "Published messages of the outbox."
    refused = "Rejections of such messages by the broker."
    failures = "Passes of the relay that failed."
    yield Family("tasks_published_total", "Tasks that this relay published.", "queue").add_all(
        relayed.published
    )
    yield Family("tasks_published_again_total", again, "queue").add_all(relayed.again)
    yield Family("tasks_outbox_published_total", sent).add(relayed.sent)
    yield Family("tasks_outbox_failures_total", refused).add(relayed.refused)
    yield Family("tasks_relay_failures_total", failures).add(relayed.failures)


def _child(children: dict[str, Histogram], metric: Histogram, queue: str) -> Histogram:
    child = children.get(queue)
    if child is None:
        child = children[queue] = metric.labels(queue)
    return child


def _ended_an_attempt(task: Any) -> bool:
    """Return True if ``task`` was ended by its holder: not while it waited, and not by recovery."""
    return task.released_at is not None and task.released_at == task.processed_at


_metrics: TaskMetrics | None = None


def connect() -> None:
    """Count what this process does with tasks, from now on."""
    global _metrics
    if _metrics is None:
        _metrics = TaskMetrics(REGISTRY, lease_metrics.metrics())
    _metrics.connect()


def metrics() -> TaskMetrics:
    """Return the counters of this process. Raises RuntimeError before ``connect``."""
    if _metrics is None:
        raise RuntimeError("Nothing is counted yet: call leasing.metrics.registry.connect().")
    return _metrics


def watch(executors: ExecutorPool) -> None:
    """Show how many of the ``executors`` of this worker are busy."""
    metrics().state.executors = executors
