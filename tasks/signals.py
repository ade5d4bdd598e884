"""Signals about tasks.

Each is sent after the change is written, with ``sender=Task`` and the row as ``task``. Django logs
a receiver that raises; nothing else is affected. In a worker, and in ``run_recovery``, receivers
are called one after the other, on another thread than those that claim, store and recover: a
receiver that hangs does not delay them. A refused late write sends ``leasing.signals.refused``.

    enqueued, claimed, completed
    attempt_failed  error: this attempt failed, and the task will be retried
    failed       error: attempts exhausted, or given up
    recovered    holder, reason: taken from a holder that is gone. kind: "expired", "stalled",
                 "revoked" or "died" (its parent has seen that); silent_for: since its last
                 heartbeat; overdue_for: since the deadline, negative if that was still in the
                 future
    returned     reason: given back unfinished, no attempt spent
    snoozed      reason: its handler postponed it, no attempt spent
    cancelled    by, reason: it ended because someone asked for it
    retried      by: an operator made it ready again
    duplicate    an enqueue with its unique key stored nothing, and returned this task
    rescheduled  by: an operator moved it to another queue or time
    discarded    by: an operator deleted it; the row is gone
    repaired     kind, remedy: recovery repaired an invalid state
                 (``tasks.maintenance.invariants``)
    suspected    kind, what: recovery found an invalid state that it cannot repair
    replaced     an enqueue with its unique key gave this waiting task new arguments

And of queues, with ``sender=Queue`` and the name as ``queue``:

    paused       by, reason
    resumed      by
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.apps import apps
from django.dispatch import Signal

from leasing.runtime import threads
from leasing.runtime.event_lines import log as leasing_log
from leasing.runtime.event_logger import Event
from leasing.runtime.events import Subscriber, subscribe
from leasing.signals import sending
from tasks import registry
from tasks.log import log
from tasks.notifier import notify_ended, waited_for
from tasks.querysets.claimed import ClaimedTask, instance_of, resource_of

enqueued = Signal()
claimed = Signal()
completed = Signal()
attempt_failed = Signal()
failed = Signal()
recovered = Signal()
returned = Signal()
snoozed = Signal()
cancelled = Signal()
retried = Signal()
duplicate = Signal()
rescheduled = Signal()
discarded = Signal()
repaired = Signal()
suspected = Signal()
replaced = Signal()
paused = Signal()
resumed = Signal()


def _report_ends(rows: Sequence[Any], **details: Any) -> None:
    """Call the ``on_end`` of what has ended, and notify those who wait for it."""
    for row in rows:
        known = registry.get(row.name)
        if known is not None and known.on_end is not None:
            threads.call_apart(partial(registry.tell_end, known.on_end, row))
    if waited_for and rows:
        first = rows[0]
        using = first.using if isinstance(first, ClaimedTask) else first._state.db
        notify_ended(using, [resource_of(row.pk) for row in rows])


def _send_of_queue(signal: Signal) -> Subscriber:
    def send(names: Sequence[str], **details: Any) -> None:
        for name in names:
            queue = apps.get_model("leasing_tasks", "Queue")
            signal.send_robust(sender=queue, queue=name, **details)

    return send


#: The signals of the events of tasks, each with the line of the log about it.
SIGNALS: dict[str, tuple[Signal, Event]] = {
    "task.enqueued": (enqueued, log.task_enqueued),
    "task.claimed": (claimed, log.task_claimed),
    "task.completed": (completed, log.task_completed),
    "task.attempt_failed": (attempt_failed, log.task_attempt_failed),
    "task.failed": (failed, log.task_failed),
    "task.recovered": (recovered, log.task_recovered),
    "task.returned": (returned, log.task_returned),
    "task.snoozed": (snoozed, log.task_snoozed),
    "task.cancelled": (cancelled, log.task_cancelled),
    "task.retried": (retried, log.task_retried),
    "task.duplicate": (duplicate, log.task_duplicate),
    "task.rescheduled": (rescheduled, log.task_rescheduled),
    "task.discarded": (discarded, log.task_discarded),
    "task.repaired": (repaired, log.task_repaired),
    "task.replaced": (replaced, log.task_replaced),
}
#: Subscribers that write these lines and send these signals.
SENDERS = {
    name: sending(signal, "task", instance_of, line) for name, (signal, line) in SIGNALS.items()
}
_failed = leasing_log.log_failed
subscribe({f"task.{end}": _report_ends for end in ("completed", "failed", "cancelled")}, _failed)
subscribe(SENDERS, _failed)
subscribe({"task.suspected": sending(suspected, "task", instance_of)}, _failed)
subscribe(
    {"queue.paused": _send_of_queue(paused), "queue.resumed": _send_of_queue(resumed)}, _failed
)
subscribe({"queue.paused": log.queue_paused.each, "queue.resumed": log.queue_resumed.each}, _failed)
