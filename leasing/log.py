"""What the log says of what happens to leases. Connected when the app is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from leasing import signals

logger = logging.getLogger("leasing")


def _line(text: str) -> Callable[..., tuple[str, dict[str, Any]]]:
    def line(lease: Any, **details: Any) -> tuple[str, dict[str, Any]]:
        return text, {
            "resource": lease.lease_resource,
            "holder": lease.holder or "somebody",
            "token": lease.fencing_token,
            "reason": details.get("reason") or "no reason given",
            "verb": details.get("verb", ""),
            "by": details.get("by") or "an operator",
        }

    return line


_LINES = {
    signals.acquired: (logging.INFO, "%(holder)s acquired %(resource)s, token %(token)s"),
    signals.taken_over: (
        logging.WARNING,
        "%(holder)s took over %(resource)s, which had expired, token %(token)s",
    ),
    signals.renewed: (logging.DEBUG, "%(holder)s renewed %(resource)s"),
    signals.released: (logging.INFO, "%(holder)s released %(resource)s"),
    signals.revoked: (logging.WARNING, "%(by)s revoked %(resource)s from %(holder)s: %(reason)s"),
    signals.preempted: (
        logging.INFO,
        "%(by)s, of higher priority, asked %(holder)s to yield %(resource)s",
    ),
    signals.lost: (logging.WARNING, "%(holder)s lost %(resource)s: %(reason)s"),
    signals.refused: (
        logging.WARNING,
        "refused %(verb)s of %(resource)s by %(holder)s: %(reason)s",
    ),
}


def connect() -> None:
    """Start logging."""
    for signal, (level, text) in _LINES.items():
        signal.log_to(logger, level, _line(text))
