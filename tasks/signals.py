"""Signals about tasks.

Each is sent after the change is written, with ``sender=Task`` and the row as ``task``. A
receiver that raises is logged by Django and harms nobody. In a worker, and in ``run_recovery``,
receivers are called apart from the threads that claim, store and recover, one after the other:
one that hangs holds up none of these. A late write that was turned away sends
``leasing.signals.refused``.

    enqueued, claimed, completed
    attempt_failed  error: this attempt failed, and the task will be tried again
    failed       error: attempts exhausted, or given up
    recovered    holder, reason: taken from a holder that is gone. kind: "expired", "stalled" or
                 "revoked"; silent_for: since its last sign of life; overdue_for: since the
                 deadline, below nothing where that lay ahead
    returned     reason: given back unfinished, no attempt spent
    snoozed      reason: its handler put it off, no attempt spent
    cancelled    by, reason: it ended because someone asked for it
    retried      by: an operator set it ready again
    duplicate    an enqueue that a unique key turned away met this task
    rescheduled  by: an operator moved it to another queue or time
    discarded    by: an operator deleted it; the row is gone
    repaired     kind, remedy: recovery put right a state that must not be
                 (``tasks.maintenance.invariants``)
    suspected    kind, what: recovery came upon such a state, and only reports it
    replaced     an enqueue with its unique key made this waiting task what it asked for

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


class TaskSignal(Logged):
    """A signal about a task."""

    subject = "task"


class QueueSignal(Logged):
    """A signal about a queue."""

    subject = "queue"


enqueued = TaskSignal(log.task_enqueued)
claimed = TaskSignal(log.task_claimed)
completed = TaskSignal(log.task_completed)
attempt_failed = TaskSignal(log.task_attempt_failed)
failed = TaskSignal(log.task_failed)
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
    """Tell the receivers of ``signal`` about ``task``, and of an end its handler's ``on_end``."""
    signal.send_robust(sender=type(task), task=task, **details)
    if signal in _ENDS:
        registry.report_end(task)
