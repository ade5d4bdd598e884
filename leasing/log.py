"""Receivers that log what happens to leases. Connected when the app is ready."""

from __future__ import annotations

import logging
from typing import Any

from leasing import signals

logger = logging.getLogger("leasing")


def _log(level: int, text: str) -> Any:
    def receiver(lease: Any, **details: Any) -> None:
        logger.log(
            level,
            text,
            {
                "resource": lease.lease_resource,
                "holder": lease.holder or "somebody",
                "token": lease.fencing_token,
                "reason": details.get("reason") or "no reason given",
                "verb": details.get("verb", ""),
                "by": details.get("by") or "an operator",
            },
        )

    return receiver


_RECEIVERS = {
    signals.acquired: _log(logging.INFO, "%(holder)s acquired %(resource)s, token %(token)s"),
    signals.taken_over: _log(
        logging.WARNING, "%(holder)s took over %(resource)s, which had expired, token %(token)s"
    ),
    signals.renewed: _log(logging.DEBUG, "%(holder)s renewed %(resource)s"),
    signals.released: _log(logging.INFO, "%(holder)s released %(resource)s"),
    signals.revoked: _log(
        logging.WARNING, "%(by)s revoked %(resource)s from %(holder)s: %(reason)s"
    ),
    signals.preempted: _log(
        logging.INFO, "%(by)s, of higher priority, asked %(holder)s to yield %(resource)s"
    ),
    signals.lost: _log(logging.WARNING, "%(holder)s lost %(resource)s: %(reason)s"),
    signals.refused: _log(
        logging.WARNING, "refused %(verb)s of %(resource)s by %(holder)s: %(reason)s"
    ),
}


def connect() -> None:
    """Start logging."""
    for signal, receiver in _RECEIVERS.items():
        signal.connect(receiver, weak=False, dispatch_uid="leasing.log")
