"""The errors of tasks that are reported to clients, with their statuses."""

from __future__ import annotations

from leasing.api.errors import ERRORS, refusal_of
from leasing.exceptions import PayloadMismatch
from tasks.exceptions import (
    ClaimAnswered,
    ClaimUnderWay,
    InvalidArguments,
    InvalidSchedule,
    KeyBusy,
    NotSerializable,
    UnknownQueue,
    UnknownTask,
)

__all__ = ["refusal_of"]

ERRORS.update(
    dict.fromkeys((UnknownTask, UnknownQueue, InvalidArguments, NotSerializable), (400, ""))
)
_CONFLICTS = (KeyBusy, PayloadMismatch, InvalidSchedule, ClaimUnderWay, ClaimAnswered)
ERRORS.update(dict.fromkeys(_CONFLICTS, (409, "")))
