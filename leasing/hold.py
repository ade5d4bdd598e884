"""A hold: this process's live grip on one lease.

It is renewed by the keeper until the block ends, and it says when it is lost: the ``lost``
event is set, ``on_lost`` is called, ``ensure()`` raises, and leaving the block raises LeaseLost
unless the block already failed. A hold is lost when the database says so (revoked, taken over),
or when no renewal was answered in time. In a forked child it is lost from the start.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseLost
from leasing.keeper import Keeper, Store, keeper

logger = logging.getLogger("leasing")

#: How often a renewal by hand that met a locked row is tried, and the seconds between.
BUSY_TRIES, BUSY_PAUSE = 10, 0.05


@dataclass
class Grant:
    """One term of one holder, as the store granted it."""

    key: Any
    grant_id: uuid.UUID
    fencing_token: int
    holder: str
    resource: str
    #: Seconds that the grant and each renewal are good for.
    ttl: float
    expires_at: datetime
    #: What the store granted; only the store looks at it.
    row: Any


class GrantStore(Store, Protocol):
    """A store whose grants a hold can give back and report as lost."""

    def release(self, grant: Grant) -> None:
        """Give the grant back. Raises LeaseLost when it is over already."""

    def lost(self, grant: Grant, reason: str) -> None:
        """Tell the world that the holder of ``grant`` has heard of its loss."""


class Hold:
    """A grip on one lease, for ``with``. Made by ``Lease.objects.hold(...)``."""

    def __init__(
        self,
        store: GrantStore,
        acquire: Callable[[], Grant] | None = None,
        *,
        on_lost: Callable[[Hold], object] | None = None,
        keeper: Keeper = keeper,
    ) -> None:
        self.store = store
        #: Set once the hold is lost; ``lost.wait(seconds)`` is a sleep that ends early.
        self.lost = threading.Event()
        self.due_at = 0.0
        self.trusted_until = 0.0
        self._acquire = acquire
        self._grant: Grant | None = None
        self._on_lost = on_lost
        self._keeper = keeper
        self._reason = ""
        self._lock = threading.Lock()
        self._in_use = False
        self._settling = False

    # Taking and giving back

    def __enter__(self) -> Self:
        if self._acquire is None or self._in_use:
            raise RuntimeError("This hold is in use already.")
        sent_at = self._keeper.clock()
        self.adopt(self._acquire(), sent_at)
        return self

    def adopt(self, grant: Grant, sent_at: float) -> None:
        """Keep ``grant``, won by a request sent at ``sent_at`` on the holder's clock."""
        self.lost = threading.Event()
        self._reason = ""
        self._grant = grant
        self._in_use = True
        self._settling = False
        self.trusted_until = sent_at + grant.ttl - margin(grant.ttl)
        self.due_at = self._keeper.next_due(sent_at, self.interval)
        self._keeper.add(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._in_use:
                self.release()
        except LeaseLost:
            if error is None:
                raise
        except Exception as failure:
            # The work was done while the lease was held; the ttl frees what release could not.
            logger.warning("%s could not be released: %s", self.resource, failure)

    def release(self) -> None:
        """Give the lease back at once; the keeper stops renewing it. Again changes nothing.

        Raises LeaseLost when it was lost before.
        """
        if not self._in_use and not self.lost.is_set():
            return
        try:
            self.ensure()
        finally:
            self.leave()
        self.store.release(self._granted)

    def settle(self) -> None:
        """Go on renewing, but tell nobody when the term ends: the holder is ending it itself,
        by a write of its own."""
        self._settling = True

    def leave(self) -> None:
        """Stop renewing without giving back: the row is settled by other means."""
        with self._lock:
            self._in_use = False
            self.trusted_until = 0.0
        self._keeper.discard(self)

    # Believing

    @property
    def valid(self) -> bool:
        """Whether the lease is surely still held."""
        return not self.lost.is_set() and self._keeper.clock() < self.trusted_until

    def ensure(self) -> None:
        """Raise LeaseLost unless the lease is surely still held."""
        if not self.valid:
            self.lose("it was not renewed in time")
            raise LeaseLost(self.resource, self._reason or "it was released")

    def renew(self) -> None:
        """Renew now, without waiting for the keeper. A row that somebody else has locked is
        tried again for about half a second, and then left to the keeper. Raises LeaseLost."""
        for _ in range(BUSY_TRIES):
            self.ensure()
            sent_at = self._keeper.clock()
            answer = self.store.renew({self.key: self.grant_id}, self.interval)
            if self.key in answer.lost:
                self.lose(answer.lost[self.key])
            elif self.key in answer.renewed:
                self.renewed(sent_at, answer.renewed[self.key])
                self.due_at = self._keeper.next_due(sent_at, self.interval)
                self.ensure()
                return
            else:
                self.lost.wait(BUSY_PAUSE)
        self.ensure()

    # What the keeper calls

    def renewed(self, sent_at: float, expires_at: datetime) -> None:
        """A renewal sent at ``sent_at`` was answered. Too late an answer changes nothing."""
        with self._lock:
            if not self._in_use or self.lost.is_set():
                return
            if self._keeper.clock() >= self.trusted_until:
                return
            grant = self._granted
            self.trusted_until = max(self.trusted_until, sent_at + grant.ttl - margin(grant.ttl))
            grant.expires_at = expires_at

    def lose(self, reason: str) -> None:
        """The hold is over. Only the first call counts."""
        with self._lock:
            if self.lost.is_set() or not self._in_use:
                return
            self._reason = reason
            self.trusted_until = 0.0
            self.lost.set()
        self._keeper.discard(self)
        if not self._settling:
            self._keeper.tell(self._tell)

    def forget(self) -> None:
        """In a forked child: not ours, and nobody is told."""
        self._lock = threading.Lock()
        self.lost = threading.Event()
        self.lost.set()
        self._reason = "this process is a fork of its holder"

    def _tell(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        finally:
            self.store.lost(self._granted, self._reason)

    # What is held

    @property
    def _granted(self) -> Grant:
        if self._grant is None:
            raise RuntimeError("Nothing is held: enter the hold first.")
        return self._grant

    @property
    def key(self) -> Any:
        return self._granted.key

    @property
    def grant_id(self) -> uuid.UUID:
        """The proof of this term."""
        return self._granted.grant_id

    @property
    def fencing_token(self) -> int:
        """Greater than any token of this resource before: let what you write to refuse less."""
        return self._granted.fencing_token

    @property
    def holder(self) -> str:
        return self._granted.holder

    @property
    def resource(self) -> str:
        return self._granted.resource

    @property
    def expires_at(self) -> datetime:
        """When the database lets others have the lease, unless it is renewed before."""
        return self._granted.expires_at

    @property
    def interval(self) -> float:
        """Seconds between renewals."""
        ttl = self._granted.ttl
        every = leasing_settings.RENEW_EVERY
        return ttl / 3 if every is None else min(every, ttl / 2)


def margin(ttl: float) -> float:
    """Seconds before the database's expiry at which trust ends, for a ttl in seconds."""
    configured = leasing_settings.MARGIN
    wanted = max(0.2, 0.02 * ttl) if configured is None else configured
    # A margin that leaves nothing would lose every hold as it is taken.
    return min(wanted, ttl / 3)
