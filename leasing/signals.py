"""What happens to leases, for code that wants to know.

Each is sent after the change is written, with the model as ``sender`` and the row as ``lease``.
A receiver that raises is logged by Django and harms nobody.

    acquired, taken_over, renewed, released
    revoked    reason, by
    preempted  by: somebody of higher priority asked the holder to yield
    lost       reason: the holder heard that its term is over
    refused    verb, reason: a late write was turned away. Of one that came with nothing but a
               fencing token the ``lease`` is a ``leasing.fencing.BareToken``
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.dispatch import Signal

from leasing.eventlog import EventLogger

#: What a line of the log says where a field says nothing.
NOT_SAID: Final = {
    "holder": "somebody",
    "actor": "an operator",
    "reason": "no reason given",
}


class Logged(Signal):
    """A signal that is also written to the log, where that has its level on. ``has_listeners``
    says whether anybody would hear of it, the log included."""

    def __init__(self) -> None:
        super().__init__()
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

    def has_listeners(self, sender: Any = None) -> bool:
        return self.is_logged or self.has_receivers(sender)

    def has_receivers(self, sender: Any = None) -> bool:
        """Whether anybody but the log would hear of it."""
        # Most have none, and looking for them takes a while.
        return bool(self.receivers and super().has_listeners(sender))

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Callable[..., Any], Any]]:
        self.log(**named)
        return super().send_robust(sender, **named) if self.receivers else []

    @property
    def is_logged(self) -> bool:
        """Whether the log has its level on."""
        return self._logger is not None and self._logger.isEnabledFor(self._level)

    def log(self, **named: Any) -> None:
        """Write it to the log, if that has its level on, and tell nobody else. For where many are
        sent and nobody else listens: the log needs less of a row than a receiver may."""
        if self._logger is None or not self.is_logged:
            return
        try:
            fields = self._fields(**named)
            said = fields | {name: fields.get(name) or text for name, text in NOT_SAID.items()}
            self._logger.log(self._level, self._text, said, event=self._event, **fields)
        except Exception:  # as any receiver's: what has happened has happened
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
    if leases and signal.has_listeners(type(leases[0])):
        for lease in leases:
            send(signal, lease)


def send(signal: Signal, lease: Any, **details: Any) -> None:
    """Tell the receivers of ``signal`` about ``lease``."""
    signal.send_robust(sender=type(lease), lease=lease, **details)
