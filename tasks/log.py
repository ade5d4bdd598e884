"""Receivers that log what happens to tasks. Connected when the app is ready."""

from __future__ import annotations

import logging
from typing import Any

from tasks import signals

logger = logging.getLogger("tasks")


def _log(level: int, text: str) -> Any:
    def receiver(task: Any, **details: Any) -> None:
        logger.log(
            level,
            "task %(id)s " + text,
            {
                "id": task.pk,
                "name": task.name,
                "attempt": task.attempts,
                "of": task.max_attempts,
                "holder": details.get("holder") or task.holder,
                "error": details.get("error", ""),
                "reason": details.get("reason", ""),
                "by": details.get("by") or "an operator",
                "at": task.scheduled_at,
                "kind": details.get("kind", ""),
                "remedy": details.get("remedy", ""),
            },
        )

    return level, receiver


def _log_queue(level: int, text: str) -> Any:
    def receiver(queue: str, by: str = "", reason: str = "", **details: Any) -> None:
        said = {"queue": queue, "by": by or "an operator", "reason": reason or "no reason given"}
        logger.log(level, "queue %(queue)s " + text, said)

    return level, receiver


_RECEIVERS = {
    signals.enqueued: _log(logging.DEBUG, "enqueued: %(name)s"),
    signals.claimed: _log(
        logging.INFO, "claimed by %(holder)s: %(name)s, attempt %(attempt)s of %(of)s"
    ),
    signals.completed: _log(logging.INFO, "completed by %(holder)s"),
    signals.failed: _log(
        logging.WARNING, "failed in attempt %(attempt)s of %(of)s, again at %(at)s: %(error)s"
    ),
    signals.dead: _log(logging.ERROR, "is dead after attempt %(attempt)s of %(of)s: %(error)s"),
    signals.recovered: _log(logging.WARNING, "recovered from %(holder)s: %(reason)s"),
    signals.returned: _log(logging.INFO, "given back by %(holder)s: %(reason)s"),
    signals.snoozed: _log(logging.INFO, "put off until %(at)s: %(reason)s"),
    signals.cancelled: _log(logging.INFO, "cancelled: %(reason)s"),
    signals.retried: _log(logging.INFO, "set ready again by %(by)s"),
    signals.duplicate: _log(logging.INFO, "stands for another enqueue under its unique key"),
    signals.rescheduled: _log(logging.INFO, "moved by %(by)s, to be run at %(at)s"),
    signals.discarded: _log(logging.INFO, "deleted by %(by)s: %(name)s"),
    signals.repaired: _log(logging.WARNING, "repaired (%(kind)s): %(remedy)s"),
    signals.replaced: _log(logging.INFO, "is now what another enqueue under its unique key said"),
    signals.paused: _log_queue(logging.WARNING, "paused by %(by)s: %(reason)s"),
    signals.resumed: _log_queue(logging.INFO, "resumed by %(by)s"),
}


def connect() -> None:
    """Start logging."""
    for signal, (level, receiver) in _RECEIVERS.items():
        signal.connect(receiver, weak=False, dispatch_uid=signals.LOG)
        signals.logged[signal] = level
