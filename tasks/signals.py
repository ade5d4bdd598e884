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

from typing import Any

from django.dispatch import Signal

from leasing.signals import Logged
from tasks import registry
from tasks.log import log
from tasks.notifier import notify_ended, waited_for


class TaskSignal(Logged):
    """A signal about a task."""

    subject = "task"


class FailureSignal(TaskSignal):
    """A signal about an attempt that failed. Its record has the error with its traceback, if this
    process has it: not where only the text is known, as of a task that was recovered."""

    def _log(self, row: Any, by: Any = None, **details: Any) -> None:
        super()._log(row, by, exc_info=row.raised, **details)


class QueueSignal(Logged):
    """A signal about a queue."""

    subject = "queue"


enqueued = TaskSignal(log.task_enqueued)
claimed = TaskSignal(log.task_claimed)
completed = TaskSignal(log.task_completed)
attempt_failed = FailureSignal(log.task_attempt_failed)
failed = FailureSignal(log.task_failed)
recovered = TaskSignal(log.task_recovered)
returned = TaskSignal(log.task_returned)
snoozed = TaskSignal(log.task_snoozed)
cancelled = TaskSignal(log.task_cancelled)
retried = TaskSignal(log.task_retried)
duplicate = TaskSignal(log.task_duplicate)
rescheduled = TaskSignal(log.task_rescheduled)
discarded = TaskSignal(log.task_discarded)
repaired = TaskSignal(log.task_repaired)
suspected = TaskSignal()
replaced = TaskSignal(log.task_replaced)
paused = QueueSignal(log.queue_paused)
resumed = QueueSignal(log.queue_resumed)


#: Signals that report the end of a task.
_ENDS = (completed, failed, cancelled)


def send(signal: Signal, task: Any, **details: Any) -> None:
    """Send a signal about a task. If the task has ended, call its handler's ``on_end``, and notify
    callers that wait for the end.

    Args:
        signal: One of this module.
        task: The task, which the receivers get. Its class is the sender.
        details: The further arguments of the receivers.
    """
    signal.send_robust(sender=type(task), task=task, **details)
    if signal in _ENDS:
        registry.report_end(task)
        if waited_for:
            notify_ended(task._state.db, [task.lease_resource])
