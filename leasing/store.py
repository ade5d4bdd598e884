"""The contract of stores: what keeps grants, and says who holds a lease.

Holds and the keeper use a ``Store``. A ``NamedStore`` is an entry of LEASING["STORES"], which names
are held in: ``leasing.stores`` has those in rows of the database, in memory, and behind HTTP. A
store of your own derives from ``leasing.stores.base.BaseStore``, and is tried out by
``leasing.testing.contract``.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack

if TYPE_CHECKING:
    import threading

    from leasing.conf import Wait
    from leasing.holding.hold import Hold, TermCallback
    from leasing.holding.term import Term
    from leasing.validation.terms import Terms


#: Grants that a store is asked to renew at once: as many as a service takes with one request.
MAX_RENEWED: Final = 1000


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

    @property
    def is_metered(self) -> bool:
        """Return True if requests are what counts: all its holds of like intervals are renewed when
        one of them is due, and no sooner than an interval after the last time."""

    def open(self) -> None:
        """Called on the renewing thread before its first request."""

    def close(self) -> None:
        """Called on the renewing thread when nothing is left to renew."""

    def abort(self) -> None:
        """Called on another thread: make a request of the renewing thread that hangs fail."""

    def renew(self, grants: Mapping[Any, uuid.UUID], timeout: float) -> Renewals:
        """Renew each key's grant, MAX_RENEWED at most; give up after ``timeout`` seconds."""

    def release(self, term: Term) -> None:
        """Release ``term``. Raises LeaseLost if it has ended already."""

    def lost(self, term: Term, reason: str) -> None:
        """Record and signal that the holder of ``term`` has learned of its loss."""

    def refused(self, row: Any, verb: str, reason: str) -> None:
        """Record and signal that a target refused a late write.

        Args:
            row: The row with the grant under which it was written.
            verb: The name of the write.
            reason: Why it was refused.
        """

    def proving(self, row: Any) -> AbstractContextManager[None]:
        """A transaction of the store that commits only if the grant of ``row`` is still held."""


@dataclass(frozen=True)
class Incumbent:
    """The current holder of a lease, according to its store."""

    holder: str
    fencing_token: int
    #: The moment at which its term ends, unless it is renewed before.
    expires_at: datetime


class TermOptions(TypedDict, total=False):
    """The terms of a named lease as a caller gives them: ``LeaseQuerySet`` explains them."""

    holder: str | None
    ttl: float | timedelta | None
    priority: int
    max_hold: float | timedelta | None
    grace: float | timedelta | None
    preempt_after: float | timedelta | None
    metadata: dict[str, Any] | None


class HoldOptions(TermOptions, total=False):
    """The options of ``hold``, as ``LeaseQuerySet.hold`` explains them."""

    wait: Wait
    separate: bool
    stopping: threading.Event | None
    on_lost: TermCallback | None
    on_yield: TermCallback | None


class NamedStore(Store, Protocol):
    """A store of leases on names. Its verbs may be called from any thread.

    All of them raise StoreError, or a database's error, when the store does not do it.
    """

    def hold(self, resource: str, **options: Unpack[HoldOptions]) -> Hold:
        """Return a context manager, plain and async, that acquires ``resource``, waits for it if
        asked to, has it renewed while the block runs, and releases it at the end.

        Raises LeaseHeld, LeaseTimeout, InvalidResource, InvalidTTL, LeaseInTransaction, and
        UnsupportedByStore for options that the store does not have.
        """

    def acquire(self, resource: str, terms: Terms) -> Term:
        """Grant ``resource`` now. Nobody renews the grant. Raises LeaseHeld."""

    def revoke(self, resource: str, reason: str = "", by: str = "") -> bool:
        """Take ``resource`` from its holder and raise its token. Return True if it was held.

        Args:
            resource: The name of the resource.
            reason: Why, for the holder and the ledger.
            by: The operator.
        """

    def current(self, resource: str) -> Incumbent | None:
        """Return who holds ``resource`` now, by the store's clock; None if nobody does."""


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
    """A reason in words; ``why`` is the kind."""

    why: Why

    def __new__(cls, why: Why, words: str) -> Reason:
        reason = super().__new__(cls, words)
        reason.why = why
        return reason

    def __getnewargs__(self) -> tuple[Why, str]:  # type: ignore[override]
        return self.why, str(self)


def why_of(reason: str) -> Why:
    """The kind of ``reason``; OTHER of one that is nothing but words."""
    return reason.why if isinstance(reason, Reason) else Why.OTHER
