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

Notes are entries for the ledger that no statement of a verb writes: losses and refusals. The
renewer writes them over its connection when no renewal is due. While the database does not answer
they wait in their order; beyond MAX_NOTES the oldest are dropped.

This file is longer than others: holds, breakers, notes, the current request and both threads change
under one lock, and each of them reads the others.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from leasing.conf import leasing_settings
from leasing.runtime.clock import clock as holder_clock
from leasing.runtime.event_lines import log
from leasing.runtime.events import happened
from leasing.runtime.framework import close_connections
from leasing.runtime.threads import CallbackThreads, LastingThread, Streak
from leasing.store import MAX_RENEWED, Reason, Store, Why
from leasing.waiting.waiter import pauses

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
#: Seconds of a breaker's first pause, at most.
FIRST_PAUSE = 0.2
#: Notes that wait while the database does not answer.
MAX_NOTES = 1000
#: Seconds until notes that could not be written are tried again.
NOTE_PAUSE = 1.0
#: Seconds that one note may take, its wait for locks included.
NOTE_LIMIT = 1.0

#: Holds that are renewed together, and fail together: of one store and of like intervals.
Group = tuple[Store, int]

_due_at, _trusted_until = attrgetter("due_at"), attrgetter("trusted_until")


@dataclass
class Breaker:
    """Keeps a store in trouble from being stormed by the renewals of a group: one is made when a
    renewal fails, and is gone when one succeeds. Its time is the holder's own clock: one on the
    wall clock could be held open by somebody who sets that."""

    #: Those between tries: growing, and jittered, so that many processes do not come back together.
    pauses: Iterator[float]
    opens_again_at: float = 0.0


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
        # A dictionary, for it keeps their order.
        self._holds: dict[Term, None] = {}
        #: Each with what aborts it when it hangs.
        self._notes: deque[tuple[Callable[[], object], Callable[[], object]]]
        self._notes = deque(maxlen=MAX_NOTES)
        self._notes_due_at = 0.0
        self._note_failures = Streak(NOTE_PAUSE, NOTE_PAUSE)
        self._request: Request | None = None
        self._is_overdue = False
        #: Of each group whose latest renewal failed, or was answered slowly.
        self._breakers: dict[Group, Breaker] = {}
        self._open_stores: set[Store] = set()
        self._make_threads()

    def _make_threads(self) -> None:
        """Make the threads that the next ``start`` starts, and all that wakes and ends them."""
        # Each keeps the event it was made with: one that outlasts the stop (its renewal hangs) must
        # not continue next to those of the next start.
        self._stopped = stopped = threading.Event()
        # Nor may it share an alarm with them: when it ends it would note that it is awake, and the
        # new one sleep on.
        self._renewer_wakes, self._watchdog_wakes = Alarm(self._lock), Alarm(self._lock)
        self._renewer = LastingThread("leasing-renewer", partial(self._renew, stopped))
        self._watchdog = LastingThread("leasing-watchdog", partial(self._watch, stopped))
        self._callbacks, self._prompt_callbacks = CallbackThreads(), CallbackThreads()

    # What holds call

    def add(self, holds: Collection[Term]) -> None:
        """Renew ``holds`` from now on. Raises RuntimeError where no thread can be started."""
        if not holds:
            return
        due_at, trusted_until = min(map(_due_at, holds)), min(map(_trusted_until, holds))
        with self._lock:
            self.start()  # raises where nobody would renew them
            self._holds.update(dict.fromkeys(holds))
            self._renewer_wakes.set_for(due_at)
            self._watchdog_wakes.set_for(trusted_until)

    def discard(self, holds: Iterable[Term]) -> None:
        """Stop renewing ``holds``."""
        # The threads need not wake for this: they see it when they look next.
        with self._lock:
            for hold in holds:
                self._holds.pop(hold, None)
            if self._breakers:
                self._forget_unheld()

    def renew_now(self, hold: Term) -> None:
        """Renew ``hold`` now: the answer of the store has news for it."""
        with self._lock:
            if hold in self._holds:
                hold.due_at = self.clock()
                self._renewer_wakes.notify()

    def _forget_unheld(self) -> None:
        # A group without holds is not renewed again: nothing else would close its breaker.
        for group in list(self._breakers):
            if not any(group_of(hold) == group for hold in self._holds):
                del self._breakers[group]

    def soon(self, note: Callable[[], object], abort: Callable[[], object] = bool) -> None:
        """Run ``note`` on the renewing thread, over its connection, and again until the database
        answers. ``abort`` makes a note that hangs fail; another thread calls it."""
        with self._lock:
            self._notes.append((note, abort))
            with suppress(RuntimeError):  # it waits for the next try
                self.start()
            self._renewer_wakes.notify()

    def call(self, callback: Callable[[], object], *, is_prompt: bool = False) -> None:
        """Run ``callback`` on a thread that neither renews nor watches. One that ``is_prompt`` ends
        at once, and does not wait behind users' callbacks that hang."""
        if not self._with_threads:
            callback()
        else:
            (self._prompt_callbacks if is_prompt else self._callbacks).call(callback)

    @property
    def draining(self) -> bool:
        """Return True if nothing new should be started: from the first renewal that failed or was
        slow until one succeeds, and while one of the threads cannot be started."""
        start_failed = self._renewer.start_failed or self._watchdog.start_failed
        return self._is_overdue or start_failed or bool(self._breakers)

    def jitter(self, store: Store) -> float:
        """Return the part of their interval after which holds of ``store`` are renewed."""
        spread = leasing_settings.JITTER
        # Never early where requests count, so that there is at most one in each interval.
        return random.uniform(1 if store.is_metered else 1 - spread, 1 + spread)

    # Renewing

    def renew_due(self) -> None:
        """Renew what is due, or soon enough due to be renewed with it."""
        now = self.clock()
        with self._lock:
            due = [hold for hold in self._holds if hold.due_at <= now + hold.interval / 10]
            metered = [hold for hold in due if hold.store.is_metered]
            if metered:
                groups = {group_of(hold) for hold in metered if hold.due_at <= now}
                due = [hold for hold in due if not hold.store.is_metered]
                due += [hold for hold in self._holds if group_of(hold) in groups]
        for hold in [hold for hold in due if not _goes_on(hold)]:
            due.remove(hold)
            hold.mark_lost(ABANDONED)
        for group, holds in in_batches(due):
            self._renew_batch(group, holds)

    def _renew_batch(self, group: Group, holds: dict[Any, Term]) -> None:
        store, _ = group
        interval = min(hold.interval for hold in holds.values())
        limit, longest_pause = _limit(interval), interval * (0.5 - SPREAD)
        breaker = self._breakers.get(group)
        if breaker is not None and self.clock() < breaker.opens_again_at:
            self._put_off(holds.values(), breaker)
            return
        grants = {key: hold.grant_id for key, hold in holds.items()}
        sent_at = self.clock()
        jitter = self.jitter(store)
        for hold in holds.values():
            # Not after the answer: a hold that calls ``renew_now`` meanwhile may wait for news that
            # is not in it yet.
            hold.due_at = sent_at + hold.interval * jitter
        answer = failure = None
        try:
            if self._with_threads and store not in self._open_stores:
                store.open()
                self._open_stores.add(store)
            with self._requesting(store.abort, limit):
                answer = store.renew(grants, limit)
        except Exception as error:
            failure = error
        now = self.clock()
        all_of_it = [*holds.values()]
        happened("lease.renewals", all_of_it, store=store, answer=answer, sent_at=sent_at, now=now)
        if failure is None and now - sent_at <= interval / 2:
            if self._breakers.pop(group, None) is not None:
                log.keeper_renewals_resumed()
        else:
            is_news = breaker is None  # one warning per outage
            breaker = breaker or Breaker(pauses(first=FIRST_PAUSE, longest=longest_pause))
            pause = min(next(breaker.pauses), longest_pause)
            breaker.opens_again_at = now + pause
            with self._lock:
                self._breakers[group] = breaker
                self._forget_unheld()  # its holds may have been released meanwhile
            if failure is None:
                log.keeper_renewal_slow(holds=len(holds), seconds=now - sent_at)
            else:
                log.keeper_renewal_failed(
                    level=logging.WARNING if is_news else logging.DEBUG,
                    holds=len(holds),
                    pause_seconds=pause,
                    error=failure,
                )
                self._put_off(holds.values(), breaker)
        if answer is None:
            return
        for key, hold in holds.items():
            if key in answer.renewed:
                self.renewals += 1
                hold.renewed(sent_at, answer.renewed[key])
            elif key in answer.lost:
                hold.mark_lost(answer.lost[key])
            else:
                hold.due_at = self.clock() + hold.interval * random.uniform(0.02, 0.05)

    def _put_off(self, holds: Iterable[Term], breaker: Breaker) -> None:
        """Renew ``holds`` shortly after the ``breaker`` allows one more try."""
        for hold in holds:
            hold.due_at = breaker.opens_again_at + hold.interval * random.uniform(0, SPREAD)

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

    def write_notes(self) -> None:
        """Write the waiting entries of the ledger, until a renewal is due or the database does not
        accept one."""
        while self._notes and (self._stopped.is_set() or self._has_time()):
            note, abort = self._notes[0]
            try:
                with self._requesting(abort, NOTE_LIMIT):
                    note()
            except Exception as error:
                self._note_failures.failed(error)
                log.keeper_note_waits(level=self._note_failures.level, error=error)
                self._notes_due_at = self.clock() + NOTE_PAUSE
                close_connections()
                return
            self._note_failures.succeeded()
            if self._notes and self._notes[0][0] is note:
                self._notes.popleft()

    def _has_time(self) -> bool:
        return self._notes_due_at <= self.clock() < self._renewal_due_at()

    # Watching

    def declare_lost(self) -> None:
        """Mark as lost the holds whose trust has ended."""
        now = self.clock()
        with self._lock:
            over = [hold for hold in self._holds if hold.trusted_until <= now]
            # One that ended meanwhile does not discard itself: the watchdog would not sleep.
            for hold in over:
                del self._holds[hold]
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
        the last chance of another hold that waits for it, unless its own renewals fail."""
        if self.clock() < request.began_at + SHORTEST_LIMIT:
            return request.ends_at
        chances = [
            chance
            for hold in self._holds
            if max(hold.due_at, request.began_at) < (chance := _last_chance(hold))
            and group_of(hold) not in self._breakers
        ]
        return min([request.ends_at, *chances])

    # Threads

    def start(self) -> None:
        """Start both threads, or the one that has ended. Called before anything is held. Raises
        RuntimeError if the system refuses another thread."""
        if self._renewer.is_alive() and self._watchdog.is_alive():
            return
        if not self._with_threads or self._stopped.is_set():
            return
        with self._lock:
            for thread in (self._renewer, self._watchdog):
                thread.ensure_running()
                if thread.start_failed:
                    raise RuntimeError(f"can't start new thread {thread.name}")

    def _renew(self, stopped: threading.Event) -> None:
        self._open_stores = set()  # those of this thread
        try:
            while self._wait_for_work(stopped):
                self._try(stopped, self.renew_due, self.write_notes)
            self.write_notes()
        finally:
            self._close()

    def _try(self, stopped: threading.Event, *work: Callable[[], object]) -> None:
        """Do the ``work`` of one of the threads, and start the other again if it has ended."""
        try:
            for each in work:
                each()
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
            self._close()
        with self._lock:
            due_at = self._renewal_due_at()
            if self._notes:
                due_at = min(due_at, self._notes_due_at)
            # Without a moment and without a hold there is nothing to do. The last hold may have
            # gone since ``idle`` was read: then close the connection first.
            wait, sleeps = None, idle
            if due_at < math.inf or self._holds:
                wait = min(self.look_every, max(0.0, due_at - self.clock()))
                sleeps = wait > 0
            if sleeps and not stopped.is_set():
                self._renewer_wakes.sleep(self.clock(), wait)
            return not stopped.is_set()

    def _close(self) -> None:
        """Close the stores and the connections of the renewing thread."""
        stores, self._open_stores = self._open_stores, set()
        for store in stores:
            store.close()
        close_connections()

    def _renewal_due_at(self) -> float:
        # A hold whose renewals were stalled on purpose is due at infinity.
        return min((hold.due_at for hold in self.holds), default=math.inf)

    def _watch(self, stopped: threading.Event) -> None:
        while True:
            with self._lock:
                # Read under the lock: a stop between the check and the sleep would wake nobody.
                if stopped.is_set():
                    return
                ends = [hold.trusted_until for hold in self._holds]
                if self._request is not None:
                    soon = self.clock() + SHORTEST_LIMIT  # a new hold does not wake it
                    ends.append(min(soon, self._cut_off_at(self._request)))
                wait = min(self.look_every, max(0.0, min(ends) - self.clock())) if ends else None
                if wait is None or wait > 0:
                    self._watchdog_wakes.sleep(self.clock(), wait)
            self._try(stopped, self.declare_lost, self.cut_off)

    def stop_if_idle(self, patience: float = EXIT_PATIENCE) -> None:
        """End the threads, unless something is held. Waits up to ``patience`` seconds for each."""
        with self._lock:
            if self._holds:
                return
            wait = self._end_threads()
            self._make_threads()  # for holds that come from now on
        wait(patience)

    def stop(self, patience: float = EXIT_PATIENCE) -> None:
        """End the threads; leases that are held expire by themselves. Waits up to ``patience``
        seconds for each. For exit, and for tests."""
        with self._lock:
            wait = self._end_threads()
        wait(patience)
        self._reset()

    def _end_threads(self) -> Callable[[float], None]:
        """Have the threads end, under the lock. Return what waits for each up to so many
        seconds."""
        self._stopped.set()
        self._renewer_wakes.notify_all()
        self._watchdog_wakes.notify_all()
        threads = self._renewer, self._watchdog
        callbacks = self._prompt_callbacks, self._callbacks

        def wait(patience: float) -> None:
            for thread in threads:
                thread.join(patience)
            for each in callbacks:
                each.stop(patience)

        return wait

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
        self._holds.update(dict.fromkeys(before))
        try:
            yield
        finally:
            left = self.holds
            self._reset()
            self._with_threads = with_threads
            self.add([hold for hold in before if hold in left])

    @property
    def holds(self) -> list[Term]:
        """Return the holds that are renewed now."""
        with self._lock:
            return list(self._holds)

    def take_notes(self) -> list[Callable[[], object]]:
        """Remove and return the waiting entries of the ledger; the caller writes them."""
        with self._lock:
            notes = [note for note, _ in self._notes]
            self._notes.clear()
            return notes

    def after_fork(self) -> None:
        """Forget all holds, in a forked child: they are the parent's, and so are locks that no
        thread of the child would release."""
        holds = list(self._holds)
        self._reset()
        for hold in holds:
            hold.forget()


def group_of(hold: Term) -> Group:
    """Return what ``hold`` is renewed together with: intervals of one group are less than twice
    as long as each other."""
    _, octave = math.frexp(hold.interval)
    return hold.store, octave


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
