"""A hold: the object through which code uses one lease of its process.

The keeper renews it until the block ends. When it is lost, the ``lost`` event is set, ``on_lost``
is called, ``ensure()`` raises, and leaving the block raises LeaseLost unless the block already
failed. A hold is lost when the database says so (revoked, taken over), or when no renewal was
answered in time. In a forked child it is lost from the start.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Self

from leasing.exceptions import LeaseLost
from leasing.holding.held_grant import HeldGrant, Loss
from leasing.holding.interrupt import Interrupt
from leasing.holding.keeper import Keeper, keeper
from leasing.runtime.aio import Steps, adrive, drive, in_thread
from leasing.runtime.events import happened
from leasing.runtime.framework import SynchronousOnlyOperation
from leasing.runtime.terminal import label
from leasing.store import Grant, Store

#: Tries of ``renew()`` while the row is locked, and the seconds between them.
BUSY_TRIES, BUSY_PAUSE = 10, 0.05

IN_COROUTINE = "A coroutine holds a lease by `async with`; this hold was entered by `with`."

#: Returns the steps that acquire the lease, for a driver to run.
Acquire = Callable[[], Steps[Grant]]
#: Called with a hold when something happens to it.
HoldCallback = Callable[["Hold"], object]


class Hold:
    """A context manager that holds one lease, for ``with`` and ``async with``. Made by
    ``Lease.objects.hold(...)``.

    ``on_lost`` and ``on_yield`` are called once, with the hold, on a thread of the keeper.
    """

    __slots__ = (
        *("__weakref__", "_acquire", "_keeper", "_on_lost", "_on_yield", "_store", "_term"),
        "_wanted",
    )

    def __init__(
        self,
        store: Store,
        acquire: Acquire | None = None,
        *,
        resource: str = "of a lease",
        on_lost: HoldCallback | None = None,
        on_yield: HoldCallback | None = None,
        keeper: Keeper = keeper,
    ) -> None:
        self._store = store
        self._acquire = acquire
        self._wanted = resource
        self._on_lost = on_lost
        self._on_yield = on_yield
        self._keeper = keeper
        self._term: HeldGrant | None = None

    @classmethod
    def _of_term(cls, store: Store, held: HeldGrant) -> Self:
        """Return the hold of a grant that is kept already."""
        hold = cls(store)
        hold._term = held
        return hold

    def __repr__(self) -> str:
        held = self._term
        if held is None:
            return f"<Hold {label(self._wanted)}: not entered>"
        grant = held.grant
        who = f"holder {grant.holder}, token {grant.fencing_token}"
        return f"<Hold {label(grant.resource)}: {who}, {held.state}>"

    # Taking and giving back

    def __enter__(self) -> Self:
        try:
            drive(self._entering())
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(IN_COROUTINE) from error
        self._held.follow()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        held = self._held
        try:
            held.end(error)
        finally:
            held.unfollow()

    async def __aenter__(self) -> Self:
        """As ``with``; in addition the body is cancelled when the hold is lost."""
        await adrive(self._entering())
        self._held.follow()
        self._interrupt_by(Interrupt())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        held = self._held
        interrupt, held.interrupt = held.interrupt, None
        try:
            if interrupt is not None and interrupt.explains(error):
                held.abandon()
                raise LeaseLost(self.resource, held.reason) from error
            if held.is_kept:
                await in_thread(held.end, error)
        finally:
            held.unfollow()

    def _entering(self) -> Steps[None]:
        """Steps that acquire the lease and begin to keep it, for a driver."""
        if self._acquire is None or (self._term is not None and self._term.is_kept):
            raise RuntimeError("This hold is already in use.")
        self._keeper.start()  # first: if it fails, nobody would renew the lease
        grant = yield from self._acquire()
        self._begin_term(grant).keep()

    def _begin_term(self, grant: Grant) -> HeldGrant:
        """Make ``grant`` the term of this hold, to be kept by the caller."""
        on_lost, on_yield = self._on_lost, self._on_yield
        self._term = held = HeldGrant(
            self._store,
            grant,
            on_lost=None if on_lost is None else lambda _: on_lost(self),
            on_yield=None if on_yield is None else lambda _: on_yield(self),
            keeper=self._keeper,
        )
        return held

    def _interrupt_by(self, interrupt: Interrupt) -> None:
        """Call ``interrupt`` when the hold is lost, or now if it is lost already."""
        self._held.interrupt = interrupt
        if self._held.is_lost:
            interrupt()

    def release(self) -> None:
        """Release the lease now; the keeper stops renewing it. A second call changes nothing.

        Raises LeaseLost if it was lost before.
        """
        if self._term is not None:
            self._term.release()

    # Trust

    @property
    def lost(self) -> Loss:
        """An event that is set, and true, once the hold is lost: ``if hold.lost``.
        ``hold.lost.wait(seconds)`` is a sleep that ends early."""
        return Loss() if self._term is None else self._term.loss

    @property
    def valid(self) -> bool:
        """Return True if the lease is certainly still held."""
        return self._term is not None and self._term.valid

    @property
    def trusted_until(self) -> float:
        """Moment on the holder's clock at which ``valid`` ends, unless it is renewed before."""
        return 0.0 if self._term is None else self._term.trusted_until

    @property
    def yield_to(self) -> str:
        """The name of a requester of higher priority, for whom to finish soon; empty if there is
        none."""
        return "" if self._term is None else self._term.yield_to

    def ensure(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held."""
        self._held.ensure()

    def renew(self) -> None:
        """Renew now, without waiting for the keeper. If another transaction has locked the row,
        this is tried for about half a second and then left to the keeper. Raises LeaseLost."""
        held, keeper = self._held, self._keeper
        for _ in range(BUSY_TRIES):
            held.ensure()
            sent_at = keeper.clock()
            answer = self._store.renew({held.key: held.grant_id}, held.interval)
            told = {"answer": answer, "sent_at": sent_at, "now": keeper.clock()}
            happened("lease.renewals", [held], store=self._store, **told)
            if held.key in answer.lost:
                held.mark_lost(answer.lost[held.key])
            elif held.key in answer.renewed:
                held.renewed(sent_at, answer.renewed[held.key])
                held.due_at = keeper.next_due(sent_at, held.interval, self._store)
                held.ensure()
                return
            else:
                held.loss.wait(BUSY_PAUSE)
        held.ensure()

    def still_mine(self) -> AbstractContextManager[None]:
        """A block for your own writes: one transaction, which commits only if the lease is still
        held at the commit, by the database's clock.

        The lease's row is locked during the block. Nobody can take it and it cannot be renewed
        either, so keep the block well below the ttl. Raises LeaseLost at the beginning or at the
        end; nothing is written then.
        """
        self.ensure()
        return self._store.proving(self._held.grant.held_row)

    def refused(self, verb: str, reason: str) -> None:
        """Record that the target refused a late write under this hold."""
        self._held.refused(verb, reason)

    # What is held

    @property
    def _held(self) -> HeldGrant:
        """The current term, or the latest: for the keeper, and for code that ends it without
        leaving the block. Raises RuntimeError before the first term."""
        if self._term is None:
            raise RuntimeError("The lease is not held: enter the hold first.")
        return self._term

    @property
    def grant_id(self) -> uuid.UUID:
        """The proof of this term."""
        return self._held.grant.grant_id

    @property
    def fencing_token(self) -> int:
        """Greater than any earlier token of this resource: pass it with every write, so that the
        target rejects lower ones."""
        return self._held.grant.fencing_token

    @property
    def holder(self) -> str:
        return self._held.grant.holder

    @property
    def resource(self) -> str:
        return self._held.grant.resource

    @property
    def expires_at(self) -> datetime:
        """The moment from which the database grants the lease to others, unless it is renewed
        before."""
        return self._held.grant.expires_at

    @property
    def ttl(self) -> float:
        """The seconds for which the grant and each renewal are valid."""
        return self._held.grant.ttl

    @property
    def interval(self) -> float:
        """Seconds between renewals."""
        return self._held.interval
