"""The keeper renews everything this process holds, and reports losses.

Terms
    hold      one grant this process believes it has
    due       the moment on the holder's clock at which a hold is to be renewed
    trust     the time for which the holder may believe that it holds the lease. It ends at
              ``sent_at + remaining - margin``: ``sent_at`` was read before the request was sent,
              ``remaining`` is the time left on the store's clock at a later moment. So trust always
              ends before the lease.

Threads, all daemons, started with the first hold
    renewer   renews what is due, many holds in one statement, on a connection of its own. It does
              not renew a hold whose thread or coroutine has ended
    watchdog  declares holds lost whose trust has ended. It never uses a connection, so a renewal
              that hangs in the network does not delay it
    callbacks call ``on_lost`` and send signals, so that a slow callback delays nobody
              (``leasing.runtime.threads``); the callbacks of this package, which end at once,
              have threads of their own
    Renewer and watchdog check each other: one that has ended is started again.

What happens when it fails
    A renewal that raises, or is answered slowly, opens the store's breaker: after a growing,
    jittered pause one batch is tried, and the others follow if it succeeds. ``draining`` is true
    meanwhile: start no new work then. Only an answer extends trust.
    The watchdog closes the connection of a request that exceeds its limit: if the network drops
    every packet, the renewer would otherwise wait for good. The limit is half the interval of the
    holds that are renewed. Holds with similar intervals are renewed together, those with shorter
    ones first; of a store whose requests are counted all of them, as soon as one is due. A request
    that hangs is cut off earlier if a shorter hold would miss its last chance of a renewal, so that
    one table in trouble does not cost the holds of others.
    If a thread cannot be started, nothing new is held: acquiring raises RuntimeError.
    Rows that someone else has locked count as neither renewed nor lost, and are tried again
    shortly. In a forked child every hold is dropped.

This file is longer than others: terms, breakers, the current request and both threads change under
one lock, and each of them reads the others. Separate is ``runtime.notes`` (entries for the ledger).
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from leasing.conf import leasing_settings
from leasing.holding.breaker import Breaker
from leasing.runtime.clock import clock as holder_clock
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened
from leasing.runtime.framework import close_connections
from leasing.runtime.notes import Notes
from leasing.runtime.threads import CallbackThreads, note_replaced, start_thread
from leasing.store import MAX_RENEWED, Reason, Store, Why

if TYPE_CHECKING:
    from leasing.holding.term import Term

#: The reason of a loss because the thread or coroutine that did the work has ended.
ABANDONED = Reason(Why.ABANDONED, "its thread or coroutine has ended")
#: The part of their interval that holds are spread over after a pause.
SPREAD = 0.02
#: Seconds that the exit of the interpreter waits for a renewal that was sent.
EXIT_PATIENCE = 1.0
#: Seconds that a request may take at least, however short the intervals are.
SHORTEST_LIMIT = 0.25
#: A request is cut off after this many times its limit. A store that can be reached ends the
#: request at the limit itself.
CUT_OFF = 1.5
#: The threads look at the clock so often, in seconds, while something is held: their waiting
#: does not count the time for which the machine was suspended, and trust does.
CHECK_CLOCK_EVERY = 1.0

#: Holds that are renewed together, and fail together: of one store and of like intervals.
Group = tuple[Store, int]

_due_at, _trusted_until = attrgetter("due_at"), attrgetter("trusted_until")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that waits for its answer: how to cut it off, when it was sent, and when it has
    taken too long."""

    abort: Callable[[], object]
    began_at: float
    ends_at: float


