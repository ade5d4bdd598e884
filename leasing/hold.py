"""A hold: this process's live grip on one lease.

It is renewed by the keeper until the block ends, and it says when it is lost: the ``lost``
event is set, ``on_lost`` is called, ``ensure()`` raises, and leaving the block raises LeaseLost
unless the block already failed. A hold is lost when the database says so (revoked, taken over),
or when no renewal was answered in time. In a forked child it is lost from the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from leasing.conf import leasing_settings
from leasing.exceptions import LeaseLost
from leasing.keeper import Keeper, keeper
from leasing.runtime import probes
from leasing.runtime.aio import Steps, adrive, drive, in_thread
from leasing.runtime.event_logger import get_logger
from leasing.runtime.tracepoints import HoldTrace, points
from leasing.store import Grant, Renewal, Store
from leasing.stores.reasons import Reason, Why

logger = get_logger("leasing")

#: How often a renewal by hand that met a locked row is tried, and the seconds between.
BUSY_TRIES, BUSY_PAUSE = 10, 0.05

#: Why a hold is lost whose work nothing carries any more.
ABANDONED = Reason(Why.ABANDONED, "what carried its work has ended")


#: Begins to acquire: the steps that a driver does.
Acquire = Callable[[], Steps[Grant]]


class Hold:
    """A grip on one lease, for ``with`` and ``async with``. Made by ``Lease.objects.hold(...)``.

    It is renewed as long as ``proof``, if there is one, says that what carries the work goes on.
    ``on_lost`` and ``on_yield`` are called once, with the hold, on a thread of the keeper. Those
    that ``are_prompt`` end at once, and wait for no others that hang.
    """

    __slots__ = (
        "__weakref__",
        "_acquire",
        "_are_prompt",
        "_grant",
        "_in_use",
        "_interrupt",
        "_is_last",
        "_is_lost",
        "_is_unreleased",
        "_keeper",
        "_lock",
        "_lost",
        "_on_lost",
        "_on_yield",
        "_proof",
        "_reason",
        "_settling",
        "due_at",
        "store",
        "trace",
        "trusted_until",
        "yield_to",
    )

    def __init__(
        self,
        store: Store,
        acquire: Acquire | None = None,
        *,
        on_lost: Callable[[Hold], object] | None = None,
        on_yield: Callable[[Hold], object] | None = None,
        proof: Callable[[], bool] | None = None,
        are_prompt: bool = False,
        keeper: Keeper = keeper,
    ) -> None:
        self.store = store
        self._is_lost = False
        self._is_unreleased = False
        self._lost: threading.Event | None = None
        #: Who of higher priority asked for it; empty while nobody did. Finish soon then.
        self.yield_to = ""
        self.due_at = 0.0
        self.trusted_until = 0.0
        self._acquire = acquire
        self._grant: Grant | None = None
        self._on_lost = on_lost
        self._on_yield = on_yield
        self._are_prompt = are_prompt
        #: Return True while what carries the work goes on: else it is not renewed.
        self._proof = proof
        self._keeper = keeper
        self._reason = ""
        self._lock = threading.Lock()
        self._in_use = False
        self._settling = False
        self._is_last = False
        self._interrupt: Interrupt | None = None
        #: Who follows this hold; None unless leases are traced.
        self.trace: HoldTrace | None = None

    # Taking and giving back

    def __enter__(self) -> Self:
        self.adopt(drive(self._begin()))
        self.follow()
        return self

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
            self._log_unreleased(failure)
        finally:
            self._unfollow()

    async def __aenter__(self) -> Self:
        """As ``with``; in addition the body is cancelled when the hold is lost."""
        self.adopt(await adrive(self._begin()))
        self.follow()
        self._interrupt = Interrupt()
        if self._is_lost:
            self._interrupt()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._aend(error)
        finally:
            self._unfollow()

    async def _aend(self, error: BaseException | None) -> None:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and interrupt.explains(error):
            self.leave()
            raise LeaseLost(self.resource, self._reason) from error
        try:
            if self._in_use:
                await in_thread(self.release)
        except LeaseLost:
            if error is None:
                raise
        except Exception as failure:
            self._log_unreleased(failure)

    def _begin(self) -> Steps[Grant]:
        if self._acquire is None or self._in_use:
            raise RuntimeError("This hold is in use already.")
        self._keeper.start()  # before anything is held that nobody would renew
        return self._acquire()

    def adopt(self, grant: Grant) -> None:
        """Keep ``grant``."""
        self.take_on(grant, margin(grant.ttl))
        self.due_at = self._keeper.next_due(grant.sent_at, self.interval)
        try:
            self._keeper.add(self)
        except RuntimeError:  # there can be no thread that would renew it
            self._let_go()
            raise

    def take_on(self, grant: Grant, margin: float) -> None:
        """Believe in ``grant``, but for its last ``margin`` seconds. Whoever calls this says
        when it is due, and has it renewed."""
        self._is_lost, self._lost = False, None
        self.yield_to = ""
        self._reason = ""
        self._grant = grant
        self._in_use = True
        self._settling = False
        self._is_last = False
        self._is_unreleased = False
        self.trusted_until = grant.sent_at + grant.remaining - margin

    def follow(self, *, inside: bool = True) -> None:
        """Let its term be traced from now on, where leases are; and with ``inside`` let what this
        thread or coroutine does be a part of it, until the block ends."""
        if points.tracer is not None:
            self.trace = points.tracer.holding(self, inside)

    def _unfollow(self) -> None:
        trace, self.trace = self.trace, None
        if trace is not None:
            trace.close()

    def release(self) -> None:
        """Give the lease back at once; the keeper stops renewing it. Again changes nothing.

        Raises LeaseLost when it was lost before.
        """
        if self._in_use or self._is_lost:
            try:
                self.ensure()
            finally:
                self.leave()
            self._is_unreleased = True
        if not self._is_unreleased:
            return
        try:
            self.store.release(self._granted)
        except LeaseLost as loss:
            self._is_unreleased = False
            self._lose_late(loss.reason)
            raise
        self._is_unreleased = False  # and not before: after a failure a second call tries again

    def _lose_late(self, reason: str) -> None:
        """The store knew of the loss before we did."""
        with self._lock:
            self._in_use = True
        self.lose(reason)
        self.leave()

    def give_back(self) -> None:
        """Give back a term that was ended by ``lose`` here, and may stand in the store still."""
        self.store.release(self._granted)

    def settle(self) -> None:
        """Go on renewing, but tell nobody when the term ends: the holder is ending it itself,
        by a write of its own."""
        self._settling = True

    def leave(self) -> None:
        """Stop renewing without giving back: the row is settled by other means."""
        self._let_go()
        self._keeper.discard(self)

    def resume(self, trusted_until: float) -> None:
        """Undo ``leave``: the row was not settled after all. It is believed in as before, until
        ``trusted_until``."""
        with self._lock:
            if self._is_lost:
                return
            self._in_use, self.trusted_until = True, trusted_until
        self._keeper.add(self)

    def _let_go(self) -> None:
        with self._lock:
            self._in_use = False
            self.trusted_until = 0.0

    def drop(self) -> None:
        """``leave``, for good: nobody is called any more, and whom it would have called it does
        not keep."""
        self.leave()
        self._on_lost = self._on_yield = self._proof = None

    def _log_unreleased(self, failure: Exception) -> None:
        # The work was done while the lease was held; the ttl frees what release could not.
        logger.warning(
            "%s could not be released: %s",
            self.resource,
            failure,
            event="lease.unreleased",
            resource=self.resource,
            holder=self.holder,
            error=failure,
        )

    # Believing

    @property
    def lost(self) -> threading.Event:
        """Set once the hold is lost; ``lost.wait(seconds)`` is a sleep that ends early."""
        with self._lock:
            # Made when it is first asked for: an event weighs as much as the rest of a hold.
            if self._lost is None:
                self._lost = threading.Event()
                if self._is_lost:
                    self._lost.set()
            return self._lost

    @property
    def is_kept(self) -> bool:
        """Whether it has been entered, and neither released nor left."""
        return self._in_use

    @property
    def is_lost(self) -> bool:
        """Whether ``lost`` is set."""
        return self._is_lost

    @property
    def valid(self) -> bool:
        """Whether the lease is surely still held."""
        return not self._is_lost and self._keeper.clock() < self.trusted_until

    def ensure(self) -> None:
        """Raise LeaseLost unless the lease is surely still held."""
        if not self.valid:
            self.lose(self.overdue_reason)
            raise LeaseLost(self.resource, self._reason or "it was released")

    def still_mine(self) -> AbstractContextManager[None]:
        """A block for your own writes: one transaction, that commits only if the lease is still
        held then, by the database's clock.

        The lease's row is locked meanwhile, so nobody can take it, and it cannot be renewed
        either: keep the block well below the ttl. Raises LeaseLost, at the beginning or at the
        end; nothing is written then.
        """
        self.ensure()
        return self.store.proving(self._granted.row)

    def refused(self, verb: str, reason: str) -> None:
        """Note that a late write under this hold was turned away by what it guards."""
        self.store.refused(self._granted.row, verb, reason)

    def renew(self) -> None:
        """Renew now, without waiting for the keeper. A row that somebody else has locked is
        tried again for about half a second, and then left to the keeper. Raises LeaseLost."""
        for _ in range(BUSY_TRIES):
            self.ensure()
            sent_at = self._keeper.clock()
            answer = self.store.renew({self.key: self.grant_id}, self.interval)
            if probes.renewing:
                now = self._keeper.clock()
                probes.measure_renewal(self.store, [self], answer, now - sent_at, now)
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

    def renewed(self, sent_at: float, renewal: Renewal) -> None:
        """A renewal sent at ``sent_at`` was answered. Too late an answer makes no difference."""
        if self._keeper.clock() >= self.trusted_until:
            self.lose(self.overdue_reason)
        with self._lock:
            if not self._in_use or self._is_lost:
                return
            grant = self._granted
            believed = sent_at + renewal.remaining - margin(grant.ttl)
            self.trusted_until = max(self.trusted_until, believed)
            grant.expires_at = renewal.expires_at
            asked = renewal.yield_to and not self.yield_to
            self.yield_to = renewal.yield_to
            self._is_last = renewal.is_last
        if self.trace is not None:
            self.trace.renewed()
        if asked and self._on_yield is not None:
            self._keeper.tell(self._tell_asked, is_prompt=self._are_prompt)

    def goes_on(self) -> bool:
        """Return True unless it is known that what carries the work has ended."""
        proof = self._proof
        return proof is None or proof()

    def give_up(self) -> None:
        """Lose the hold: that which carries its work has ended."""
        self.lose(ABANDONED)

    @property
    def overdue_reason(self) -> str:
        """What to say when trust runs out."""
        # Who asks for the end of a task does not end its renewals.
        if self.yield_to and self._is_last:
            words = f"{self.yield_to}, of higher priority, asked for it"
            return Reason(Why.PREEMPTED, words)
        if self._is_last:
            return Reason(Why.LIMIT, "it was held for the longest time it may be")
        return Reason(Why.OVERDUE, "it was not renewed in time")

    def lose(self, reason: str) -> None:
        """The hold is over. Only the first call counts."""
        with self._lock:
            if self._is_lost or not self._in_use:
                return
            self._reason = reason
            self.trusted_until = 0.0
            self._is_lost = True
            if self._lost is not None:
                self._lost.set()
        self._keeper.discard(self)
        if self.trace is not None:
            self.trace.lost(reason)
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()
        if not self._settling:
            self._say_lost(self._granted, reason)

    def forget(self) -> None:
        """In a forked child: not ours, and nobody is told."""
        self._lock = threading.Lock()
        self._is_lost, self._lost = True, None
        self._interrupt = None
        self._reason = "this process is a fork of its holder"

    def _tell_asked(self) -> None:
        on_yield = self._on_yield  # which may be dropped meanwhile
        if on_yield is not None:
            on_yield(self)

    def _say_lost(self, grant: Grant, reason: str) -> None:
        # Of this term: by the time it is told the hold may have been entered again.
        if self._are_prompt:
            self._keeper.tell(self._tell_lost, is_prompt=True)
            self._keeper.tell(partial(self.store.lost, grant, reason))
        else:
            self._keeper.tell(partial(self._tell, grant, reason))

    def _tell(self, grant: Grant, reason: str) -> None:
        try:
            self._tell_lost()
        finally:
            self.store.lost(grant, reason)

    def _tell_lost(self) -> None:
        on_lost = self._on_lost  # which may be dropped meanwhile
        if on_lost is not None:
            on_lost(self)

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
    def ttl(self) -> float:
        """Seconds that the grant and each renewal are good for."""
        return self._granted.ttl

    @property
    def interval(self) -> float:
        """Seconds between renewals."""
        return interval(self.ttl)


class Interrupt:
    """Cancels the task that made it, from any thread, once."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancellations = task.cancelling()
        self._done = False

    def __call__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._done and not self._task.done():
            self._done = True
            self._task.cancel()

    def explains(self, error: BaseException | None) -> bool:
        """Whether ``error`` is this cancellation, and nobody else's too. Called by the task as
        its body ends; nothing is cancelled afterwards."""
        cancelled, self._done = self._done, True
        if not cancelled:
            return False
        others = self._task.uncancel() > self._cancellations
        return isinstance(error, asyncio.CancelledError) and not others


