"""The contract between holds and the stores that keep their grants.

Holds and the keeper use these classes only. ``leasing.stores.rows`` keeps grants in rows of the
database; another store (a server, a quorum) would be a module next to it.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol


@dataclass(slots=True)
class Grant:
    """One term of one holder, as the store granted it."""

    key: Any
    grant_id: uuid.UUID
    fencing_token: int
    holder: str
    resource: str
    #: Seconds for which the grant and each renewal are valid.
    ttl: float
    #: Seconds that were left by the store's clock when it answered ...
    remaining: float
    #: ... a request that was sent at this moment on the holder's clock.
    sent_at: float
    expires_at: datetime
    #: The granted row; only the store reads it.
    row: Any

    @property
    def held_row(self) -> Any:
        """Return the row under this grant, for writes that prove it: a copy where the holder has
        read the row again, which may be under the grant of somebody else by now."""
        if self.row.grant_id == self.grant_id:
            return self.row
        row = copy(self.row)
        row.grant_id, row.fencing_token = self.grant_id, self.fencing_token
        row.holder, row.expires_at = self.holder, self.expires_at
        return row


@dataclass(frozen=True, slots=True)
class Renewal:
    """The store's answer for one grant that it renewed."""

    expires_at: datetime
    #: Seconds that were left by the store's clock when it answered.
    remaining: float
    #: The requester that asked the holder to yield; empty when there is none.
    yield_to: str = ""
    #: True if later renewals cannot move the deadline any more.
    is_last: bool = False


@dataclass(slots=True)
class Renewals:
    """The answer to a renewal of many grants. The rows of keys in neither dict were locked."""

    renewed: dict[Any, Renewal] = field(default_factory=dict)
    #: The reason of each loss, by key.
    lost: dict[Any, str] = field(default_factory=dict)


class Store(Hashable, Protocol):
    """Keeps grants. Holds of equal stores are renewed together."""

    def open(self) -> None:
        """Called on the renewing thread before its first request."""

    def close(self) -> None:
        """Called on the renewing thread when nothing is left to renew."""

    def abort(self) -> None:
        """Called on another thread: make a request of the renewing thread that hangs fail."""

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        """Renew each key's grant; give up after ``timeout`` seconds."""

    def release(self, grant: Grant) -> None:
        """Release the grant. Raises LeaseLost if it has ended already."""

    def lost(self, grant: Grant, reason: str) -> None:
        """Record and signal that the holder of ``grant`` has learned of its loss."""

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Record and signal that a target refused a late write.

        Args:
            row: The row with the grant under which it was written.
            verb: The name of the write.
            reason: Why it was refused.
        """

    def proving(self, row: Any) -> AbstractContextManager[None]:
        """A transaction of the store that commits only if the grant of ``row`` is still held."""


# Why a term is over: words for people, with a code by which they can be counted


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
