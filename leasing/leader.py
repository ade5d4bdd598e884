"""Leader election: one process of many holds a lease, and the others wait for it.

    for term in Leader("scheduler").terms(stopping):
        while term.valid and not stopping.is_set():
            do_one_round(term.fencing_token)

Terms
    campaign  waiting for the lease; ends when elected, or when asked to stop
    term      one grant of the lease, with a token greater than that of any earlier one. A later
              term of the same process is another object, so work of an old term never mistakes
              the new one for its own
    trust     the time for which a leader may believe that it leads without an answer from the
              database: until ``term.trusted_until``, before the database would elect another

What happens when
    the leader dies        nobody renews; the next is elected within a second after the ttl, since
                           candidates look every second
    it loses its database  renewals fail; the term is lost when trust ends, and the process
                           campaigns again, with growing pauses. A campaign never hangs on a
                           connection: it queries on a thread that it can abandon
    it is suspended        others may be elected meanwhile; at its first step afterwards
                           ``term.valid`` is false. What it had begun to send may still arrive:
                           let the receivers reject the older token
    an operator revokes    the term is lost at the next renewal, within a third of the ttl
    it resigns or stops    its body leaves first, then the lease is released. On PostgreSQL the
                           next is notified, and elected within milliseconds

The lease is in rows of the database, or in another store that LEASING["STORES"] names.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.db import Error, close_old_connections, connections

from leasing.db.side_connection import SideConnection, moved
from leasing.decorators import refuse_generators
from leasing.exceptions import LeaseHeld, LeaseLost, StoreError
from leasing.holding import Hold, Term
from leasing.holding.interrupt import Interrupt
from leasing.runtime import aio
from leasing.runtime.aio import Steps, adrive, drive, in_thread
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened
from leasing.store import Incumbent, NamedStore, Store
from leasing.stores import DEFAULT_STORE, store_of
from leasing.stores.rows import RowStore
from leasing.validation.names import check_name
from leasing.validation.terms import Terms
from leasing.waiting.waiter import MAX_PAUSE, Rest, pauses

__all__ = ["Incumbent", "Leader", "leaders"]

Result = TypeVar("Result")

#: Seconds for which a leader that resigned does not campaign: two polls of the candidates.
RESIGNED_FOR = 2 * MAX_PAUSE
#: Seconds between two queries of ``watch``.
CHECK_EVERY = 1.0
#: The longest pause in seconds between tries while the database does not answer.
MAX_CAMPAIGN_PAUSE = 5.0
#: Errors of a store that may answer later.
AWAY = (Error, StoreError)


#: Every Leader of this process, for the metrics.
_leaders: weakref.WeakSet[Leader] = weakref.WeakSet()
_leaders_lock = threading.Lock()


class Leader:
    """A candidate for the leadership called ``name``, and the leader once it is elected.

    Args:
        name: The name of the leadership, which is the resource of its lease.
        ttl: Seconds after a leader's death until the next is elected; the setting TTL by
            default.
        holder: The name of the candidate; that of this process by default.
        store: The store of the lease, or its alias in LEASING["STORES"].

    A second campaign at the same time is a RuntimeError. Raises InvalidResource, InvalidTTL.
    """

    def __init__(
        self,
        name: str,
        *,
        ttl: float | timedelta | None = None,
        holder: str | None = None,
        store: str | NamedStore = DEFAULT_STORE,
    ) -> None:
        self.name = check_name(name, "leader's name")
        self._store = store
        Terms.check(ttl=ttl, holder=holder)
        self._options: dict[str, Any] = {"ttl": ttl, "holder": holder}
        self._campaigning = threading.Lock()
        self._term: Term | None = None
        self._resigned = False
        with _leaders_lock:
            _leaders.add(self)

    @property
    def is_campaigning(self) -> bool:
        """Return True if this object waits to be elected, or leads."""
        return self._campaigning.locked()

    @property
    def is_leading(self) -> bool:
        """Return True if it certainly leads."""
        term = self._term
        return term is not None and term.valid

    # Leading

    def terms(self, stopping: threading.Event | None = None) -> Generator[Term]:
        """Campaign, and yield each term that is won, until ``stopping`` is set.

        The body of the loop leads. It watches ``term.valid`` or ``term.lost``, and ``stopping``,
        and ends its round when it should no longer lead. The lease is released then, and when the
        loop is left.

        Raises LeaseInTransaction inside an atomic block.
        """
        stopping = threading.Event() if stopping is None else stopping
        with self._campaign():
            while (term := drive(self._electing(stopping))) is not None:
                try:
                    yield term
                finally:
                    drive(self._ending(term))
                if self._resigned:
                    Rest(RESIGNED_FOR, stopping).wait()

    @overload
    def lead(
        self, main: Callable[[Term], Coroutine[Any, Any, Result]]
    ) -> Callable[[], Coroutine[Any, Any, Result]]: ...

    @overload
    def lead(self, main: Callable[[Term], Result]) -> Callable[..., Result | None]: ...

    def lead(self, main: Callable[[Term], Any]) -> Callable[..., Any]:
        """Decorate ``main``: it is called with each term, until it returns while its term is still
        valid. Its return value is returned.

        If it returns after a loss, or raises LeaseLost because of it, the next campaign begins.
        Any other error is raised, and the lease released. The decorated plain function accepts
        ``stopping``, and returns None if that ended the campaign; a coroutine is cancelled instead.

        Raises TypeError for a generator function.
        """
        refuse_generators(main)
        if iscoroutinefunction(main):

            @functools.wraps(main)
            async def alead() -> Any:
                while True:
                    finished = False
                    try:
                        async with self as term:
                            result = await main(term)
                            finished = term.valid
                    except LeaseLost:
                        if not (finished or term.lost):
                            raise
                    if finished:
                        return result
                    if self._resigned:
                        await Rest(RESIGNED_FOR).await_()

            return alead

        @functools.wraps(main)
        def lead(stopping: threading.Event | None = None) -> Any:
            with closing(self.terms(stopping)) as terms:
                for term in terms:
                    try:
                        result = main(term)
                    except LeaseLost:
                        if not term.lost:
                            raise
                    else:
                        if term.valid:
                            return result
            return None

        return lead

    def __enter__(self) -> Term:
        """Campaign until elected; then the block leads. As with a hold, leaving it raises LeaseLost
        if the term was lost, unless the block failed or the leader resigned."""
        with self._campaign(leads_on=True):
            return self._lead(drive(self._electing(threading.Event())))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        term = self._leave()
        try:
            term.end(error)
        except LeaseLost:
            if not self._resigned:
                raise
        finally:
            happened("hold.ended", [term])
            self._campaigning.release()
        self._give_back(term)

    async def __aenter__(self) -> Term:
        """As ``with``; in addition the body is cancelled when the term is lost."""
        with self._campaign(leads_on=True):
            term = self._lead(await adrive(self._electing(threading.Event())))
            term.interrupt_by(Interrupt())
            return term

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        term = self._leave()
        try:
            await term.aleave(error)
        except LeaseLost:
            if not self._resigned:
                raise
            # The body was cancelled so that it leaves, and it has left.
            return isinstance(error, asyncio.CancelledError)
        finally:
            self._campaigning.release()
            if self._resigned:
                await in_thread(self._give_back, term)
        return False

    def resign(self) -> None:
        """Ask the body of the current term to leave: it is informed as of a loss. When it has left,
        the lease is released, and this process waits for two seconds before it campaigns again.
        Call it from any thread; without a term it does nothing."""
        term = self._term
        if term is not None and term.valid:
            self._resigned = True
            term.expect_end()
            term.mark_lost("its leader resigned")

    # Looking

    def current(self) -> Incumbent | None:
        """Return the current leader, by the store's clock; None if there is none."""
        return store_of(self._store).current(self.name)

    def watch(self, stopping: threading.Event | None = None) -> Iterator[Incumbent | None]:
        """Yield the current leader, and then each change about a second after it happened: the new
        leader, or None if there is none. Ends soon after ``stopping`` is set.

        A term that began and ended between two queries is not reported. Nothing is reported while
        the database does not answer.
        """
        stopping = threading.Event() if stopping is None else stopping
        known: int | None = -1  # no token, and not None
        while not stopping.is_set():
            try:
                close_old_connections()
                leads = self.current()
            except AWAY as error:
                log.leader_unseen(resource=self.name, error=error)
            else:
                token = None if leads is None else leads.fencing_token
                if token != known:
                    known = token
                    yield leads
            Rest(CHECK_EVERY * random.uniform(0.8, 1.0), stopping).wait()

    # Parts of the above

    def candidacy(self, stopping: threading.Event | None = None) -> Hold:
        """Return a hold that waits for the leadership when it is entered."""
        store = store_of(self._store)
        return store.hold(self.name, wait=None, stopping=stopping, **self._options)

    def _electing(self, stopping: threading.Event) -> Steps[Term | None]:
        """Steps that wait for the next term of this process; None if asked to stop."""
        for pause in pauses(longest=MAX_CAMPAIGN_PAUSE):
            if stopping.is_set():
                break
            hold = self.candidacy(stopping)
            try:
                yield close_old_connections
                term = yield from _apart(hold.store, hold.entering(), stopping)
            except LeaseHeld:
                continue  # asked to stop
            except AWAY as error:
                log.leader_campaign_failed(resource=self.name, pause_seconds=pause, error=error)
                yield Rest(pause, stopping)
                continue
            self._term, self._resigned = term, False
            happened("leader.elected")
            if term.valid:
                return term
            yield from self._ending(term)  # the process may have slept since it won
        return None

    def _lead(self, term: Term | None) -> Term:
        """Trace ``term`` from the start of its block."""
        assert term is not None  # nobody asked to stop
        happened("hold.begun", [term], inside=True)
        return term

    def _leave(self) -> Term:
        term, self._term = self._term, None
        assert term is not None
        happened("leader.left" if term.valid or self._resigned else "leader.lost")
        return term

    def _ending(self, term: Term) -> Steps[None]:
        """Steps that release ``term``."""
        self._leave()
        yield from _apart(term.store, self._releasing(term))

    def _releasing(self, term: Term) -> Steps[None]:
        try:
            yield partial(term.end, None)
        except LeaseLost as loss:
            log.leader_term_lost(resource=term.resource, holder=term.holder, reason=loss.reason)
        except AWAY as error:
            log.lease_unreleased(resource=term.resource, holder=term.holder, error=error)
        if self._resigned:
            with suppress(*AWAY):
                yield partial(self._give_back, term)

    def _give_back(self, term: Term) -> None:
        """Release a term that ended by ``resign``, which the store does not know of yet."""
        if self._resigned:
            with suppress(LeaseLost, *AWAY):
                term.store.release(term)

    @contextmanager
    def _campaign(self, *, leads_on: bool = False) -> Iterator[None]:
        """Refuse a second campaign. With ``leads_on``, this one outlasts a block that succeeds."""
        if not self._campaigning.acquire(blocking=False):
            raise RuntimeError("This leader is already campaigning.")
        try:
            yield
        except BaseException:
            self._campaigning.release()
            raise
        if not leads_on:
            self._campaigning.release()


def leaders() -> list[Leader]:
    """Return every Leader of this process that is still referenced."""
    with _leaders_lock:
        return list(_leaders)


def _apart(
    store: Store, steps: Steps[Result], stopping: threading.Event | None = None
) -> Steps[Result]:
    """The same ``steps``, which do not hang if the network drops the database's answers, and end
    soon after ``stopping`` is set: over another connection, on another thread.

    As they are for a lease in memory, for a test without threads, and in a transaction: that is
    refused, or it is the test's own.
    """
    if (
        not isinstance(store, RowStore)
        or aio.on_callers_thread
        or connections[store.using].in_atomic_block
    ):
        return steps
    return moved(SideConnection(store.using, stopping=stopping), steps)
