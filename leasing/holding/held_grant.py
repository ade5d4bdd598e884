"""One grant that this process holds, as the keeper renews it and a runner ends it.

kept       trusted until ``trusted_until``, and renewed by the keeper
abandoned  no longer renewed, and not released: the row is ended by other means. If it was not
           ended after all, the grant is kept again (``resume``)
lost       ended by the store's answer, or because no renewal was answered in time. Its holder
           learns of it once, unless it is ending the grant itself

All that changes the state is in this one file, under one lock: hence its length.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from leasing.exceptions import LeaseLost
from leasing.holding.interrupt import Interrupt
from leasing.holding.keeper import Keeper, keeper
from leasing.holding.trust import interval, margin
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened
from leasing.store import Grant, Reason, Renewal, Store, Why

#: The reason of a loss because the thread or coroutine that did the work has ended.
ABANDONED = Reason(Why.ABANDONED, "its thread or coroutine has ended")

#: Held for a few assignments at a time, and for no call that could wait: one lock for all grants of
#: the process takes less time than one for each.
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent may have had it.
    os.register_at_fork(after_in_child=_renew_lock)


class Loss(threading.Event):
    """An event that is true once it is set, and can be used as a condition."""

    def __bool__(self) -> bool:
        return self.is_set()


class HeldGrant:
    """A grant of this process, from ``keep`` to its end.

    Args:
        store: The store that granted it.
        grant: The answer of the store.
        on_lost: Called once with this object, on a thread of the keeper, when it is lost.
        on_yield: Called once with this object when somebody of higher priority asks for it.
        proof: Returns True while the thread or coroutine of the work runs; otherwise the grant is
            not renewed.
        are_prompt: True if the callbacks end at once: they do not wait behind others that hang.
        keeper: The keeper that renews it.
    """

    # A default is the class's until an attribute is set: most grants of short work end without ever
    # being renewed, and make only what they use.
    due_at: float = 0.0
    trusted_until: float = 0.0
    #: The name of the requester of higher priority; empty while there is none.
    yield_to: str = ""
    #: True until it is released or abandoned.
    is_kept: bool = False
    is_lost: bool = False
    #: Why it was lost.
    reason: str = ""
    #: Cancels the block that it is held for.
    interrupt: Interrupt | None = None
    _on_lost: Callable[[HeldGrant], object] | None = None
    _on_yield: Callable[[HeldGrant], object] | None = None
    _proof: Callable[[], bool] | None = None
    _are_prompt: bool = False
    _keeper: Keeper
    _loss: Loss | None = None
    _is_ending: bool = False
    _is_last: bool = False
    _is_unreleased: bool = False

    def __init__(
        self,
        store: Store,
        grant: Grant,
        *,
        on_lost: Callable[[HeldGrant], object] | None = None,
        on_yield: Callable[[HeldGrant], object] | None = None,
        proof: Callable[[], bool] | None = None,
        are_prompt: bool = False,
        keeper: Keeper = keeper,
    ) -> None:
        self._store = store
        self._grant = grant
        self._on_lost = on_lost
        self._on_yield = on_yield
        self._proof = proof
        self._are_prompt = are_prompt
        self._keeper = keeper

    @property
    def store(self) -> Store:
        return self._store

    @property
    def grant(self) -> Grant:
        return self._grant

    @property
    def granted_until(self) -> float:
        """Return the end of the grant on the holder's clock, without the margin, if it is never
        renewed."""
        return self.grant.sent_at + self.grant.remaining

    @property
    def key(self) -> Any:
        return self.grant.key

    @property
    def grant_id(self) -> uuid.UUID:
        return self.grant.grant_id

    @property
    def ttl(self) -> float:
        return self.grant.ttl

    @property
    def interval(self) -> float:
        """Seconds between renewals."""
        return interval(self.grant.ttl)

    # Keeping

    def keep(self) -> None:
        """Trust it, and have it renewed."""
        keep_all([self])

    def abandon(self) -> None:
        """Stop renewing without a release: the row is ended by other means."""
        abandon_all([self])

    def detach(self) -> None:
        """``abandon`` it for good, and drop its callbacks."""
        detach_all([self])

    def drop_callbacks(self) -> None:
        """Tell nobody of a loss from now on."""
        self._on_lost = self._on_yield = self._proof = None

    def resume(self, trusted_until: float) -> None:
        """Undo ``abandon``: the row was not ended after all. It is trusted as before, until
        ``trusted_until``."""
        with _lock:
            if self.is_lost:
                return
            self.is_kept, self.trusted_until = True, trusted_until
        self._keeper.add(self)

    def expect_end(self) -> None:
        """Continue to renew, but do not report a loss: the holder is ending the grant itself, by a
        write of its own."""
        self._is_ending = True

    def follow(self, *, inside: bool = True) -> None:
        """Tell that its block begins. With ``inside``, what this thread or coroutine does until
        ``unfollow`` is part of it."""
        happened("hold.begun", [self], inside=inside)

    def unfollow(self) -> None:
        happened("hold.ended", [self])

    # Giving back

    def release(self) -> None:
        """Release it now. A second call changes nothing, or tries again if the first has failed.

        Raises LeaseLost if it was lost before.
        """
        if self.is_kept or self.is_lost:
            try:
                self.ensure()
            finally:
                self.abandon()
            self._is_unreleased = True
        if not self._is_unreleased:
            return
        try:
            self.store.release(self.grant)
        except LeaseLost as loss:
            self.lose_late(loss.reason)
            raise
        self._is_unreleased = False  # and not before: after a failure a second call tries again

    def end(self, error: BaseException | None) -> None:
        """Release it after a block that ended with ``error``, or None. Raises LeaseLost if it was
        lost before, unless the block failed. A release that fails is logged."""
        try:
            if self.is_kept:
                self.release()
        except LeaseLost:
            if error is None:
                raise
        except Exception as failure:
            self.note_unreleased(failure)

    def lose_late(self, reason: str) -> None:
        """Mark it lost after a release that the store refused for ``reason``."""
        with _lock:
            self._is_unreleased, self.is_kept = False, True
        self.mark_lost(reason)
        self.abandon()

    def note_unreleased(self, failure: Exception) -> None:
        """Log that the release failed. The work was done under the lease; it ends by its ttl, or by
        a later ``release``."""
        self._is_unreleased = True
        grant = self.grant
        log.lease_unreleased(resource=grant.resource, holder=grant.holder, error=failure)

    def give_back(self) -> None:
        """Release a term that ``mark_lost`` ended in this process, and maybe not in the store."""
        self.store.release(self.grant)

    # Trust

    @property
    def loss(self) -> Loss:
        """Set once it is lost."""
        with _lock:
            # Made on first use: an event takes as much memory as all the rest.
            if self._loss is None:
                self._loss = Loss()
                if self.is_lost:
                    self._loss.set()
            return self._loss

    @property
    def state(self) -> str:
        """The state of the term, for people: with the time left, or the reason of the loss."""
        if self.valid:
            return f"held, {self.trusted_until - self._keeper.clock():.1f} s left"
        if self.is_lost or self.is_kept:
            return f"lost: {self.reason or self.overdue_reason}"
        return "not released yet" if self._is_unreleased else "released"

    @property
    def valid(self) -> bool:
        """Return True if it is certainly still held."""
        return not self.is_lost and self._keeper.clock() < self.trusted_until

    def ensure(self) -> None:
        """Raise LeaseLost unless it is certainly still held."""
        if not self.valid:
            self.mark_lost(self.overdue_reason)
            raise LeaseLost(self.grant.resource, self.reason or "it was released")

    def refused(self, verb: str, reason: str) -> None:
        """Record that the target refused a late write under this grant."""
        self.store.refused(self.grant.held_row, verb, reason)

    # What the keeper calls

    def renewed(self, sent_at: float, renewal: Renewal) -> None:
        """Extend trust by the answer to a renewal sent at ``sent_at``; a late answer is ignored."""
        if self._keeper.clock() >= self.trusted_until:
            self.mark_lost(self.overdue_reason)
        with _lock:
            if not self.is_kept or self.is_lost:
                return
            grant = self.grant
            believed = sent_at + renewal.remaining - margin(grant.ttl)
            self.trusted_until = max(self.trusted_until, believed)
            grant.expires_at = renewal.expires_at
            asked = renewal.yield_to and not self.yield_to
            self.yield_to = renewal.yield_to
            self._is_last = renewal.is_last
        happened("hold.renewed", [self])
        if asked:
            self._keeper.call(self._tell_asked, is_prompt=self._are_prompt)

    def goes_on(self) -> bool:
        """Return True unless the thread or coroutine of the work is known to have ended."""
        proof = self._proof
        return proof is None or proof()

    def give_up(self) -> None:
        """Mark it lost: the thread or coroutine of the work has ended."""
        self.mark_lost(ABANDONED)

    @property
    def overdue_reason(self) -> str:
        """The reason of the loss when trust ends."""
        # A request to cancel a task sets ``yield_to``, but does not end its renewals.
        if self.yield_to and self._is_last:
            words = f"preempted by {self.yield_to}, which has a higher priority"
            return Reason(Why.PREEMPTED, words)
        if self._is_last:
            return Reason(Why.LIMIT, "its maximum hold time (max_hold) was reached")
        return Reason(Why.OVERDUE, "it was not renewed in time")

    def mark_lost(self, reason: str) -> None:
        """Mark it lost for ``reason``. Only the first call counts."""
        with _lock:
            if self.is_lost or not self.is_kept:
                return
            self.reason = reason
            self.trusted_until = 0.0
            self.is_lost = True
            if self._loss is not None:
                self._loss.set()
        self._keeper.discard(self)
        happened("hold.lost", [self], reason=reason)
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()
        if not self._is_ending:
            self._say_lost(reason)

    def forget(self) -> None:
        """Mark it lost in a forked child, which never held it, without a callback."""
        self.is_lost, self._loss = True, None
        self.interrupt = None
        self.reason = "this process is a fork of the holder"

    def _tell_asked(self) -> None:
        on_yield = self._on_yield  # read once: ``detach`` may drop it meanwhile
        if on_yield is not None:
            on_yield(self)

    def _say_lost(self, reason: str) -> None:
        try:
            self._keeper.call(self._tell_lost, is_prompt=self._are_prompt)
        finally:  # without threads the callback runs here, and may raise
            self._keeper.call(partial(self.store.lost, self.grant, reason))

    def _tell_lost(self) -> None:
        on_lost = self._on_lost  # read once: ``detach`` may drop it meanwhile
        if on_lost is not None:
            on_lost(self)


# Many at a time. All grants of one call have the same keeper.

AnyHeld = TypeVar("AnyHeld", bound=HeldGrant)


def keep_all(held: Sequence[HeldGrant]) -> None:
    """``keep`` each. All were granted at the same time and for the same ttl, the earliest first.

    Raises RuntimeError if the thread that would renew them cannot be started.
    """
    if not held:
        return
    first, keeper = held[0].grant, held[0]._keeper
    distrusted = margin(first.ttl)
    # One statement renews them all.
    due_at = keeper.next_due(first.sent_at, interval(first.ttl), held[0].store)
    for each in held:
        each.trusted_until = each.granted_until - distrusted
        each.due_at = due_at
        each.is_kept = True
    try:
        keeper.add_many(held)
    except RuntimeError:
        _let_go(held)
        raise


def valid_of(held: Sequence[AnyHeld]) -> list[AnyHeld]:
    """Return those that are ``valid``."""
    if not held:
        return []
    now = held[0]._keeper.clock()
    return [each for each in held if not each.is_lost and now < each.trusted_until]


def abandon_all(held: Sequence[HeldGrant]) -> None:
    """``abandon`` each."""
    if held:
        _let_go(held)
        held[0]._keeper.discard_many(held)


def detach_all(held: Sequence[HeldGrant]) -> None:
    """``detach`` each."""
    abandon_all(held)
    for each in held:
        each.drop_callbacks()


def _let_go(held: Sequence[HeldGrant]) -> None:
    with _lock:
        for each in held:
            each.is_kept = False
            each.trusted_until = 0.0
