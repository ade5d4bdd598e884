"""Collect the outcomes of attempts and store them together: at once if there is little to do,
otherwise after a few milliseconds, or some more while many come: a statement for hundreds takes
less for each. Outcomes that come during a statement are stored by the next."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum

from django.db import connections

from leasing.holding.keeper import keeper
from leasing.runtime.clock import clock
from leasing.runtime.threads import CallbackThreads, apart, note_replaced
from tasks.conf import task_settings
from tasks.execution.attempt import Execution
from tasks.execution.outcome_store import store_outcomes
from tasks.execution.outcomes import Outcome
from tasks.runtime.connection import lasting_connection
from tasks.runtime.timing import USUAL, Timing

#: The greatest number of outcomes in one statement, and the number that does not wait for more.
MAX_BATCH, FULL_BATCH = 2000, 500
#: If so many come while an outcome waits for others (``Timing.batch_delay``), it waits as long
#: again, and so many times that in all.
MANY_COME, LONGEST_DELAY = 25, 4
#: With this many waiting outcomes, a worker claims nothing until some are stored.
MAX_WAITING = 4000
#: The greatest number at a time of statements that are stuck.
MAX_STUCK_WRITERS = 4


class WriterState(Enum):
    """States of the storing thread."""

    IDLE = "waits for a result"
    COLLECTING = "waits for more"
    STORING = "stores"


class Completer:
    """Stores outcomes on a thread of its own. ``is_busy`` returns True while others are to
    come. ``stored`` is called with what was just stored. ``callbacks`` calls receivers."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        stored: Callable[[list[Outcome]], object],
        callbacks: CallbackThreads | None = None,
        timing: Timing = USUAL,
    ) -> None:
        self._timing = timing
        self._callbacks = callbacks
        self._is_busy = is_busy
        self._stored = stored
        self._wakes = threading.Condition()
        self._waiting: deque[Outcome] = deque()
        self._under_way: dict[threading.Thread, list[Outcome]] = {}
        self._state = WriterState.IDLE
        self._began_at = 0.0
        #: The thread that stores new outcomes; earlier ones are stuck.
        self._writer: threading.Thread | None = None
        self._database_down = False
        #: The moment at which the database last failed to answer.
        self._down_at = float("-inf")
        self._closed = False

    @property
    def executions(self) -> list[Execution]:
        """Return the attempts whose outcome is not stored yet."""
        # In this order: what begins to be stored between the two looks is found by the second.
        waiting = self._waiting.copy()
        under_way = [outcome for each in list(self._under_way.values()) for outcome in each]
        return [outcome.execution for outcome in (*waiting, *under_way)]

    @property
    def is_full(self) -> bool:
        """Return True if no more should be started: the database does not store outcomes."""
        return self._database_down or len(self._waiting) >= MAX_WAITING

    @property
    def waits_since(self) -> float | None:
        """Return the end of the attempt whose outcome has waited for longest to be sent; None if
        none waits. An outcome that was sent may wait for a lock, which delays no other."""
        waiting = self._waiting.copy()
        return waiting[0].ended_at if waiting else None

    @property
    def database_down(self) -> bool:
        """Return True if the database did not answer when it was last sent outcomes."""
        return self._database_down

    def is_stuck(self) -> bool:
        """Return True if a result whose task is renewed still has not been stored for 3 times
        its ttl, and for twice ANSWER_TIMEOUT, though the database answered all the while."""
        if self._database_down or keeper.draining:
            self._down_at = clock()
        return any(
            map(self._waits_too_long, (*self._under_way.copy().values(), self._waiting.copy()))
        )

    def _waits_too_long(self, outcomes: Iterable[Outcome]) -> bool:
        now = clock()
        for outcome in outcomes:  # the oldest first
            hold = outcome.execution.hold
            answers = self._timing.stuck_after_answers * task_settings.ANSWER_TIMEOUT
            limit = max(self._timing.stuck_after * hold.ttl, answers)
            if now - max(outcome.ended_at, self._down_at) <= limit:
                return False
            if not hold.is_lost:
                return True
        return False

    def put(self, outcome: Outcome) -> None:
        """Take ``outcome`` over. It is stored after the next ``wake``."""
        self._waiting.append(outcome)

    def wake(self, now: float | None = None, *, is_busy: bool = False) -> None:
        """See to what was put, as a slot has become free, ``now`` by the clock. ``is_busy`` says
        that others are to come, for all that the caller knows of."""
        state = self._state
        if state is WriterState.STORING:
            if (now or clock()) - self._began_at > self._timing.stuck_writer_after:
                self.replace_stuck_writer()
        elif (
            state is WriterState.IDLE
            or len(self._waiting) >= FULL_BATCH
            or not (is_busy or self._is_busy())
        ):
            with self._wakes:
                self._start()
                self._wakes.notify()

    def look_again(self) -> None:
        """Store what waits for other outcomes, if none are to come any more."""
        if self._state is WriterState.COLLECTING:
            with self._wakes:
                self._wakes.notify()

    def replace_stuck_writer(self) -> None:
        """Start another writer for what waits, if the present one has been storing for too long."""
        with self._wakes:
            stuck = (
                self._state is WriterState.STORING
                and clock() - self._began_at > self._timing.stuck_writer_after
            )
            gone = self._writer is None
            if (stuck or gone) and self._waiting and len(self._under_way) < MAX_STUCK_WRITERS:
                self._writer = None
                self._start()

    def is_alive(self) -> bool:
        """Return True unless the thread that stores has ended."""
        writer = self._writer
        return writer is None or writer.is_alive()

    def ensure_running(self) -> None:
        """Start again the thread that stores, if it has ended; what it and others that have ended
        were at is stored by the next."""
        with self._wakes:
            for thread, batch in list(self._under_way.items()):
                if not thread.is_alive():
                    del self._under_way[thread]
                    self._put_back(batch)
            if not self.is_alive():
                self._writer = None
                if self._start():
                    note_replaced("task-results")
        self.replace_stuck_writer()

    def _put_back(self, batch: list[Outcome]) -> None:
        waiting = {id(outcome) for outcome in self._waiting}
        for outcome in reversed(batch):
            outcome.is_unsure = True
            if id(outcome) not in waiting:
                self._waiting.appendleft(outcome)

    def close(self, patience: float = 0.0) -> None:
        """End the thread once all is stored. Waits for that, up to ``patience`` seconds, if nothing
        is left to be stored: it only closes its connection then."""
        with self._wakes:
            writer, self._closed = self._writer, True
            self._wakes.notify_all()
        if writer is not None and patience and not self.executions:
            writer.join(patience)

    def _start(self) -> bool:
        """Return True if there is a thread that stores."""
        if self._writer is None:
            self._state = WriterState.IDLE
            writer = threading.Thread(target=self._work, name="task-results", daemon=True)
            # It waits for the caller's lock. Where there can be no thread more there
            # is none: the next call tries again.
            with contextlib.suppress(RuntimeError):
                writer.start()
                self._writer = writer
        return self._writer is not None

    def _work(self) -> None:
        with lasting_connection(), apart(self._callbacks):
            while (batch := self._next()) != []:
                if batch is None:
                    connections.close_all()
                    continue
                store_outcomes(batch, self._note_database, self._timing.store_pauses)
                with self._wakes:
                    del self._under_way[threading.current_thread()]
                self._stored(batch)

    def _note_database(self, database_down: bool) -> None:
        self._database_down = database_down

    def _next(self) -> list[Outcome] | None:
        """Return the outcomes to store now; an empty list when this thread is to end, None when
        none came for a while."""
        me = threading.current_thread()
        with self._wakes:
            if self._writer is not me:
                return []
            while not self._waiting:
                if self._closed:
                    # Whatever comes yet begins another.
                    self._writer, self._state = None, WriterState.IDLE
                    return []
                self._state = WriterState.IDLE
                # Whoever puts something from here on sees that, and wakes; before, it is seen.
                if not self._waiting and not self._wakes.wait(self._timing.completer_idle):
                    return None
            self._wait_for_batch()
            self._state = WriterState.STORING
            self._began_at = clock()
            count = min(MAX_BATCH, len(self._waiting))
            batch = self._under_way[me] = []
            for _ in range(count):
                # In this order: what is not stored is always to be found in one of the two.
                batch.append(self._waiting[0])
                self._waiting.popleft()
            return batch

    def _wait_for_batch(self) -> None:
        self._state = WriterState.COLLECTING
        delay, began_at = self._timing.batch_delay, clock()
        until, seen = began_at + delay, 0
        while len(self._waiting) < FULL_BATCH and self._is_busy() and not self._closed:
            left = until - clock()
            if left > 0:
                self._wakes.wait(left)
                continue
            came, seen = len(self._waiting) - seen, len(self._waiting)
            until += delay
            if came < MANY_COME or until > began_at + LONGEST_DELAY * delay:
                return
