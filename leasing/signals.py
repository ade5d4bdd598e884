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
from leasing.runtime.probes import Probe


def every(rows: Sequence[Any]) -> Sequence[Any]:
    """Return all of ``rows``."""
    return rows


class Logged(Signal):
    """A signal that is also logged as ``event``, if its level is enabled, and counted by counters.
    ``has_listeners`` includes the log and the counters.

    Log and counters need fewer columns of a row than a receiver may: see ``note``."""

    #: The argument that has the row.
    subject = "lease"

    def __init__(self, event: Event | None = None) -> None:
        super().__init__()
        #: Called with the rows of each sending, which may be many, and its other arguments.
        self.counts = Probe()
        #: Returns those of the rows of a sending that are logged.
        self.chosen: Callable[[Sequence[Any]], Sequence[Any]] = every
        self._event = event

    def has_listeners(self, sender: Any = None) -> bool:
        return self.is_noted or self.has_receivers(sender)

    def has_receivers(self, sender: Any = None) -> bool:
        """Return True if any receiver other than the log is connected."""
        # Most signals have none, and the search is slow.
        return bool(self.receivers and super().has_listeners(sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Callable[..., Any], Any]]:
        if self.is_noted:
            details = dict(named)
            self.note([details.pop(self.subject)], **details)
        if not self.receivers:
            return []
        if threads.callbacks_here() is not None:
            # The row may change before the receivers run: they get a copy as it was.
            named[self.subject] = copy(named[self.subject])
            threads.call_apart(partial(super().send_robust, sender, **named))
            return []
        return super().send_robust(sender, **named)

    @property
    def is_logged(self) -> bool:
        """Return True if its level is enabled in the log."""
        event = self._event
        return event is not None and event.logger.isEnabledFor(event.level)

    @property
    def is_noted(self) -> bool:
        """Return True if it is logged or counted."""
        return bool(self.counts) or self.is_logged

    def note(self, rows: Sequence[Any], **details: Any) -> None:
        """Log the event of each of ``rows`` if its level is enabled, and count it, without calling
        receivers: for many rows when no receiver is connected."""
        self.counts(rows, details)
        if self.is_logged:
            for row in self.chosen(rows):
                self._log(row, **details)

    def _log(self, row: Any, by: Any = None, **details: Any) -> None:
        assert self._event is not None  # it is logged
        try:
            self._event(row, actor=by, **details)
        except Exception:
            log.log_failed(exc_info=True)


acquired = Logged(log.lease_acquired)
taken_over = Logged(log.lease_taken_over)
renewed = Logged(log.lease_renewed)
released = Logged(log.lease_released)
revoked = Logged(log.lease_revoked)
preempted = Logged(log.lease_preempted)
lost = Logged(log.lease_lost)
refused = Logged(log.lease_refused)


def send_each(signal: Signal, leases: Sequence[Any]) -> None:
    """Send ``signal`` about each of ``leases``, which are of one model."""
    if not leases:
        return
    model = type(leases[0])
    if not isinstance(signal, Logged) or signal.has_receivers(model):
        for lease in leases:
            send(signal, lease)
    elif signal.is_noted:
        signal.note(leases)


def send(signal: Signal, lease: Any, **details: Any) -> None:
    """Send a signal about a lease.

    Args:
        signal: One of this module.
        lease: The leased row. Its class is the sender.
        details: The further arguments of the receivers.
    """
    signal.send_robust(sender=type(lease), lease=lease, **details)