def adopt_together(holds: Sequence[tuple[Hold, Grant]], keeper: Keeper = keeper) -> None:
    """Let each hold keep the grant beside it. All were granted at one time, for one ttl, the
    earliest first."""
    if not holds:
        return
    first = holds[0][1]
    lasting = margin(first.ttl)
    # One statement renews them all.
    due_at = keeper.next_due(first.sent_at, interval(first.ttl))
    for hold, grant in holds:
        hold.take_on(grant, lasting)
        hold.due_at = due_at
    try:
        keeper.add_many([hold for hold, _ in holds])
    except RuntimeError:  # there can be no thread that would renew them
        for hold, _ in holds:
            hold._let_go()
        raise


def leave_together(holds: Sequence[Hold], keeper: Keeper = keeper) -> None:
    """``leave``, for each hold."""
    for hold in holds:
        hold._let_go()
    keeper.discard_many(holds)


def drop_together(holds: Sequence[Hold]) -> None:
    """``drop``, for each hold; all are kept by the same keeper."""
    if holds:
        leave_together(holds, holds[0]._keeper)
    for hold in holds:
        hold._on_lost = hold._on_yield = hold._proof = None


def interval(ttl: float) -> float:
    """Seconds between renewals, for a ttl in seconds."""
    every = leasing_settings.RENEW_EVERY
    return ttl / 3 if every is None else min(every, ttl / 2)


def margin(ttl: float) -> float:
    """Seconds before the database's expiry at which trust ends, for a ttl in seconds."""
    configured = leasing_settings.MARGIN
    wanted = max(0.2, 0.02 * ttl) if configured is None else configured
    # A margin that leaves nothing would lose every hold as it is taken.
    return min(wanted, ttl / 3)