class Alarm(threading.Condition):
    """Wakes a thread only for work that is due before the thread would wake by itself. Every method
    is called under the lock."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self._looks_at = -math.inf
        self._lingers = False

    def sleep(self, now: float, seconds: float | None) -> None:
        """Sleep for ``seconds``; None: until there is work. After the last work, the thread stays
        ready for CHECK_CLOCK_EVERY, so that many short holds do not wake it each time. A hold that
        woke it and was released before it looked is work too."""
        lingers, self._lingers = self._lingers, seconds is not None
        if seconds is None and lingers:
            seconds = CHECK_CLOCK_EVERY
        self._looks_at = math.inf if seconds is None else now + seconds
        try:
            if self.wait(seconds):
                self._lingers = True
        finally:
            # The thread is awake, and checks everything before it sleeps again.
            self._looks_at = -math.inf

    def set_for(self, moment: float) -> None:
        """Wake the thread unless it wakes by ``moment`` by itself: there is work then."""
        if moment < self._looks_at:
            self.notify()


class Keeper:
    """Renews holds until they are discarded or lost. Every process has one: ``keeper``.

    ``clock`` and ``threads`` are for tests: without threads, ``renew_due``, ``declare_lost``,
    ``cut_off`` and ``write_notes`` are called by hand.
    """

    def __init__(self, clock: Callable[[], float] = holder_clock, threads: bool = True) -> None:
        self.clock = clock
        self._with_threads = threads
        #: The number of renewals since the process began.
        self.renewals = 0
        #: Seconds after which a thread that waits for a moment looks at the clock again: the
        #: machine may have been suspended.
        self.look_every = CHECK_CLOCK_EVERY
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._renewer_wakes = Alarm(self._lock)
        self._watchdog_wakes = Alarm(self._lock)
        self._holds: dict[int, Term] = {}
        self._notes = Notes(self.clock)
        self._callbacks = CallbackThreads()
        self._prompt_callbacks = CallbackThreads()
        self._request: Request | None = None
        self._is_overdue = False
        self._breakers: defaultdict[Group, Breaker] = defaultdict(Breaker)
        self._open_stores: set[Store] = set()
        #: Renewer and watchdog, once they are started.
        self._threads: list[threading.Thread] = []
        #: True if one of them could not be started.
        self._is_short = False
        # The threads keep the event they were started with: one that outlasts the stop (its
        # renewal hangs) must not continue next to those of the next start.
        self._stopped = threading.Event()

    # What holds call

    def add(self, hold: Term) -> None:
        """Renew ``hold`` from now on."""
        self.add_many([hold])

    def add_many(self, holds: Collection[Term]) -> None:
        """Renew ``holds`` from now on."""
        if not holds:
            return
        due_at, trusted_until = min(map(_due_at, holds)), min(map(_trusted_until, holds))
        with self._lock:
            self.start()  # raises where nobody would renew them
            self._holds.update(zip(map(id, holds), holds, strict=True))
            self._renewer_wakes.set_for(due_at)
            self._watchdog_wakes.set_for(trusted_until)

    def discard(self, hold: Term) -> None:
        """Stop renewing ``hold``."""
        self.discard_many([hold])

    def discard_many(self, holds: Iterable[Term]) -> None:
        """Stop renewing ``holds``."""
        # The threads need not wake for this: they see it when they look next.
        with self._lock:
            for hold in holds:
                self._holds.pop(id(hold), None)
            if self._breakers:
                self._forget_unheld()

    def renew_now(self, hold: Term) -> None:
        """Renew ``hold`` now: the answer of the store has news for it."""
        with self._lock:
            if id(hold) in self._holds:
                hold.due_at = self.clock()
                self._renewer_wakes.notify()

    def _forget_unheld(self) -> None:
        # A group without holds is not renewed again: nothing else would close its breaker.
        for group, breaker in list(self._breakers.items()):
            holds = self._holds.values()
            if not breaker.is_closed and not any(group_of(hold) == group for hold in holds):
                del self._breakers[group]

    def soon(self, note: Callable[[], object], abort: Callable[[], object] = bool) -> None:
        """Run ``note`` on the renewing thread, over its connection, and again until the database
        answers. ``abort`` makes a note that hangs fail; another thread calls it."""
        with self._lock:
            self._notes.put(note, abort)
            with suppress(RuntimeError):  # it waits for the next try
                self.start()
            self._renewer_wakes.notify()

    def call(self, callback: Callable[[], object], *, is_prompt: bool = False) -> None:
        """Run ``callback`` on a thread that neither renews nor watches. One that ``is_prompt`` ends
        at once, and does not wait behind users' callbacks that hang."""
        if not self._with_threads:
            callback()
        elif is_prompt:
            self._prompt_callbacks.call(callback)
        else:
            self._callbacks.call(callback)

    @property
    def draining(self) -> bool:
        """Return True if nothing new should be started: from the first renewal that failed or was
        slow until one succeeds, and while one of the threads cannot be started."""
        open_ones = (not breaker.is_closed for breaker in list(self._breakers.values()))
        return self._is_overdue or self._is_short or any(open_ones)

    def next_due(self, sent_at: float, interval: float, store: Store | None = None) -> float:
        """Return when to renew what was granted or renewed by a request sent at ``sent_at``.

        Args:
            sent_at: The moment on the holder's clock.
            interval: Seconds between renewals.
            store: Its store, which may be metered.
        """
        return sent_at + interval * self._jitter(is_metered(store))

    # Renewing

    def renew_due(self) -> None:
        """Renew what is due, or soon enough due to be renewed with it."""
        now = self.clock()
        with self._lock:
            soon = [h for h in self._holds.values() if h.due_at <= now + h.interval / 10]
            due = [h for h in soon if h.due_at <= now or not is_metered(h.store)]
            if metered := {group_of(h) for h in due if is_metered(h.store)}:
                later = [h for h in self._holds.values() if h.due_at > now]
                due += [h for h in later if group_of(h) in metered]
        for hold in [hold for hold in due if not _goes_on(hold)]:
            due.remove(hold)
            hold.mark_lost(ABANDONED)
        for group, holds in in_batches(due):
            self._renew(group, holds)

    def _renew(self, group: Group, holds: dict[Any, Term]) -> None:
        store, _ = group
        interval = min(hold.interval for hold in holds.values())
        limit = _limit(interval)
        breaker = self._breakers[group]
        if not breaker.lets_pass(self.clock()):
            self._put_off(holds.values(), breaker.opens_again_at)
            return
        grants = {key: hold.grant_id for key, hold in holds.items()}
        sent_at = self.clock()
        jitter = self._jitter(is_metered(store))
        for hold in holds.values():
            # Not after the answer: a hold that calls ``renew_now`` meanwhile may wait for news that
            # is not in it yet.
            hold.due_at = sent_at + hold.interval * jitter
        about = [*holds.values()]
        told = partial(happened, "lease.renewals", about, store=store, sent_at=sent_at)
        try:
            self._open(store)
            with self._requesting(store.abort, limit):
                answer = store.renew(grants, limit)
        except Exception as error:
            told(answer=None, now=self.clock())
            # One warning per outage.
            level = logging.WARNING if breaker.is_closed else logging.DEBUG
            pause = self._open_breaker(breaker, interval)
            log.keeper_renewal_failed(
                level=level, holds=len(holds), pause_seconds=pause, error=error
            )
            self._put_off(holds.values(), breaker.opens_again_at)
            return
        now = self.clock()
        took = now - sent_at
        told(answer=answer, now=now)
        if took > interval / 2:
            self._open_breaker(breaker, interval)
            log.keeper_renewal_slow(holds=len(holds), seconds=took)
        elif breaker.succeeded():
            log.keeper_renewals_resumed()
        for key, hold in holds.items():
            if key in answer.renewed:
                self.renewals += 1
                hold.renewed(sent_at, answer.renewed[key])
            elif key in answer.lost:
                hold.mark_lost(answer.lost[key])
            else:
                hold.due_at = self.clock() + hold.interval * random.uniform(0.02, 0.05)

    def _open_breaker(self, breaker: Breaker, interval: float) -> float:
        """Block requests for a while. Returns for how many seconds."""
        pause = breaker.failed(self.clock(), interval * (0.5 - SPREAD))
        with self._lock:
            self._forget_unheld()  # its holds may have been released meanwhile
        return pause

    def _put_off(self, holds: Iterable[Term], until: float) -> None:
        """Renew ``holds`` shortly after ``until``, when the breaker allows one more try."""
        for hold in holds:
            hold.due_at = until + hold.interval * random.uniform(0, SPREAD)

    @contextmanager
    def _requesting(self, abort: Callable[[], object], limit: float) -> Iterator[None]:
        """Have ``abort`` called if the request in this block takes longer than its ``limit``."""
        began_at = self.clock()
        with self._lock:
            self._request = Request(abort, began_at, began_at + limit * CUT_OFF)
            self._watchdog_wakes.set_for(began_at + SHORTEST_LIMIT)
        try:
            yield
        finally:
            with self._lock:
                self._request, self._is_overdue = None, False

    def _jitter(self, is_metered: bool) -> float:
        spread = leasing_settings.JITTER
        # Never early where requests count, so that there is at most one in each interval.
        return random.uniform(1 if is_metered else 1 - spread, 1 + spread)

    def _open(self, store: Store) -> None:
        if self._with_threads and store not in self._open_stores:
            store.open()
            self._open_stores.add(store)

    def _close_stores(self) -> None:
        stores, self._open_stores = self._open_stores, set()
        for store in stores:
            store.close()

    def write_notes(self) -> bool:
        """Write the waiting entries of the ledger, until a renewal is due. Return False if the
        database did not accept them."""
        return self._notes.write(
            lambda: self._stopped.is_set() or self._renewal_due_at() > self.clock(),
            self._requesting,
        )

    # Watching

    def declare_lost(self) -> None:
        """Mark as lost the holds whose trust has ended."""
        now = self.clock()
        with self._lock:
            over = [hold for hold in self._holds.values() if hold.trusted_until <= now]
            # One that ended meanwhile does not discard itself: the watchdog would not sleep.
            for hold in over:
                del self._holds[id(hold)]
        for hold in over:
            hold.mark_lost(hold.overdue_reason)

    def cut_off(self) -> None:
        """Abort the request under way if it has taken too long."""
        with self._lock:
            request = self._request
            if request is None or self.clock() < self._cut_off_at(request):
                return
            self._request, self._is_overdue = None, True
        log.keeper_cut_off()
        request.abort()

    def _cut_off_at(self, request: Request) -> float:
        """Return when to cut off ``request``: at its limit or, once it has taken SHORTEST_LIMIT, at
        the last chance of another hold that waits for it."""
        if self.clock() < request.began_at + SHORTEST_LIMIT:
            return request.ends_at
        chances = [
            chance
            for hold in self._holds.values()
            if max(hold.due_at, request.began_at) < (chance := _last_chance(hold))
            and self._renews(hold)
        ]
        return min([request.ends_at, *chances])

    def _renews(self, hold: Term) -> bool:
        """Return True unless the latest renewal of holds like ``hold`` failed."""
        breaker = self._breakers.get(group_of(hold))
        return breaker is None or breaker.is_closed

    # Threads

    def start(self) -> None:
        """Start both threads, or the one that has ended. Called before anything is held. Raises
        RuntimeError if the system refuses another thread."""
        threads = self._threads
        if len(threads) == 2 and threads[0].is_alive() and threads[1].is_alive():
            return
        if not self._with_threads or self._stopped.is_set():
            return
        with self._lock:
            was_short, self._is_short = self._is_short, True
            try:
                self._start_thread(0, "leasing-renewer", self._renewer)
                self._start_thread(1, "leasing-watchdog", self._watchdog)
                self._is_short = False
            except RuntimeError as error:
                if not was_short:
                    log.keeper_not_started(error=error)
                raise

    def _start_thread(self, place: int, name: str, work: Callable[[Any], object]) -> None:
        before = self._threads[place : place + 1]
        if not (before and before[0].is_alive()):
            self._threads[place : place + 1] = [start_thread(name, partial(work, self._stopped))]
            if before:
                note_replaced(name)

    def _renewer(self, stopped: threading.Event) -> None:
        self._open_stores = set()  # those of this thread
        try:
            while self._wait_for_work(stopped):
                self._try(stopped, self._renew_and_note)
            self.write_notes()
        finally:
            self._close_stores()
            close_connections()

    def _renew_and_note(self) -> None:
        self.renew_due()
        if self.clock() >= self._notes.due_at:
            self.write_notes()

    def _try(self, stopped: threading.Event, work: Callable[[], object]) -> None:
        """Do the ``work`` of one of the threads, and start the other again if it has ended."""
        try:
            work()
            if not stopped.is_set():
                with suppress(RuntimeError):
                    self.start()
        except Exception:  # an error in this package must not end all renewals
            log.keeper_failed(exc_info=True)

    def _wait_for_work(self, stopped: threading.Event) -> bool:
        """Sleep until something is due or new. Return False if the keeper was stopped."""
        with self._lock:
            idle = not self._holds and not self._notes
        if idle:
            self._close_stores()
            close_connections()
        with self._lock:
            wait = self._until_due()
            # The last hold may have gone since ``idle`` was read: then close the connection first.
            sleeps = idle if wait is None else wait > 0
            if sleeps and not stopped.is_set():
                self._renewer_wakes.sleep(self.clock(), wait)
            return not stopped.is_set()

    def _until_due(self) -> float | None:
        """Return the seconds until a renewal or a note is due; None if there is nothing to do."""
        due_at = self._renewal_due_at()
        if self._notes:
            due_at = min(due_at, self._notes.due_at)
        if due_at == math.inf and not self._holds:
            return None
        return min(self.look_every, max(0.0, due_at - self.clock()))

    def _renewal_due_at(self) -> float:
        # A hold whose renewals were stalled on purpose is due at infinity.
        return min((hold.due_at for hold in self.holds), default=math.inf)

    def _watchdog(self, stopped: threading.Event) -> None:
        while True:
            with self._lock:
                # Read under the lock: a stop between the check and the sleep would wake nobody.
                if stopped.is_set():
                    return
                ends = [hold.trusted_until for hold in self._holds.values()]
                if self._request is not None:
                    soon = self.clock() + SHORTEST_LIMIT  # a new hold does not wake it
                    ends.append(min(soon, self._cut_off_at(self._request)))
                wait = min(self.look_every, max(0.0, min(ends) - self.clock())) if ends else None
                if wait is None or wait > 0:
                    self._watchdog_wakes.sleep(self.clock(), wait)
            self._try(stopped, self._declare_and_cut_off)

    def _declare_and_cut_off(self) -> None:
        self.declare_lost()
        self.cut_off()

    def stop_if_idle(self, patience: float = EXIT_PATIENCE) -> None:
        """End the threads, unless something is held. Waits up to ``patience`` seconds for each."""
        with self._lock:
            if self._holds:
                return
            # Holds that come from now on have new threads.
            threads, self._threads = self._threads, []
            stopped, self._stopped = self._stopped, threading.Event()
            callbacks = self._prompt_callbacks, self._callbacks
            self._prompt_callbacks, self._callbacks = CallbackThreads(), CallbackThreads()
            stopped.set()
            for alarm in (self._renewer_wakes, self._watchdog_wakes):
                alarm.notify_all()
            # And alarms: one that ends would note that it is awake, and the new one sleep on.
            self._renewer_wakes, self._watchdog_wakes = Alarm(self._lock), Alarm(self._lock)
        _end(patience, threads, *callbacks)

    def stop(self, patience: float = EXIT_PATIENCE) -> None:
        """End the threads; leases that are held expire by themselves. Waits up to ``patience``
        seconds for each. For exit, and for tests."""
        with self._lock:
            self._stopped.set()
            self._renewer_wakes.notify_all()
            self._watchdog_wakes.notify_all()
        _end(patience, self._threads, self._prompt_callbacks, self._callbacks)
        self._reset()

    def give_back_all(self) -> None:
        """Release what is still held, as far as possible within EXIT_PATIENCE, and stop. For the
        exit of the interpreter: threads that still run find their holds lost."""
        for hold in self.holds:
            hold.expect_end()
            hold.mark_lost("its process ended")
            self.soon(partial(hold.store.release, hold))
        self.stop()

    @contextmanager
    def by_hand(self) -> Iterator[None]:
        """Run no threads in this block: the caller renews, and callbacks run at once. For tests.

        What is held already stays held. Holds of the block that are left at its end are forgotten.
        """
        before = self.holds
        self.stop()
        with_threads, self._with_threads = self._with_threads, False
        self._holds.update((id(hold), hold) for hold in before)
        try:
            yield
        finally:
            left = self.holds
            self._reset()
            self._with_threads = with_threads
            for hold in before:
                if hold in left:
                    self.add(hold)

    @property
    def holds(self) -> list[Term]:
        """Return the holds that are renewed now."""
        with self._lock:
            return list(self._holds.values())

    def take_notes(self) -> list[Callable[[], object]]:
        """Remove and return the waiting entries of the ledger; the caller writes them."""
        with self._lock:
            return self._notes.take()

    def after_fork(self) -> None:
        """Forget all holds, in a forked child: they are the parent's, and so are locks that no
        thread of the child would release."""
        holds = list(self._holds.values())
        self._reset()
        for hold in holds:
            hold.forget()


