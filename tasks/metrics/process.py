"""Count this process's work on tasks, for Prometheus: see ``leasing.metrics.process``."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import Metric

from leasing.metrics.database import Family
from leasing.metrics.process import EXPIRATIONS, TERMS, label_of
from leasing.runtime.event_lines import log
from leasing.runtime.events import Subscriber, subscribe, unsubscribe
from tasks import registry
from tasks.maintenance import recovery
from tasks.outbox.totals import totals as relayed
from tasks.querysets.claimed import ClaimedTask, waited
from tasks.worker.executors import Executors
from tasks.worker.hand_back import abandoned

#: Seconds, for what may take a moment or an hour.
LONG = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
)
#: The label of tasks that have no code here: their names may be anything.
UNKNOWN = "unknown"


QUEUE = ["queue"]

ENQUEUED = Counter("tasks_enqueued_total", "Tasks enqueued.", QUEUE)
DUPLICATES = Counter(
    "tasks_duplicates_total", "Duplicate enqueues, ignored because of a key.", QUEUE
)
CLAIMS = Counter("tasks_claims_total", "Claims.", QUEUE)
LATENCY = Histogram(
    "tasks_queue_latency_seconds", "From being due to the claim.", QUEUE, buckets=LONG
)
EXECUTIONS = Counter(
    "tasks_executions_total", "Attempts whose end was stored.", ["queue", "task", "outcome"]
)
DURATION = Histogram(
    "tasks_execution_duration_seconds", "How long an attempt ran.", QUEUE, buckets=LONG
)
FAILED = Counter("tasks_failed_total", "Tasks that failed for good.", QUEUE)
RECOVERED = Counter("tasks_recovered_total", "Recovered tasks.", ["queue", "reason"])
DEATH = Histogram(
    "tasks_death_to_requeue_seconds",
    "From a lost holder's last heartbeat or claim to the recovery.",
    QUEUE,
    buckets=TERMS,
)
DELAY = Histogram(
    "tasks_recovery_delay_seconds", "From the deadline to the recovery.", QUEUE, buckets=TERMS
)


def _enqueued(rows: Sequence[Any], **details: Any) -> None:
    # All of one call are of one queue, and none need be made for this but the first.
    ENQUEUED.labels(rows[0].queue).inc(len(rows))


def _duplicate(rows: Sequence[Any], **details: Any) -> None:
    for row in rows:
        DUPLICATES.labels(row.queue).inc()


def _claimed(rows: Sequence[Any], **details: Any) -> None:
    queues = Tally([row.queue for row in rows])
    for queue, count in queues.items():
        CLAIMS.labels(queue).inc(count)
    latency = {queue: LATENCY.labels(queue) for queue in queues}
    for row in rows:
        seconds = row.waited if isinstance(row, ClaimedTask) else waited(row)
        if seconds is not None:
            latency[row.queue].observe(seconds)


def _ran(rows: Sequence[Any], *, queue: str, seconds: float) -> None:
    DURATION.labels(queue).observe(seconds)


def _failed(rows: Sequence[Any], **details: Any) -> None:
    for row in rows:
        FAILED.labels(row.queue).inc()
    _ended(filter(_ended_an_attempt, rows), outcome="failed")


def _cancelled(rows: Sequence[Any], **details: Any) -> None:
    _ended(filter(_ended_an_attempt, rows), outcome="cancelled")


def _ended(rows: Iterable[Any], *, outcome: str, **details: Any) -> None:
    for (queue, name), count in Tally([(row.queue, row.name) for row in rows]).items():
        known = name if registry.get(name) is not None else UNKNOWN
        EXECUTIONS.labels(queue, known, outcome).inc(count)


def _recovered(
    rows: Sequence[Any],
    *,
    kind: str,
    silent_for: timedelta | None,
    overdue_for: timedelta | None,
    **details: Any,
) -> None:
    _ended(rows, outcome="lost")
    for row in rows:
        RECOVERED.labels(row.queue, kind).inc()
        if kind != "expired":
            continue
        EXPIRATIONS.labels(label_of(type(row))).inc()
        if silent_for is not None and overdue_for is not None:
            DEATH.labels(row.queue).observe(max(0.0, silent_for.total_seconds()))
            DELAY.labels(row.queue).observe(max(0.0, overdue_for.total_seconds()))


def _ended_an_attempt(task: Any) -> bool:
    """Return True if ``task`` was ended by its holder: not while it waited, and not by recovery."""
    return task.released_at is not None and task.released_at == task.processed_at


class State:
    """The work of this process, read when metrics are collected."""

    def __init__(self) -> None:
        self.executors: Executors | None = None

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


def _slots(executors: Executors) -> Iterator[Metric]:
    there = Family("tasks_worker_slots", "Tasks that this worker may run at a time.", "kind")
    busy = Family("tasks_worker_slots_busy", "Of these slots, those that run a task.", "kind")
    blocked = Family(
        "tasks_worker_slots_blocked",
        "Of these, slots whose handler runs on although its task has ended.",
        "kind",
    )
    for kind, executor in executors.items():
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


STATE = State()
REGISTRY.register(STATE)

#: The subscribers of the hub, by the names of events.
HEARD: Mapping[str, Subscriber] = {
    "task.enqueued": _enqueued,
    "task.duplicate": _duplicate,
    "task.claimed": _claimed,
    "task.completed": partial(_ended, outcome="succeeded"),
    # In a child process, which shows nothing of its own.
    "attempt.completed": partial(_ended, outcome="succeeded"),
    "task.attempt_failed": partial(_ended, outcome="attempt_failed"),
    "task.failed": _failed,
    "task.cancelled": _cancelled,
    "task.returned": partial(_ended, outcome="returned"),
    "task.snoozed": partial(_ended, outcome="snoozed"),
    "task.recovered": _recovered,
    "attempt.ran": _ran,
}


def connect() -> None:
    """Count what this process does with tasks, from now on."""
    subscribe(HEARD, log.metrics_failed)


def disconnect() -> None:
    """Stop counting."""
    unsubscribe(HEARD)


def watch(executors: Executors) -> None:
    """Show how many of the ``executors`` of this worker are busy."""
    STATE.executors = executors
