"""One process of many leads: it holds a lease, and the others wait for it.

    for term in Leader("scheduler").terms(stopping):
        while term.valid and not stopping.is_set():
            do_one_round(term.fencing_token)

Terms
    campaign  waiting for the lease; ends when elected, or when asked to stop
    term      one grant of the lease: a Hold, with a token greater than that of any term before.
              A later term of the same process is another Hold, so work of an old term never
              takes the new one for its own
    trust     how long a leader may believe itself one without an answer from the database: to
              ``term.trusted_until``, which ends before the database would elect another

What happens when
    the leader dies        nobody renews; the next is elected when the ttl has passed, within a
                           second, which is how often those who wait look
    it loses its database  each renewal tried extends nothing; the term is lost when trust ends,
                           and the process campaigns again, with growing pauses. A campaign
                           hangs on no connection: it asks on a thread that it can leave
    it is paused           others may be elected meanwhile; at its first step afterwards
                           ``term.valid`` is false. What it had begun to send may still arrive:
                           let its receivers refuse the older token
    an operator revokes    the term is lost at the next renewal, a third of the ttl at most
    it resigns or stops    its body leaves first, then the lease is given back; where releases
                           are announced the next is elected within milliseconds

Everything here goes through holds. What ``candidacy`` and ``current`` make of leases is all that
another store would have to replace.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction
from django.db import Error, close_old_connections, connections

from leasing.db.side_connection import SideConnection, moved
from leasing.decorators import refuse_generators
from leasing.exceptions import LeaseHeld, LeaseLost
from leasing.hold import Hold
from leasing.hold.interrupt import Interrupt
from leasing.models import Lease, LeaseState
from leasing.runtime import aio, probes
from leasing.runtime.aio import Steps, adrive, drive, in_thread
from leasing.runtime.event_lines import log
from leasing.stores.rows import RowStore
from leasing.subject import subject_of
from leasing.validation.names import LONGEST_DURATION, check_name
from leasing.validation.terms import Terms
from leasing.waiting import MAX_PAUSE, Rest, pauses

Result = TypeVar("Result")

#: Seconds for which who resigned stands aside: two polls of those who wait.
SIDE_CALL_TIMEOUT = 2 * MAX_PAUSE
#: Seconds between looks of those who watch.
CHECK_EVERY = 1.0
#: Seconds between tries while the database is away, at most.
MAX_CAMPAIGN_PAUSE = 5.0


#: Every Leader of this process, for those who count them.
_leaders: weakref.WeakSet[Leader] = weakref.WeakSet()
_leaders_lock = threading.Lock()


@dataclass(frozen=True)
class Incumbent:
    """The leader, according to the database."""

    holder: str
    fencing_token: int
    #: The moment at which its term ends, unless it is renewed before.
    expires_at: datetime


class Leader:
    """A candidate for the leadership called ``name``, and the leader once it is elected.

    ``ttl`` is how many seconds after a leader's death the next is elected; ``holder`` is what
    this process is called. Both default as for any lease, whose resource is ``name``.

    One campaign at a time: RuntimeError for a second. Raises InvalidResource, InvalidTTL.
    """

    def __init__(
        self, name: str, *, ttl: float | timedelta | None = None, holder: str | None = None
    ) -> None:
        self.name = check_name(name, "leader's name")
        Terms.check(ttl=ttl, holder=holder)
        self._options: dict[str, Any] = {"ttl": ttl, "holder": holder}
        self._campaigning = threading.Lock()
        self._term: Hold | None = None
        self._resigned = False
        with _leaders_lock:
            _leaders.add(self)

    @property
    def is_campaigning(self) -> bool:
        """Return True if it waits to be elected here, or leads."""
        return self._campaigning.locked()

    @property
    def is_leading(self) -> bool:
        """Return True if it certainly leads."""
        term = self._term
        return term is not None and term.valid

    # Leading

    def terms(self, stopping: threading.Event | None = None) -> Generator[Hold]:
        """Campaign, and give each term that is won, until ``stopping`` is set.

        The body leads. It watches ``term.valid`` or ``term.lost``, and ``stopping``, and goes on
        to the next round when it should lead no more. The lease is given back then, and also
        when the loop is left.

        Raises LeaseInTransaction inside an atomic block.
        """
        stopping = stopping or threading.Event()
        with self._campaign():
            while (term := drive(self._electing(stopping))) is not None:
                try:
                    yield term
                finally:
                    drive(self._ending(term))
                if self._resigned:
                    Rest(SIDE_CALL_TIMEOUT, stopping).wait()

    @overload
    def lead(
        self, main: Callable[[Hold], Coroutine[Any, Any, Result]]
    ) -> Callable[[], Coroutine[Any, Any, Result]]: ...

    @overload
    def lead(self, main: Callable[[Hold], Result]) -> Callable[..., Result | None]: ...

    def lead(self, main: Callable[[Hold], Any]) -> Callable[..., Any]:
        """As a decorator: ``main(term)`` is called for each term, until it returns while its term
        is still valid. What it returns is returned.

        LeaseLost raised by a lost term, and a return from one, lead to the next campaign; any
        other error is raised, and the lease given back. A plain function takes ``stopping`` when
        it is called, and gives None when that ended the campaign; a coroutine is cancelled.

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
                        if not (finished or term.lost.is_set()):
                            raise
                    if finished:
                        return result
                    if self._resigned:
                        await Rest(SIDE_CALL_TIMEOUT).await_()

            return alead

        @functools.wraps(main)
        def lead(stopping: threading.Event | None = None) -> Any:
            with closing(self.terms(stopping)) as terms:
                for term in terms:
                    try:
                        result = main(term)
                    except LeaseLost:
                        if not term.lost.is_set():
                            raise
                    else:
                        if term.valid:
                            return result
            return None

        return lead

    def __enter__(self) -> Hold:
        """Campaign until elected; the block leads. As for a hold, leaving it raises LeaseLost
        when the term was lost, unless the block already failed, or resigned."""
        with self._campaign(leads_on=True):
            return self._lead(drive(self._electing(threading.Event())))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        term = self._leave()
        try:
            term.__exit__(kind, error, trace)
        except LeaseLost:
            if not self._resigned:
                raise
        finally:
            self._campaigning.release()
        self._give_back(term)

    async def __aenter__(self) -> Hold:
        """As ``with``; in addition the body is cancelled when the term is lost."""
        with self._campaign(leads_on=True):
            term = self._lead(await adrive(self._electing(threading.Event())))
            term.interrupt_by(Interrupt())
            return term

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        term = self._leave()
        try:
            await term.__aexit__(kind, error, trace)
        except LeaseLost:
            if not self._resigned:
                raise
            # It was cancelled to make it leave, and it has left.
            return isinstance(error, asyncio.CancelledError)
        finally:
            self._campaigning.release()
            if self._resigned:
                await in_thread(self._give_back, term)
        return False

    def resign(self) -> None:
        """Ask the body of the present term to leave: it hears of it as of a loss. Once it has
        left, the lease is given back, and this process stands aside for two seconds before it
        campaigns again. From any thread; without a term it does nothing."""
        term = self._term
        if term is not None and term.valid:
            self._resigned = True
            term.held.expect_end()
            term.held.mark_lost("its leader resigned")

    # Looking

    def current(self) -> Incumbent | None:
        """Return the present leader, by the database's clock; None while there is none."""
        lease = subject_of(self.name).look()
        if lease is None or lease.lease_state(lease.now) != LeaseState.ACTIVE:
            return None
        return Incumbent(lease.holder, lease.fencing_token, lease.expires_at)

    def watch(self, stopping: threading.Event | None = None) -> Iterator[Incumbent | None]:
        """Yield the present leader, and then each change, about a second after it happened: the new
        leader, or None while there is none. Ends soon after ``stopping`` is set.

        A term that began and ended between two looks is not told. While the database is away
        nothing is.
        """
        stopping = stopping or threading.Event()
        known: int | None = -1  # unlike any token, and unlike nobody's
        while not stopping.is_set():
            try:
                close_old_connections()
                leads = self.current()
            except Error as error:
                log.leader_unseen(resource=self.name, error=error)
            else:
                token = None if leads is None else leads.fencing_token
                if token != known:
                    known = token
                    yield leads
            Rest(CHECK_EVERY * random.uniform(0.8, 1.0), stopping).wait()

    # The pieces

    def candidacy(self, stopping: threading.Event | None = None) -> Hold:
        """A hold that waits for the leadership when it is entered."""
        return Lease.objects.hold(
            self.name, wait=LONGEST_DURATION, stopping=stopping, **self._options
        )

    def _electing(self, stopping: threading.Event) -> Steps[Hold | None]:
        """Steps that wait for the next term of this process; None when asked to stop."""
        for pause in pauses(longest=MAX_CAMPAIGN_PAUSE):
            if stopping.is_set():
                break
            term = self.candidacy(stopping)
            try:
                yield close_old_connections
                yield from _entering(term, stopping)
            except LeaseHeld:
                continue  # asked to stop, or ten years have passed
            except Error as error:
                log.leader_campaign_failed(resource=self.name, pause_seconds=pause, error=error)
                yield Rest(pause, stopping)
                continue
            self._term, self._resigned = term, False
            if probes.leading:
                probes.leading("elected")
            if term.valid:
                return term
            yield from self._ending(term)  # the process may have slept since it won
        return None

    def _lead(self, term: Hold | None) -> Hold:
        """Begin the block of ``term``."""
        assert term is not None  # nobody asked to stop
        term.held.follow()
        return term

    def _leave(self) -> Hold:
        term, self._term = self._term, None
        assert term is not None
        if probes.leading:
            probes.leading("lost" if not (term.valid or self._resigned) else "left")
        return term

    def _ending(self, term: Hold) -> Steps[None]:
        """Steps that give ``term`` back."""
        self._leave()
        with _beside(term) as run:
            try:
                yield partial(run, partial(term.held.end, None))
            except LeaseLost as loss:
                log.leader_term_lost(resource=term.resource, holder=term.holder, reason=loss.reason)
            except Error as error:
                log.lease_unreleased(resource=term.resource, holder=term.holder, error=error)
            if self._resigned:
                with suppress(Error):
                    yield partial(run, partial(self._give_back, term))

    def _give_back(self, term: Hold) -> None:
        """A term that was resigned stands in the store still."""
        if self._resigned:
            with suppress(LeaseLost, Error):
                term.held.give_back()

    @contextmanager
    def _campaign(self, *, leads_on: bool = False) -> Iterator[None]:
        """The one campaign at a time; ``leads_on``: it lasts longer than a block that succeeds."""
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
    """Every Leader of this process that somebody keeps."""
    with _leaders_lock:
        return list(_leaders)


def _entering(term: Hold, stopping: threading.Event) -> Steps[None]:
    """Steps that enter ``term``. They go on when the network swallows what the database answers,
    and end soon after ``stopping`` is set."""
    using = _apart_in(term)
    steps = term.entering()
    return steps if using is None else moved(SideConnection(using, stopping=stopping), steps)


@contextmanager
def _beside(term: Hold) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Calls what gives ``term`` back, and waits for that no longer than the network can be
    trusted to answer."""
    using = _apart_in(term)
    if using is None:
        yield lambda call: call()
        return
    with SideConnection(using) as side_connection:
        yield side_connection.run


def _apart_in(term: Hold) -> str | None:
    """The database whose connection may hang, so that this thread does not ask it itself. None
    in memory, in a test by hand, and in a transaction: that is refused, or a test's own."""
    store = term.store
    if not isinstance(store, RowStore) or aio.on_callers_thread:
        return None
    return None if connections[store.using].in_atomic_block else store.using
