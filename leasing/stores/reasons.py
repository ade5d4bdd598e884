"""Why a term is over: words for people, with a code by which they can be counted."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """Reasons why a term ended against its holder's will."""

    #: It was not renewed in time.
    OVERDUE = "overdue"
    #: Somebody else has the lease.
    TAKEN = "taken"
    #: The database says that its deadline has passed.
    EXPIRED = "expired"
    REVOKED = "revoked"
    #: The row is given back already, or its work has ended.
    ENDED = "ended"
    #: The row is deleted.
    GONE = "gone"
    #: It was held for as long as it may be.
    LIMIT = "limit"
    #: Somebody of higher priority asked for it.
    PREEMPTED = "preempted"
    #: The thread, coroutine or process that carried its work has ended.
    ABANDONED = "abandoned"
    OTHER = "other"


class Reason(str):
    """Why, in words; ``why`` is the kind."""

    why: Why

    def __new__(cls, why: Why, words: str) -> Reason:
        reason = super().__new__(cls, words)
        reason.why = why
        return reason


def why_of(reason: str) -> Why:
    """The kind of ``reason``; OTHER of one that is nothing but words."""
    return reason.why if isinstance(reason, Reason) else Why.OTHER
