"""What happens to tasks, for code that wants to know.

Each is sent after the change is written, with ``sender=Task`` and the row as ``task``. A
receiver that raises is logged by Django and harms nobody. A late write that was turned away
sends ``leasing.signals.refused``.

    enqueued, claimed, completed
    failed      error: this attempt failed, and the task will be tried again
    dead        error: attempts exhausted, or given up
    recovered   holder, reason: taken from a holder that is gone
    returned    reason: given back unfinished, no attempt spent
    cancelled   by, reason: it ended because someone asked for it
    retried     by: an operator set it ready again
    duplicate   an enqueue that a unique key turned away met this task
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

enqueued = Signal()
claimed = Signal()
completed = Signal()
failed = Signal()
dead = Signal()
recovered = Signal()
returned = Signal()
cancelled = Signal()
retried = Signal()
duplicate = Signal()


def send(signal: Signal, task: Any, **details: Any) -> None:
    """Tell the receivers of ``signal`` about ``task``."""
    signal.send_robust(sender=type(task), task=task, **details)