def _end(patience: float, threads: Iterable[threading.Thread], *callbacks: CallbackThreads) -> None:
    """Wait up to ``patience`` seconds for each to end."""
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(patience)
    for each in callbacks:
        each.stop(patience)


def group_of(hold: Term) -> Group:
    """Return what ``hold`` is renewed together with: intervals of one group are less than twice
    as long as each other."""
    _, octave = math.frexp(hold.interval)
    return hold.store, octave


def is_metered(store: Store | None) -> bool:
    """Return True if requests to ``store`` are what counts: all its holds of like intervals are
    renewed when one of them is due, and no sooner than an interval after the last time."""
    return getattr(store, "is_metered", False)


def in_batches(holds: Iterable[Term]) -> Iterator[tuple[Group, dict[Any, Term]]]:
    """Group ``holds`` into batches in which each key stands once, short intervals first."""
    groups: dict[Group, list[dict[Any, Term]]] = {}
    for hold in holds:
        batches = groups.setdefault(group_of(hold), [{}])
        if len(batches[-1]) >= MAX_RENEWED or hold.key in batches[-1]:
            batches.append({})
        batches[-1][hold.key] = hold
    for group in sorted(groups, key=itemgetter(1)):
        for batch in groups[group]:
            yield group, batch


def _goes_on(hold: Term) -> bool:
    try:
        return hold.goes_on()
    except BaseException:  # concerns this hold only: the others are renewed
        log.keeper_proof_failed(key=hold.key, exc_info=True)
        return False


def _limit(interval: float) -> float:
    """Return the seconds that a request may take for holds with this ``interval``."""
    return max(SHORTEST_LIMIT, interval / 2)


def _last_chance(hold: Term) -> float:
    """Return the latest moment at which a request for ``hold`` may begin and have all of its time
    before trust ends."""
    return hold.trusted_until - _limit(hold.interval) * CUT_OFF


keeper = Keeper()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=keeper.after_fork)
