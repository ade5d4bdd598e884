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

from typing import Any

from django.dispatch import Signal

acquired = Signal()
taken_over = Signal()
renewed = Signal()
released = Signal()
revoked = Signal()
preempted = Signal()
lost = Signal()
refused = Signal()


def send(signal: Signal, lease: Any, **details: Any) -> None:
    """Tell the receivers of ``signal`` about ``lease``."""
    signal.send_robust(sender=type(lease), lease=lease, **details)
