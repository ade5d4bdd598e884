"""What the log says of what happens to tasks. Connected when the app is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tasks import signals

logger = logging.getLogger("tasks")

#: What a signal says in the log: a format string, and the values for it.
Line = Callable[..., tuple[str, dict[str, Any]]]


#: What the lines below can say. A claimed task has its other columns only when they are read.
_VALUES: dict[str, Callable[[Any, dict[str, Any]], object]] = {
    "name": lambda task, details: task.name,
    "attempt": lambda task, details: task.attempts,
    "of": lambda task, details: task.max_attempts,
    "holder": lambda task, details: details.get("holder") or task.holder,
    "error": lambda task, details: details.get("error", ""),
    "reason": lambda task, details: details.get("reason", ""),
    "by": lambda task, details: details.get("by") or "an operator",
    "at": lambda task, details: task.scheduled_at,
    "kind": lambda task, details: details.get("kind", ""),
    "remedy": lambda task, details: details.get("remedy", ""),
}


def _line(text: str) -> Line:
    said = {name: value for name, value in _VALUES.items() if f"%({name})" in text}

    def line(task: Any, **details: Any) -> tuple[str, dict[str, Any]]:
        values = {name: value(task, details) for name, value in said.items()}
        return "task %(id)s " + text, {"id": task.pk, **values}

    return line


def _line_of_queue(text: str) -> Line:
    def line(
        queue: str, by: str = "", reason: str = "", **details: Any
    ) -> tuple[str, dict[str, Any]]:
        said = {"queue": queue, "by": by or "an operator", "reason": reason or "no reason given"}
        return "queue %(queue)s " + text, said

    return line


_LINES = {
    signals.enqueued: (logging.DEBUG, _line("enqueued: %(name)s")),
    signals.claimed: (
        logging.INFO,
        _line("claimed by %(holder)s: %(name)s, attempt %(attempt)s of %(of)s"),
    ),
    signals.completed: (logging.INFO, _line("completed by %(holder)s")),
    signals.failed: (
        logging.WARNING,
        _line("failed in attempt %(attempt)s of %(of)s, again at %(at)s: %(error)s"),
    ),
    signals.dead: (logging.ERROR, _line("is dead after attempt %(attempt)s of %(of)s: %(error)s")),
    signals.recovered: (logging.WARNING, _line("recovered from %(holder)s: %(reason)s")),
    signals.returned: (logging.INFO, _line("given back by %(holder)s: %(reason)s")),
    signals.snoozed: (logging.INFO, _line("put off until %(at)s: %(reason)s")),
    signals.cancelled: (logging.INFO, _line("cancelled: %(reason)s")),
    signals.retried: (logging.INFO, _line("set ready again by %(by)s")),
    signals.duplicate: (logging.INFO, _line("stands for another enqueue under its unique key")),
    signals.rescheduled: (logging.INFO, _line("moved by %(by)s, to be run at %(at)s")),
    signals.discarded: (logging.INFO, _line("deleted by %(by)s: %(name)s")),
    signals.repaired: (logging.WARNING, _line("repaired (%(kind)s): %(remedy)s")),
    signals.replaced: (
        logging.INFO,
        _line("is now what another enqueue under its unique key said"),
    ),
    signals.paused: (logging.WARNING, _line_of_queue("paused by %(by)s: %(reason)s")),
    signals.resumed: (logging.INFO, _line_of_queue("resumed by %(by)s")),
}


def connect() -> None:
    """Start logging."""
    for signal, (level, line) in _LINES.items():
        signal.log_to(logger, level, line)
