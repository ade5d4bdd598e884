"""Signals about leases.

Each is sent after the change is written, with the model as ``sender`` and the row as ``lease``.
Django logs a receiver that raises; nothing else is affected. In a worker, receivers are called one
after the other, on another thread than those that claim, store and recover: a receiver that hangs
does not delay them.

    acquired, renewed, released
    taken_over the lease had expired, at ``lease.previous_expired_at``
    revoked    reason, by
    preempted  by: somebody of higher priority asked the holder to yield
    lost       reason: the holder learned that its term has ended (a
               ``leasing.store.Reason`` if the cause is known)
    refused    verb, reason: a late write was refused. If the writer gave only a fencing token,
               ``lease`` is a ``leasing.fencing.BareToken``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from django.dispatch import Signal

from leasing.runtime import threads
from leasing.runtime.event_lines import log
from leasing.runtime.event_logger import Event
from leasing.runtime.events import Subscriber, subscribe

acquired = Signal()
taken_over = Signal()
renewed = Signal()
released = Signal()
revoked = Signal()
preempted = Signal()
lost = Signal()
refused = Signal()


def sending(
    signal: Signal,
    subject: str,
    instance: Callable[[Any], Any] | None = None,
    line: Event | None = None,
) -> Subscriber:
    """Return a subscriber of the hub that sends ``signal`` about each row.

    Args:
        signal: The signal.
        subject: The argument of the receivers that gets the row.
        instance: Makes the row from what stands for it; None: it is the row.
        line: The line of the log about each row, written before; None: another subscriber writes
            it.
    """

    def send(rows: Sequence[Any], **details: Any) -> None:
        try:
            if line is not None and line.logger.isEnabledFor(line.level):
                line.each(rows, **details)
        finally:
            for row in rows if signal.receivers else ():
                if instance is not None:
                    row = instance(row)
                if threads.callbacks_here() is not None:
                    row = copy(row)  # as it was: it may change before the receivers run
                named = {subject: row, **details}
                threads.call_apart(partial(signal.send_robust, sender=type(row), **named))

    return send


_SIGNALS = {
    "lease.acquired": (acquired, log.lease_acquired),
    "lease.taken_over": (taken_over, log.lease_taken_over),
    "lease.renewed": (renewed, log.lease_renewed),
    "lease.released": (released, log.lease_released),
    "lease.revoked": (revoked, log.lease_revoked),
    "lease.preempted": (preempted, log.lease_preempted),
    "lease.lost": (lost, log.lease_lost),
    "lease.refused": (refused, log.lease_refused),
}
subscribe(
    {name: sending(signal, "lease", line=line) for name, (signal, line) in _SIGNALS.items()},
    log.log_failed,
)
