"""One grant that this process was given: what its store answered, what the keeper renews, what its
holder uses, and how it ends. It is never used twice: a hold that is entered again has another.

    state       its holder                             it is
    DETACHED    has not begun, or has ended its row    neither renewed nor released: it ends by
                by a write of its own                  other means, or by its ttl
    HELD        works under it                         renewed, and trusted until ``trusted_until``
    ENDING      is ending it by a write of its own     the same; a loss is no news
    LOST        works on, until it learns of that      over: the store says so, or no renewal was
                                                       answered in time
    UNRELEASED  has left it                            being released, or that failed: it can be
                                                       tried again
    RELEASED    has left it, or knows of its loss      over

An event below is what it makes of each state; a state that it does not name it leaves as it is. So
an answer that comes late wakes no term that is over. All that changes the state is in this one
file, under one lock.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from types import NoneType
from typing import Any, Self

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseLost
from leasing.holding.interrupt import Interrupt
from leasing.holding.keeper import Keeper, keeper
from leasing.runtime.aio import in_thread
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened
from leasing.runtime.terminal import label
from leasing.store import Reason, Renewal, Why

#: Tries of ``renew()`` while the row is locked, and the seconds between them.
BUSY_TRIES, BUSY_PAUSE = 10, 0.05

FORKED = Reason(Why.OTHER, "this process is a fork of the holder")


class State(StrEnum):
    """The state of a term, as its repr shows it."""

    DETACHED = "detached"
    HELD = "held"
    ENDING = "held, about to end"
    LOST = "lost"
    UNRELEASED = "not released yet"
    RELEASED = "released"


KEEP = {State.DETACHED: State.HELD}
EXPECT_END = {State.HELD: State.ENDING}
LOSE = {State.HELD: State.LOST, State.ENDING: State.LOST}
DETACH = {State.HELD: State.DETACHED, State.ENDING: State.DETACHED, State.LOST: State.RELEASED}
RELEASE = {State.HELD: State.UNRELEASED, State.ENDING: State.UNRELEASED}
#: The store has released it ...
CONFIRM = {State.UNRELEASED: State.RELEASED}
#: ... or answers that it was lost before, as its holder knows then.
REFUSE = {State.UNRELEASED: State.RELEASED}

#: The states in which its holder has not left it.
KEPT = frozenset({State.HELD, State.ENDING, State.LOST})

#: Held for a few assignments at a time, and for no call that could wait: one lock for all terms of
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


@dataclass(eq=False, repr=False)
class Term:
    """One term of one holder, as the store granted it, and what became of it.

    Args:
        key: The key of its row in the store, together with its ``grant_id``; hashable.
        grant_id: The proof of this term: no two have the same.
        fencing_token: Greater than any earlier token of this resource: pass it with every write, so
            that the target rejects lower ones.
        holder: The name of its holder.
        resource: The name of what is leased.
        ttl: Seconds for which the grant and each renewal are valid.
        remaining: Seconds that were left by the store's clock when it answered.
        expires_at: The moment from which the store grants the lease to others, unless it is renewed
            before.
        sent_at: The moment on the holder's clock before the request was sent, from which they are
            counted.
        row: The granted row, for the store and for receivers of signals.
        store: The store that granted it.
    """

    key: Any
    grant_id: uuid.UUID
    fencing_token: int
    holder: str
    resource: str
    ttl: float
    remaining: float
    expires_at: datetime
    sent_at: float = 0.0
    row: Any = None
    #: Without a default of the class: an attempt of a task is filled in when it is looked for.
    store: Any = field(default_factory=NoneType)

    # A default is the class's until an attribute is set: most terms of short work end without ever
    # being renewed, and make only what they use.
    #: Seconds between renewals, and before the expiry at which trust ends: once it is kept.
    interval: float = field(default=0.0, init=False)
    margin: float = field(default=0.0, init=False)
    due_at: float = field(default=0.0, init=False)
    #: The moment on the holder's clock at which ``valid`` ends, unless it is renewed before.
    trusted_until: float = field(default=0.0, init=False)
    #: The name of a requester of higher priority, for whom to finish soon; empty while there is
    #: none.
    yield_to: str = field(default="", init=False)
    state: State = field(default=State.DETACHED, init=False)
    #: Why it was lost; empty unless it was.
    reason: str = field(default="", init=False)
    #: Called once with this object, on a thread of the keeper, when it is lost.
    on_lost: Callable[[Any], object] | None = field(default=None, init=False)
    #: Called once with this object when somebody of higher priority asks for it.
    on_yield: Callable[[Any], object] | None = field(default=None, init=False)
    #: Returns True while the thread or coroutine of the work runs; otherwise it is not renewed.
    proof: Callable[[], bool] | None = field(default=None, init=False)
    #: True if the callbacks end at once: they do not wait behind others that hang.
    is_prompt: bool = field(default=False, init=False)
    #: Cancels the block that it is held for.
    interrupt: Interrupt | None = field(default=None, init=False)
    _keeper: Keeper = field(default=keeper, init=False)
    _loss: Loss | None = field(default=None, init=False)
    _is_last: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        if self.valid:
            state = f"held, {self.trusted_until - self._keeper.clock():.1f} s left"
        elif self.is_lost or self.state in KEPT:
            state = f"lost: {self.reason or self.overdue_reason}"
        else:
            state = self.state
        who = f"holder {self.holder}, token {self.fencing_token}"
        return f"<Term {label(self.resource)}: {who}, {state}>"

    # For its holder

    @property
    def valid(self) -> bool:
        """Return True if the lease is certainly still held."""
        return self._keeper.clock() < self.trusted_until

    @property
    def lost(self) -> Loss:
        """An event that is set, and true, once it is lost: ``if term.lost``.
        ``term.lost.wait(seconds)`` is a sleep that ends early."""
        with _lock:
            # Made on first use: an event takes as much memory as all the rest.
            if self._loss is None:
                self._loss = Loss()
                if self.reason:
                    self._loss.set()
            return self._loss

    def ensure(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        if not self.valid:
            self.mark_lost(self.overdue_reason)
            raise LeaseLost(self.resource, self.reason or "it was released")

    def renew(self) -> None:
        """Renew now, without waiting for the keeper. If another transaction has locked the row,
        this is tried for about half a second and then left to the keeper. Raises LeaseLost."""
        keeper = self._keeper
        for _ in range(BUSY_TRIES):
            self.ensure()
            sent_at = keeper.clock()
            answer = self.store.renew({self.key: self.grant_id}, self.interval)
            told = {"answer": answer, "sent_at": sent_at, "now": keeper.clock()}
            happened("lease.renewals", [self], store=self.store, **told)
            if self.key in answer.lost:
                self.mark_lost(answer.lost[self.key])
            elif self.key in answer.renewed:
                self.renewed(sent_at, answer.renewed[self.key])
                self.due_at = sent_at + self.interval * keeper.jitter(self.store)
                self.ensure()
                return
            else:
                self.lost.wait(BUSY_PAUSE)
        self.ensure()

    def still_mine(self) -> AbstractContextManager[None]:
        """A block for your own writes: one transaction, which commits only if the lease is still
        held at the commit, by the database's clock.

        The lease's row is locked during the block. Nobody can take it and it cannot be renewed
        either, so keep the block well below the ttl. Raises LeaseLost at the beginning or at the
        end; nothing is written then.
        """
        self.ensure()
        block: AbstractContextManager[None] = self.store.proving(self.held_row)
        return block

    def refused(self, verb: str, reason: str) -> None:
        """Record that the target refused a late write under this term."""
        self.store.refused(self.held_row, verb, reason)

    def release(self) -> None:
        """Release the lease now; the keeper stops renewing it. A second call changes nothing, or
        tries again if the first has failed.

        Raises LeaseLost if it was lost before.
        """
        if self._keeper.clock() >= self.trusted_until:
            self.mark_lost(self.overdue_reason)
        leave_all([self], RELEASE)
        if self.reason:
            self.detach()
            raise LeaseLost(self.resource, self.reason)
        if self.state is not State.UNRELEASED:
            return
        try:
            self.store.release(self)
        except LeaseLost as loss:
            self.refuse(loss.reason)
            raise
        confirm_all([self])  # and not before: after a failure a second call tries again

    # Its state

    @property
    def is_kept(self) -> bool:
        """Return True until its holder leaves it, also once it is lost."""
        return self.state in KEPT

    @property
    def is_lost(self) -> bool:
        """Return True once it is lost."""
        return bool(self.reason)

    def expect_end(self) -> None:
        """Continue to renew, but do not report a loss: the holder is ending it by a write of its
        own."""
        with _lock:
            self.state = EXPECT_END.get(self.state, self.state)

    def detach(self) -> None:
        """Stop renewing without a release: the row is ended by other means."""
        detach_all([self])

    def resume(self, trusted_until: float) -> None:
        """Undo ``detach``: the row was not ended after all. It is trusted as before, until
        ``trusted_until``."""
        with _lock:
            if self.state not in KEEP:
                return
            self.state, self.trusted_until = KEEP[self.state], trusted_until
        self._keeper.add([self])

    def mark_lost(self, reason: str) -> None:
        """Mark it lost for ``reason``. Only the first call counts."""
        self._lose(LOSE, reason)

    def _lose(self, event: Mapping[State, State], reason: str) -> None:
        with _lock:
            is_news = self.state is not State.ENDING
            if self.state not in event:
                return
            self.state = event[self.state]
            self.reason = reason or Reason(Why.OTHER, "its store gave no reason")
            self.trusted_until = 0.0
            if self._loss is not None:
                self._loss.set()
        self._keeper.discard([self])
        happened("hold.lost", [self], reason=reason)
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()
        if is_news:
            try:
                self._keeper.call(self._tell_lost, is_prompt=self.is_prompt)
            finally:  # without threads the callback runs here, and may raise
                self._keeper.call(partial(self.store.lost, self, reason))

    def refuse(self, reason: str) -> None:
        """Mark it lost by a release that the store refused for ``reason``."""
        self._lose(REFUSE, reason)

    def forget(self) -> None:
        """Mark it lost in a forked child, which never held it, without a callback."""
        # Without the lock, which a thread of the parent may have had.
        self.state, self.reason, self.trusted_until = State.LOST, FORKED, 0.0
        self._loss = self.interrupt = None

    # What the keeper calls

    def renewed(self, sent_at: float, renewal: Renewal) -> None:
        """Extend trust by the answer to a renewal sent at ``sent_at``; a late answer is ignored."""
        if self._keeper.clock() >= self.trusted_until:
            self.mark_lost(self.overdue_reason)
        with _lock:
            if self.state not in LOSE:
                return
            believed = sent_at + renewal.remaining - self.margin
            self.trusted_until = max(self.trusted_until, believed)
            self.expires_at = renewal.expires_at
            asked = renewal.yield_to and not self.yield_to
            self.yield_to = renewal.yield_to
            self._is_last = renewal.is_last
        happened("hold.renewed", [self])
        if asked:
            self._keeper.call(self._tell_asked, is_prompt=self.is_prompt)

    def goes_on(self) -> bool:
        """Return True unless the thread or coroutine of the work is known to have ended."""
        return self.proof is None or self.proof()

    @property
    def overdue_reason(self) -> Reason:
        """The reason of the loss when trust ends."""
        # A request to cancel a task sets ``yield_to``, but does not end its renewals.
        if self.yield_to and self._is_last:
            words = f"preempted by {self.yield_to}, which has a higher priority"
            return Reason(Why.PREEMPTED, words)
        if self._is_last:
            return Reason(Why.LIMIT, "its maximum hold time (max_hold) was reached")
        return Reason(Why.OVERDUE, "it was not renewed in time")

    def _tell_asked(self) -> None:
        if self.on_yield is not None:
            self.on_yield(self)

    def _tell_lost(self) -> None:
        if self.on_lost is not None:
            self.on_lost(self)

    # What its block, its runner and its store call

    @property
    def granted_until(self) -> float:
        """Return the end of the grant on the holder's clock, without the margin, if it is never
        renewed."""
        return self.sent_at + self.remaining

    def extend(self, sent_at: float, renewal: Renewal) -> Self:
        """Count from the answer to a renewal sent at ``sent_at``, while nobody keeps it. Returns
        it."""
        self.sent_at, self.remaining = sent_at, renewal.remaining
        self.expires_at = renewal.expires_at
        return self

    @property
    def held_row(self) -> Any:
        """Return the row under this grant, for writes that prove it: a copy where the holder has
        read the row again, which may be revoked or under the grant of somebody else by now."""
        row, granted = self.row, self.grant_id
        # Most often the same object, which takes less time to see than that two are equal.
        is_same = row.grant_id is granted or row.grant_id == granted
        if is_same and row.fencing_token == self.fencing_token:
            return row
        row = copy(row)
        row.grant_id, row.fencing_token = granted, self.fencing_token
        row.holder, row.expires_at = self.holder, self.expires_at
        return row

    def end(self, error: BaseException | None) -> None:
        """Release it after work that ended with ``error``, or None. Raises LeaseLost if it was lost
        before, unless the work failed. A release that fails is logged."""
        try:
            if self.state in KEPT:
                self.release()
        except LeaseLost:
            if error is None:
                raise
        except Exception as failure:
            self.note_unreleased(failure)

    async def aleave(self, error: BaseException | None) -> None:
        """``end`` it with the block of a coroutine, and tell of that. One that a loss cancelled
        gets LeaseLost instead."""
        interrupt, self.interrupt = self.interrupt, None
        try:
            if interrupt is not None and interrupt.explains(error):
                self.detach()
                raise LeaseLost(self.resource, self.reason) from error
            if self.is_kept:
                await in_thread(self.end, error)
        finally:
            happened("hold.ended", [self])

    def note_unreleased(self, failure: Exception) -> None:
        """Log that the release failed. The work was done under the lease; it ends by its ttl, or by
        a later ``release``."""
        log.lease_unreleased(resource=self.resource, holder=self.holder, error=failure)

    def interrupt_by(self, interrupt: Interrupt) -> None:
        """Call ``interrupt`` when it is lost, or now if it is lost already."""
        self.interrupt = interrupt
        if self.is_lost:
            interrupt()


# How often a term is renewed, and how long before its expiry trust in it ends


def interval(ttl: float) -> float:
    """Seconds between renewals, for a ttl in seconds."""
    every = leasing_settings.RENEW_EVERY
    return ttl / 3 if every is None else min(every, ttl / 2)


def longest_pause(ttl: float) -> float:
    """Return the longest planned pause between two renewals."""
    return interval(ttl) * (1 + leasing_settings.JITTER)


def margin(ttl: float) -> float:
    """Seconds before the database's expiry at which trust ends, for a ttl in seconds."""
    configured = leasing_settings.MARGIN
    wanted = max(0.2, 0.02 * ttl) if configured is None else configured
    # A margin that leaves nothing would lose every hold as it is taken.
    return min(wanted, ttl / 3)


