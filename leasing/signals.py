"""What happens to leases, for code that wants to know.

Each is sent after the change is written, with the model as ``sender`` and the row as ``lease``.
A receiver that raises is logged by Django and harms nobody. In a worker receivers are called apart
from the threads that claim, store and recover, one after the other: one that hangs holds up none
of these.

    acquired, renewed, released
    taken_over of a lease that had expired, at ``lease.previous_expired_at``
    revoked    reason, by
    preempted  by: somebody of higher priority asked the holder to yield
    lost       reason: the holder heard that its term is over (where it is known why, a
               ``leasing.stores.reasons.Reason``)
    refused    verb, reason: a late write was turned away. Of one that came with nothing but a
               fencing token the ``lease`` is a ``leasing.fencing.BareToken``
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final

from django.dispatch import Signal

from leasing.runtime import callbacks
from leasing.runtime.event_logger import EventLogger, get_logger

logger = get_logger("leasing")

#: What a line of the log says where a field says nothing.
NOT_SAID: Final = {
    "holder": "somebody",
    "actor": "an operator",
    "reason": "no reason given",
}

#: Is called with rows that something happened to, and what is told of it.
Count = Callable[[Sequence[Any], Mapping[str, Any]], object]


class Logged(Signal):
    """A signal that is also written to the log, where that has its level on, and counted, where
    somebody counts. ``has_listeners`` says whether anybody would hear of it, these included.

    Log and counters need less of a row than a receiver may: see ``note``."""

    #: What the argument is called that brings the row.
    subject = "lease"

    def __init__(self) -> None:
        super().__init__()
        self._counts: tuple[Count, ...] = ()
        self._logger: EventLogger | None = None
        self._level = logging.NOTSET
        self._event = self._text = ""
        self._fields: Callable[..., dict[str, Any]] = dict

    def log_to(
        self,
        logger: EventLogger,
        level: int,
        event: str,
        text: str,
        fields: Callable[..., dict[str, Any]],
    ) -> None:
        """Write to ``logger``, at ``level``, a record of this ``event`` with the ``fields`` that
        are made of the arguments it is sent with. ``text`` makes its line of them."""
        self._logger, self._level = logger, level
        self._event, self._text, self._fields = event, text, fields

    def count_by(self, count: Count) -> None:
        """Call ``count`` with what this is told of: with many rows at once where many are."""
        if count not in self._counts:
            self._counts = (*self._counts, count)

    def uncount_by(self, count: Count) -> None:
        """Call ``count`` no more."""
        self._counts = tuple(each for each in self._counts if each != count)

    def has_listeners(self, sender: Any = None) -> bool:
        return self.is_noted or self.has_receivers(sender)

    def has_receivers(self, sender: Any = None) -> bool:
        """Whether anybody but the log would hear of it."""
        # Most have none, and looking for them takes a while.
        return bool(self.receivers and super().has_listeners(sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Callable[..., Any], Any]]:
        if self.is_noted:
            details = dict(named)
            self.note([details.pop(self.subject)], **details)
        if not self.receivers:
            return []
        if callbacks.is_apart():
            # What it tells of goes on meanwhile: receivers see it as it was.
            named[self.subject] = copy(named[self.subject])
            callbacks.tell(partial(super().send_robust, sender, **named))
            return []
        return super().send_robust(sender, **named)

    @property
    def is_logged(self) -> bool:
        """Whether the log has its level on."""
        return self._logger is not None and self._logger.logger.isEnabledFor(self._level)

    @property
    def is_counted(self) -> bool:
        """Whether somebody counts it."""
        return bool(self._counts)

    @property
    def is_noted(self) -> bool:
        """Whether it is logged or counted."""
        return bool(self._counts) or self.is_logged

    def note(self, rows: Sequence[Any], **details: Any) -> None:
        """Log it of each of ``rows``, if the log has its level on, count it, and tell nobody
        else. For where many are sent and nobody else listens."""
        self.count(rows, **details)
        if self.is_logged:
            for row in rows:
                self._log(**{self.subject: row}, **details)

    def count(self, rows: Sequence[Any], **details: Any) -> None:
        """Count it of ``rows``, and tell nobody else."""
        for count in self._counts:
            try:
                count(rows, details)
            except Exception:  # as any receiver's: what has happened has happened
                logger.exception("what happened could not be counted", event="metrics.failed")

    def _log(self, **named: Any) -> None:
        if self._logger is None:
            return
        try:
            fields = self._fields(**named)
            said = fields | {name: fields.get(name) or text for name, text in NOT_SAID.items()}
            self._logger.log(self._level, self._text, said, event=self._event, **fields)
        except Exception:
            self._logger.exception("what happened could not be logged", event="log.failed")


acquired = Logged()
taken_over = Logged()
renewed = Logged()
released = Logged()
revoked = Logged()
preempted = Logged()
lost = Logged()
refused = Logged()


def send_each(signal: Signal, leases: Sequence[Any]) -> None:
    """Tell the receivers of ``signal`` about each of ``leases``, which are of one model."""
    if not leases:
        return
    model = type(leases[0])
    if not isinstance(signal, Logged) or signal.has_receivers(model):
        for lease in leases:
            send(signal, lease)
    elif signal.is_noted:
        signal.note(leases)


def send(signal: Signal, lease: Any, **details: Any) -> None:
    """Tell the receivers of ``signal`` about ``lease``."""
    signal.send_robust(sender=type(lease), lease=lease, **details)
