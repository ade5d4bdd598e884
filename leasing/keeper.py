"""The keeper renews everything this process holds, and says what was lost.

Terms
    hold      one grant this process believes it has
    due       the moment on the holder's clock at which a hold is to be renewed
    trust     until when the holder may believe: ``sent_at + remaining - margin``, where
              ``sent_at`` was read before the request was sent, and ``remaining`` is what was
              left by the store's clock at a later moment, so trust always ends first.

Threads, all daemons, started when the first hold comes and never before
    renewer   renews what is due, many holds in one statement, on a connection of its own. What
              carried the work of a hold has to go on, or it is not renewed
    watchdog  declares holds lost whose trust has run out. It never touches a connection, so a
              renewal that hangs in the network delays nothing
    callbacks   call ``on_lost`` and send signals, so that a slow callback delays nobody
              (``leasing.runtime.callbacks``); prompt callbacks, which are not users', have
              threads of their own
    Renewer and watchdog look after each other: one that has ended is started again.

What happens when it fails
    A renewal that raises, or is answered slowly, opens the store's breaker: after a growing,
    jittered pause one batch is tried, and the others follow if it succeeds. ``draining`` is true
    meanwhile, and whoever starts new work should not. Only an answer extends trust.
    A request that outlasts its limit is cut off by the watchdog, at this end of the line: a
    network that swallows everything would keep the renewer waiting for good. The limit is half of
    the interval of what is renewed: holds of like intervals are renewed together, those of shorter
    ones first. A request that hangs is cut off earlier where a shorter hold would have its last
    chance meanwhile, so that one table in trouble does not cost the others.
    Where a thread can't be started nothing is taken on: acquiring raises RuntimeError.
    Rows that were locked by someone else count as neither renewed nor lost and are tried again
    shortly. A fork drops every hold in the child.

Longer than other files: holds, breakers, the request under way and both threads change under one
lock, and each of them is read by the others. Apart are ``leasing.renewable`` (what is renewed
together), ``runtime.alarm`` (waking the threads) and ``runtime.notes`` (entries for the ledger).
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
from typing import Any

from django.db import connections

from leasing.conf import leasing_settings
from leasing.renewable import Group, Renewable, group_of, in_batches
from leasing.runtime import probes
from leasing.runtime.alarm import CHECK_CLOCK_EVERY, Alarm
from leasing.runtime.breaker import Breaker
from leasing.runtime.callbacks import CallbackThreads
from leasing.runtime.clock import clock as holder_clock
from leasing.runtime.event_lines import log
from leasing.runtime.notes import Notes
from leasing.runtime.threads import note_replaced, start_thread
from leasing.store import Store

#: The part of their interval that holds are spread over after a pause.
SPREAD = 0.02
#: Seconds that interpreter exit waits for a renewal under way.
EXIT_PATIENCE = 1.0
#: Seconds that a request may take at least, however short the intervals are.
SHORTEST_LIMIT = 0.25
#: A request is cut off when it has taken so many times its limit, which the store itself keeps
#: unless it cannot be reached.
CUT_OFF = 1.5


@dataclass(frozen=True, slots=True)
class Request:
    """A request under way: how to cut it off, since when it is sent, and when it has taken too
    long."""

    abort: Callable[[], object]
    began_at: float
    ends_at: float


class Keeper:
    """Renews holds until they are discarded or lost. Every process has one: ``keeper``.

    ``clock`` and ``threads`` are for tests: without threads, ``renew_due`` and
    ``declare_lost`` are called by hand.
    """

    def __init__(self, clock: Callable[[], float] = holder_clock, threads: bool = True) -> None:
        self.clock = clock
        self._with_threads = threads
        #: The number of renewals since the process began.
        self.renewals = 0
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._renewer_wakes = Alarm(self._lock)
        self._watchdog_wakes = Alarm(self._lock)
        self._holds: dict[int, Renewable] = {}
        self._notes = Notes(self.clock)
        self._callbacks = CallbackThreads()
        self._prompt_callbacks = CallbackThreads()
        self._request: Request | None = None
        self._is_overdue = False
        self._breakers: defaultdict[Group, Breaker] = defaultdict(Breaker)
        self._open_stores: set[Store] = set()
        #: Renewer and watchdog, as far as they were started.
        self._threads: list[threading.Thread] = []
        #: True if one of them could not be started.
        self._is_short = False
        # The threads keep the event they were started with: one that outlasts the stop (its
        # renewal hangs) must not go on beside those of the next start.
        self._stopped = threading.Event()

    # What holds call

    def add(self, hold: Renewable) -> None:
        """Renew ``hold`` from now on."""
        self.add_many([hold])

    def add_many(self, holds: Collection[Renewable]) -> None:
        """Renew ``holds`` from now on."""
        if not holds:
            return
        due_at = min(hold.due_at for hold in holds)
        trusted_until = min(hold.trusted_until for hold in holds)
        with self._lock:
            self.start()  # or nothing is held: nobody would renew it
            self._holds.update((id(hold), hold) for hold in holds)
            self._renewer_wakes.set_for(due_at)
            self._watchdog_wakes.set_for(trusted_until)

    def discard(self, hold: Renewable) -> None:
        """Stop renewing ``hold``."""
        self.discard_many([hold])

    def discard_many(self, holds: Iterable[Renewable]) -> None:
        """Stop renewing ``holds``."""
        # What the threads had meant to do for it they find undone when they look: that the last
        # hold has gone wakes nobody.
        with self._lock:
            for hold in holds:
                self._holds.pop(id(hold), None)
            if self._breakers:
                self._forget_unheld()

    def renew_now(self, hold: Renewable) -> None:
        """Renew ``hold`` now: the store has something to say to it."""
        with self._lock:
            if id(hold) in self._holds:
                hold.due_at = self.clock()
                self._renewer_wakes.notify()

    def _forget_unheld(self) -> None:
        # What nobody holds any more is never renewed again: nothing else would close its breaker.
        for group, breaker in list(self._breakers.items()):
            holds = self._holds.values()
            if not breaker.is_closed and not any(group_of(hold) == group for hold in holds):
                del self._breakers[group]

    def soon(self, note: Callable[[], object], abort: Callable[[], object] = bool) -> None:
        """Run ``note`` on the renewing thread, over its connection; tried again while the
        database is away. ``abort`` lets one that hangs fail, from another thread."""
        with self._lock:
            self._notes.put(note, abort)
            with suppress(RuntimeError):  # it waits for the next try
                self.start()
            self._renewer_wakes.notify()

    def call(self, callback: Callable[[], object], *, is_prompt: bool = False) -> None:
        """Run ``callback`` apart from renewing and watching. One that ``is_prompt`` ends at once,
        and waits for no users' code that hangs."""
        if not self._with_threads:
            callback()
        elif is_prompt:
            self._prompt_callbacks.call(callback)
        else:
            self._callbacks.call(callback)

    @property
    def draining(self) -> bool:
        """True from the first renewal that failed, or was slow, until one succeeds, and while one
        of the threads can't be started: start nothing new."""
        open_ones = (not breaker.is_closed for breaker in list(self._breakers.values()))
        return self._is_overdue or self._is_short or any(open_ones)

    def next_due(self, sent_at: float, interval: float) -> float:
        """Return when to renew what was granted or renewed by a request sent at ``sent_at``."""
        return sent_at + interval * self._jitter()

    # Renewing

    def renew_due(self) -> None:
        """Renew what is due, or so nearly due that it can ride along."""
        now = self.clock()
        with self._lock:
            due = [h for h in self._holds.values() if h.due_at <= now + h.interval / 10]
        for hold in [hold for hold in due if not _goes_on(hold)]:
            due.remove(hold)
            hold.give_up()
        for group, holds in in_batches(due):
            self._renew(group, holds)

    def _renew(self, group: Group, holds: dict[Any, Renewable]) -> None:
        store, _ = group
        interval = min(hold.interval for hold in holds.values())
        limit = _limit(interval)
        breaker = self._breakers[group]
        if not breaker.lets_pass(self.clock()):
            self._put_off(holds.values(), breaker.opens_again_at)
            return
        grants = {key: hold.grant_id for key, hold in holds.items()}
        sent_at = self.clock()
        jitter = self._jitter()
        for hold in holds.values():
            # Not once it is answered: who hurries meanwhile has something to say that the answer
            # may not know of.
            hold.due_at = sent_at + hold.interval * jitter
        try:
            self._open(store)
            with self._requesting(store.abort, limit):
                answer = store.renew(grants, limit)
        except Exception as error:
            if probes.renewing:
                took = self.clock() - sent_at
                probes.measure_renewal(store, holds.values(), None, took, self.clock())
            level = logging.WARNING if breaker.is_closed else logging.DEBUG  # it is told once
            pause = self._open_breaker(breaker, interval)
            log.keeper_renewal_failed(
                level=level, holds=len(holds), pause_seconds=pause, error=error
            )
            self._put_off(holds.values(), breaker.opens_again_at)
            return
        took = self.clock() - sent_at
        if probes.renewing:
            probes.measure_renewal(store, holds.values(), answer, took, self.clock())
        if took > interval / 2:
            self._open_breaker(breaker, interval)
            log.keeper_renewal_slow(holds=len(holds), seconds=took)
        elif breaker.succeeded():
            log.keeper_renewals_resumed()
        for key, hold in holds.items():
            if hold.grant_id != grants[key]:
                continue  # left and entered again meanwhile: the answer is about another term
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
            self._forget_unheld()  # what it was about may have been let go meanwhile
        return pause

    def _put_off(self, holds: Iterable[Renewable], until: float) -> None:
        """Renew ``holds`` shortly after ``until``, the moment at which one more try may pass."""
        for hold in holds:
            hold.due_at = until + hold.interval * random.uniform(0, SPREAD)

    @contextmanager
    def _requesting(self, abort: Callable[[], object], limit: float) -> Iterator[None]:
        """A request that is cut off by ``abort`` when it takes longer than its ``limit``."""
        began_at = self.clock()
        with self._lock:
            self._request = Request(abort, began_at, began_at + limit * CUT_OFF)
            self._watchdog_wakes.set_for(began_at + SHORTEST_LIMIT)
        try:
            yield
        finally:
            with self._lock:
                self._request, self._is_overdue = None, False

    def _jitter(self) -> float:
        spread = leasing_settings.JITTER
        return random.uniform(1 - spread, 1 + spread)

    def _open(self, store: Store) -> None:
        if self._with_threads and store not in self._open_stores:
            store.open()
            self._open_stores.add(store)

    def _close_stores(self) -> None:
        stores, self._open_stores = self._open_stores, set()
        for store in stores:
            store.close()

    def _write_notes(self) -> bool:
        """Write what waits for the ledger, until a renewal is due. Return False if the database did
        not take it."""
        return self._notes.write(
            lambda: self._stopped.is_set() or self._renewal_due_at() > self.clock(),
            self._requesting,
        )

    # Watching

    def declare_lost(self) -> None:
        """Tell the holds whose trust has run out."""
        now = self.clock()
        with self._lock:
            over = [hold for hold in self._holds.values() if hold.trusted_until <= now]
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
        """Return when ``request`` is to end: at its limit, or where it has taken a while, at the
        last chance that it would cost another hold."""
        if self.clock() < request.began_at + SHORTEST_LIMIT:
            return request.ends_at
        chances = [
            chance
            for hold in self._holds.values()
            if max(hold.due_at, request.began_at) < (chance := _last_chance(hold))
            and self._renews(hold)
        ]
        return min([request.ends_at, *chances])

    def _renews(self, hold: Renewable) -> bool:
        """Return True unless the latest renewal of holds like ``hold`` failed."""
        breaker = self._breakers.get(group_of(hold))
        return breaker is None or breaker.is_closed

    # Threads

    def start(self) -> None:
        """Have both threads run, also in place of one that has ended. Whoever will hold something
        calls it before. Raises RuntimeError where there can be no thread more."""
        if not self._with_threads or self._stopped.is_set() or self._is_manned():
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

    def _is_manned(self) -> bool:
        threads = self._threads
        return len(threads) == 2 and threads[0].is_alive() and threads[1].is_alive()

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
            self._write_notes()
        finally:
            self._close_stores()
            connections.close_all()

    def _renew_and_note(self) -> None:
        self.renew_due()
        if self.clock() >= self._notes.due_at:
            self._write_notes()

    def _try(self, stopped: threading.Event, work: Callable[[], object]) -> None:
        """Do the ``work`` of one of the threads, which looks after the other besides."""
        try:
            work()
            if not stopped.is_set():
                with suppress(RuntimeError):
                    self.start()
        except Exception:  # a fault of ours must not end all renewals
            log.keeper_failed(exc_info=True)

    def _wait_for_work(self, stopped: threading.Event) -> bool:
        """Sleep until something is due or came new. False when the keeper was stopped."""
        with self._lock:
            idle = not self._holds and not self._notes
        if idle:
            self._close_stores()
            connections.close_all()
        with self._lock:
            wait = self._until_due()
            # What was held when it looked may be gone by now: then there is a line to close.
            sleeps = idle if wait is None else wait > 0
            if sleeps and not stopped.is_set():
                self._renewer_wakes.sleep(self.clock(), wait)
            return not stopped.is_set()

    def _until_due(self) -> float | None:
        """Seconds until a renewal or a note is due; None when there is nothing to do."""
        due_at = self._renewal_due_at()
        if self._notes:
            due_at = min(due_at, self._notes.due_at)
        if due_at == math.inf and not self._holds:
            return None
        return min(CHECK_CLOCK_EVERY, max(0.0, due_at - self.clock()))

    def _renewal_due_at(self) -> float:
        # A hold whose renewals were stalled on purpose is due at infinity.
        return min((hold.due_at for hold in self.holds), default=math.inf)

    def _watchdog(self, stopped: threading.Event) -> None:
        while True:
            with self._lock:
                # Looked at under the lock: a stop in between would wake nobody.
                if stopped.is_set():
                    return
                ends = [hold.trusted_until for hold in self._holds.values()]
                if self._request is not None:
                    soon = self.clock() + SHORTEST_LIMIT  # who comes meanwhile wakes nobody
                    ends.append(min(soon, self._cut_off_at(self._request)))
                wait = min(CHECK_CLOCK_EVERY, max(0.0, min(ends) - self.clock())) if ends else None
                if wait is None or wait > 0:
                    self._watchdog_wakes.sleep(self.clock(), wait)
            self._try(stopped, self._declare_and_cut_off)

    def _declare_and_cut_off(self) -> None:
        self.declare_lost()
        self.cut_off()

    def rest(self) -> None:
        """End the threads, unless something is held: it goes on, and the threads with it."""
        with self._lock:
            if self._holds:
                return
            # Who holds something from now on has threads of its own.
            threads, self._threads = self._threads, []
            stopped, self._stopped = self._stopped, threading.Event()
            callbacks = self._prompt_callbacks, self._callbacks
            self._prompt_callbacks, self._callbacks = CallbackThreads(), CallbackThreads()
            stopped.set()
            self._renewer_wakes.notify_all()
            self._watchdog_wakes.notify_all()
        _end(threads, *callbacks)

    def stop(self) -> None:
        """End the threads; what is held runs out by itself. For exit, and for tests."""
        with self._lock:
            self._stopped.set()
            self._renewer_wakes.notify_all()
            self._watchdog_wakes.notify_all()
        _end(self._threads, self._prompt_callbacks, self._callbacks)
        self._reset()

    def give_back_all(self) -> None:
        """Give back what is still held, as far as that goes within EXIT_PATIENCE, and stop. For
        interpreter exit: whatever threads go on for a moment find their holds lost."""
        for hold in self.holds:
            hold.expect_end()
            hold.mark_lost("its process ended")
            self.soon(hold.give_back)
        self.stop()

    @contextmanager
    def by_hand(self) -> Iterator[None]:
        """Do nothing by itself in this block: no threads, and callbacks at once, where they are
        found due. For tests. What is held already stays held, and what is left at the end is
        forgotten."""
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
    def holds(self) -> list[Renewable]:
        """Return the holds that are renewed now."""
        with self._lock:
            return list(self._holds.values())

    def take_notes(self) -> list[Callable[[], object]]:
        """The notes that wait for the ledger: whoever takes them writes them."""
        with self._lock:
            return self._notes.take()

    def after_fork(self) -> None:
        """In a child: the parent's holds are not ours, and its locks may be held for ever."""
        holds = list(self._holds.values())
        self._reset()
        for hold in holds:
            hold.forget()


def _end(threads: Iterable[threading.Thread], *callbacks: CallbackThreads) -> None:
    """Wait for what was told to end, for a moment each."""
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(EXIT_PATIENCE)
    for each in callbacks:
        each.stop(EXIT_PATIENCE)


def _goes_on(hold: Renewable) -> bool:
    try:
        return hold.goes_on()
    except BaseException:  # of this hold alone: the others are renewed all the same
        log.keeper_proof_failed(key=hold.key, exc_info=True)
        return False


def _limit(interval: float) -> float:
    """Return the seconds that a request may take for holds with this ``interval``."""
    return max(SHORTEST_LIMIT, interval / 2)


def _last_chance(hold: Renewable) -> float:
    """Return the latest moment at which a request for ``hold`` may begin, so that it has all of
    its time before trust ends."""
    return hold.trusted_until - _limit(hold.interval) * CUT_OFF


keeper = Keeper()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=keeper.after_fork)
