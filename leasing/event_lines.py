"""What the log says of what happens to leases. Connected when the app is ready."""

from __future__ import annotations

import logging
from typing import Any

from leasing import signals
from leasing.runtime.event_logger import get_logger

logger = get_logger("leasing")


def said_of(lease: Any, **details: Any) -> dict[str, Any]:
    """The fields of a record about ``lease``."""
    return {
        "resource": lease.lease_resource,
        "holder": lease.holder,
        "fencing_token": lease.fencing_token,
        "grants": getattr(lease, "grants", None),
        "verb": details.get("verb"),
        "reason": details.get("reason"),
        "actor": details.get("by"),
    }


_LINES = {
    signals.acquired: (
        logging.INFO,
        "lease.acquired",
        "%(holder)s acquired %(resource)s, token %(fencing_token)s",
    ),
    signals.taken_over: (
        logging.WARNING,
        "lease.taken_over",
        "%(holder)s took over %(resource)s, which had expired, token %(fencing_token)s",
    ),
    signals.renewed: (logging.DEBUG, "lease.renewed", "%(holder)s renewed %(resource)s"),
    signals.released: (logging.INFO, "lease.released", "%(holder)s released %(resource)s"),
    signals.revoked: (
        logging.WARNING,
        "lease.revoked",
        "%(actor)s revoked %(resource)s from %(holder)s: %(reason)s",
    ),
    signals.preempted: (
        logging.INFO,
        "lease.preempted",
        "%(actor)s, of higher priority, asked %(holder)s to yield %(resource)s",
    ),
    signals.lost: (logging.WARNING, "lease.lost", "%(holder)s lost %(resource)s: %(reason)s"),
    signals.refused: (
        logging.WARNING,
        "lease.refused",
        "refused %(verb)s of %(resource)s by %(holder)s: %(reason)s",
    ),
}


def connect() -> None:
    """Start logging."""
    for signal, (level, event, text) in _LINES.items():
        signal.log_to(logger, level, event, text, said_of)