# Many at a time. All terms of one call have the same keeper.


def keep_all(terms: Sequence[Term], keeper: Keeper = keeper) -> None:
    """Trust ``terms``, and have them renewed by ``keeper``. All were granted at the same time and
    for the same ttl, the earliest first.

    Raises RuntimeError if the thread that would renew them cannot be started.
    """
    if not terms:
        return
    first = terms[0]
    between, distrusted = interval(first.ttl), margin(first.ttl)
    # One statement renews them all.
    due_at = first.sent_at + between * keeper.jitter(first.store)
    with _lock:
        kept = [term for term in terms if term.state in KEEP]
        for term in kept:
            term.state, term._keeper = KEEP[term.state], keeper
            term.interval, term.margin = between, distrusted
            term.trusted_until, term.due_at = term.granted_until - distrusted, due_at
    try:
        keeper.add(kept)
    except RuntimeError:
        detach_all(kept)
        raise


def leave_all(terms: Sequence[Term], event: Mapping[State, State]) -> None:
    """Take ``event``, after which nothing is renewed: DETACH or RELEASE."""
    if not terms:
        return
    with _lock:
        for term in terms:
            term.state = event.get(term.state, term.state)
            term.trusted_until = 0.0
    terms[0]._keeper.discard(terms)


def confirm_all(terms: Sequence[Term]) -> None:
    """Mark ``terms`` as released, for the store has confirmed that. A term that was lost meanwhile
    stays lost."""
    with _lock:
        for term in terms:
            term.state = CONFIRM.get(term.state, term.state)


def detach_all(terms: Sequence[Term]) -> None:
    """``detach`` each."""
    leave_all(terms, DETACH)
