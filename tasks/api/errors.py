"""Which errors of tasks a client is told of, and with which status."""

from __future__ import annotations

from ninja.errors import HttpError

from leasing.api.errors import ERRORS
from leasing.exceptions import PayloadMismatch
from tasks.exceptions import (
    ClaimUnderWay,
    InvalidArguments,
    InvalidSchedule,
    KeyBusy,
    NotSerializable,
    UnknownQueue,
    UnknownTask,
)

ERRORS.update(
    dict.fromkeys((UnknownTask, UnknownQueue, InvalidArguments, NotSerializable), (400, ""))
)
ERRORS.update(dict.fromkeys((KeyBusy, PayloadMismatch, InvalidSchedule, ClaimUnderWay), (409, "")))


def refusal_of(error: Exception) -> tuple[int, str] | None:
    """Return the status and the text with which one item of a batch is refused by ``error``; None
    where the error is about the whole request: the database is away, or there is a fault."""
    if isinstance(error, HttpError):
        return error.status_code, str(error)
    for kind in type(error).__mro__:
        if kind in ERRORS:
            status, text = ERRORS[kind]
            return None if status >= 500 else (status, text or str(error))
    return None
