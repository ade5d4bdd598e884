"""What the log says of what happens to tasks. Connected when the app is ready."""

from __future__ import annotations

import logging
from typing import Any, Final

from leasing.runtime.event_logger import get_logger
from tasks import signals

logger = get_logger("tasks")

#: The columns that are fields, by the names they have there.
COLUMNS: Final = {
    "task_id": "id",
    "task_name": "name",
    "queue": "queue",
    "attempt": "attempts",
    "max_attempts": "max_attempts",
    "holder": "holder",
    "fencing_token": "fencing_token",
    "scheduled_at": "scheduled_at",
}
#: The details of signals that are.
DETAILS: Final = ("holder", "error", "reason", "kind", "remedy")


def said_of(task: Any, **details: Any) -> dict[str, Any]:
    """The fields of a record about ``task``, a row or what a worker carries."""
    said = {name: _known(task, column) for name, column in COLUMNS.items()}
    said |= {name: details[name] for name in DETAILS if details.get(name)}
    return said | {"actor": details.get("by")}


def said_of_queue(queue: str, by: str = "", reason: str = "", **details: Any) -> dict[str, Any]:
    """The fields of a record about the queue of that name."""
    return {"queue": queue, "actor": by, "reason": reason}


def _known(task: Any, column: str) -> Any:
    # A column that was not read is not worth a query.
    read = getattr(task, "__dict__", None)
    return getattr(task, column, None) if read is None else read.get(column)


_LINES = {
    signals.enqueued: (logging.DEBUG, "task.enqueued", "enqueued: %(task_name)s"),
    signals.claimed: (
        logging.INFO,
        "task.claimed",
        "claimed by %(holder)s: %(task_name)s, attempt %(attempt)s of %(max_attempts)s",
    ),
    signals.completed: (logging.INFO, "task.completed", "completed by %(holder)s"),
    signals.failed: (
        logging.WARNING,
        "task.failed",
        "failed in attempt %(attempt)s of %(max_attempts)s, again at %(scheduled_at)s: %(error)s",
    ),
    signals.dead: (
        logging.ERROR,
        "task.dead",
        "is dead after attempt %(attempt)s of %(max_attempts)s: %(error)s",
    ),
    signals.recovered: (
        logging.WARNING,
        "task.recovered",
        "recovered from %(holder)s: %(reason)s",
    ),
    signals.returned: (logging.INFO, "task.returned", "given back by %(holder)s: %(reason)s"),
    signals.snoozed: (logging.INFO, "task.snoozed", "put off until %(scheduled_at)s: %(reason)s"),
    signals.cancelled: (logging.INFO, "task.cancelled", "cancelled: %(reason)s"),
    signals.retried: (logging.INFO, "task.retried", "set ready again by %(actor)s"),
    signals.duplicate: (
        logging.INFO,
        "task.duplicate",
        "stands for another enqueue under its unique key",
    ),
    signals.rescheduled: (
        logging.INFO,
        "task.rescheduled",
        "moved by %(actor)s, to be run at %(scheduled_at)s",
    ),
    signals.discarded: (logging.INFO, "task.discarded", "deleted by %(actor)s: %(task_name)s"),
    signals.repaired: (logging.WARNING, "task.repaired", "repaired (%(kind)s): %(remedy)s"),
    signals.replaced: (
        logging.INFO,
        "task.replaced",
        "is now what another enqueue under its unique key said",
    ),
}
_LINES_OF_QUEUES = {
    signals.paused: (logging.WARNING, "queue.paused", "paused by %(actor)s: %(reason)s"),
    signals.resumed: (logging.INFO, "queue.resumed", "resumed by %(actor)s"),
}


def connect() -> None:
    """Start logging."""
    for signal, (level, event, text) in _LINES.items():
        signal.log_to(logger, level, event, "task %(task_id)s " + text, said_of)
    for of_queue, (level, event, text) in _LINES_OF_QUEUES.items():
        of_queue.log_to(logger, level, event, "queue %(queue)s " + text, said_of_queue)
