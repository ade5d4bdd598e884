"""Collect the outcomes of attempts and store them together: at once if there is little to do,
otherwise after a few milliseconds, or some more while many come: a statement for hundreds takes
less for each. Outcomes that come during a statement are stored by the next.

If the database does not answer, storing is tried again for half a minute, and for as long as the
worker may trust a lease. If the answer to an earlier try was lost, the grants of the rows show that
it was stored. If the database refuses many together, they are tried one by one, so that one bad
result does not affect the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, MutableMapping, Sequence
from enum import Enum

from django.db import Error, connections

from leasing.exceptions import LeaseLost
from leasing.holding.keeper import keeper
from leasing.holding.term import detach_all
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from leasing.runtime.threads import CallbackThreads, apart, note_replaced, start_thread
from tasks.conf import task_settings
from tasks.exceptions import NotSerializable
from tasks.execution.attempt import COMPLETE, FAIL, Attempt, Outcome, Refused
from tasks.log import log
from tasks.models import Task
from tasks.querysets import TaskQuerySet, TaskStatus
from tasks.runtime import marks
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
        # Whatever is not stored is in one of these two, for whoever has the lock.
        self._waiting: deque[Outcome] = deque()
        self._under_way: dict[threading.Thread, list[Outcome]] = {}
        self._state = WriterState.IDLE
        self._began_at = 0.0
        #: The thread that stores new outcomes; earlier ones are stuck.
        self._writer: threading.Thread | None = None
        #: True if the database did not answer when it was last sent outcomes.
        self.database_down = False
        #: The moment at which the database last failed to answer.
        self._down_at = float("-inf")
        self._closed = False

    @property
    def attempts(self) -> list[Attempt]:
        """Return the attempts whose outcome is not stored yet."""
        with self._wakes:
            parts = (self._waiting, *self._under_way.values())
            return [outcome.attempt for part in parts for outcome in part]

    @property
    def is_full(self) -> bool:
        """Return True if no more should be started: the database does not store outcomes."""
        return self.database_down or len(self._waiting) >= MAX_WAITING

    @property
    def waits_since(self) -> float | None:
        """Return the end of the attempt whose outcome has waited for longest to be sent; None if
        none waits. An outcome that was sent may wait for a lock, which delays no other."""
        with self._wakes:
            return self._waiting[0].ended_at if self._waiting else None

    def is_stuck(self) -> bool:
        """Return True if a result whose task is renewed still has not been stored for 3 times
        its ttl, and for four times ANSWER_TIMEOUT, though the database answered all the while."""
        now, timing = clock(), self._timing
        if self.database_down or keeper.draining:
            self._down_at = now
        answers = timing.stuck_after_answers * task_settings.ANSWER_TIMEOUT
        with self._wakes:
            parts = (self._waiting.copy(), *self._under_way.values())
        for part in parts:
            for outcome in part:  # the oldest first
                limit = max(timing.stuck_after * outcome.attempt.claimed.term.seconds, answers)
                if now - max(outcome.ended_at, self._down_at) <= limit:
                    break
                if not outcome.attempt.is_lost:
                    return True
        return False

    def put(self, outcome: Outcome, running: MutableMapping[int, Attempt]) -> None:
        """Take ``outcome`` over, to be stored soon. Its attempt leaves those that are ``running``
        where it ran."""
        outcome.ended_at = clock()
        with self._wakes:
            self._waiting.append(outcome)
            # In this order: what has not been stored is always to be found in one of the two.
            running.pop(id(outcome.attempt), None)
            if self._writer is None:
                self._start()
            elif self._state is WriterState.IDLE or (
                self._state is WriterState.COLLECTING
                and (len(self._waiting) >= FULL_BATCH or not (running or self._is_busy()))
            ):
                self._wakes.notify()

    def look_again(self) -> None:
        """Store what waits for other outcomes, if none are to come any more."""
        if self._state is WriterState.COLLECTING and not self._is_busy():
            with self._wakes:
                self._wakes.notify()

    def is_alive(self) -> bool:
        """Return True unless the thread that stores has ended."""
        writer = self._writer
        return writer is None or writer.is_alive()

    def ensure_running(self) -> None:
        """Start again the thread that stores, if it has ended; what it and others that have ended
        were at is stored by the next. Start another if it has been storing for too long."""
        with self._wakes:
            for thread, batch in list(self._under_way.items()):
                if not thread.is_alive():
                    del self._under_way[thread]
                    for outcome in batch:
                        outcome.is_unsure = True
                    self._waiting.extendleft(reversed(batch))
            if not self.is_alive():
                self._writer = None
                self._start()
                if self._writer is not None:
                    note_replaced("task-results")
        self.replace_stuck_writer()

    def replace_stuck_writer(self) -> None:
        """Start another writer for what waits, if the present one has been storing for too long, or
        could not be started."""
        if not self._waiting:
            return
        with self._wakes:
            patience = self._timing.stuck_writer_after
            stores = self._state is WriterState.STORING
            if stores and clock() - self._began_at > patience:
                self._writer = None
            if self._writer is None and len(self._under_way) < MAX_STUCK_WRITERS:
                self._start()

    def close(self, patience: float = 0.0) -> None:
        """End the thread once all is stored. Waits for that, up to ``patience`` seconds, if nothing
        is left to be stored: it only closes its connection then."""
        with self._wakes:
            writer, self._closed = self._writer, True
            self._wakes.notify_all()
        if writer is not None and patience and not self.attempts:
            writer.join(patience)

    def _start(self) -> None:
        # It waits for the caller's lock. Where there can be no thread more the next call tries
        # again.
        with contextlib.suppress(RuntimeError):
            self._writer = start_thread("task-results", self._work)
            self._state = WriterState.IDLE

    def _work(self) -> None:
        me = threading.current_thread()
        with lasting_connection(), apart(self._callbacks):
            while True:
                with self._wakes:
                    if self._writer is not me:
                        return
                    self._state = WriterState.IDLE
                    if not self._waiting and self._closed:
                        self._writer = None  # whatever comes yet begins another
                        return
                    is_idle = not self._waiting and not self._wakes.wait(
                        self._timing.completer_idle
                    )
                    batch = self._collect(me)
                if batch:
                    store_outcomes(batch, self, self._timing.store_pauses)
                    with self._wakes:
                        del self._under_way[me]
                    self._stored(batch)
                elif is_idle:
                    connections.close_all()

    def _collect(self, writer: threading.Thread) -> list[Outcome]:
        """Return the outcomes that ``writer`` is to store now, which may wait for others; none if
        none has come."""
        if not self._waiting:
            return []
        self._state, seen = WriterState.COLLECTING, 0
        for _ in range(LONGEST_DELAY):
            if len(self._waiting) >= FULL_BATCH or self._closed or not self._is_busy():
                break
            is_enough = self._wakes.wait(self._timing.batch_delay)
            if is_enough or len(self._waiting) - seen < MANY_COME:
                break
            seen = len(self._waiting)
        self._state, self._began_at = WriterState.STORING, clock()
        count = min(MAX_BATCH, len(self._waiting))
        batch = self._under_way[writer] = [self._waiting.popleft() for _ in range(count)]
        return batch


# Storing


def store_outcomes(
    outcomes: list[Outcome],
    completer: Completer | None = None,
    pauses: Sequence[float] = USUAL.store_pauses,
) -> None:
    """Store ``outcomes``, each only under its grant. Raises nothing.

    Args:
        outcomes: The outcomes of attempts that have ended.
        completer: Learns whether the database answers.
        pauses: The pauses between tries, in seconds. Those while the database does not answer and
            a lease is trusted come on top: as many more of the last.
    """
    try:
        for outcome in outcomes:
            if outcome.dropped:
                _drop(outcome)
        if left := [outcome for outcome in outcomes if not outcome.is_done]:
            _store_until_stored(left, completer, pauses)
    except BaseException:  # pragma: no cover - an error here must reach no worker
        log.task_result_failed(exc_info=True)
    finally:
        if completer is not None:
            completer.database_down = False
        detach_all([outcome.attempt for outcome in outcomes])
        if marks.current is not None:
            ours = [each for each in outcomes if not each.dropped]  # who ended those sees to them
            stored = [each for each in ours if each.is_done and each.verb]
            marks.current.clear([each.attempt.claimed.grant for each in stored])
            for outcome in ours:
                if not (outcome.is_done and outcome.verb):
                    # Without a verb it is lost: until the lease has run out its row looks as it
                    # did.
                    outcome.attempt.clear_mark(is_stored=False)


def _drop(outcome: Outcome) -> None:
    attempt, outcome.is_done = outcome.attempt, True
    reason = f"its attempt was already over ({attempt.ended_by})"
    log.task_result_dropped(attempt.claimed, verb=outcome.verb, reason=reason)
    if outcome.verb == COMPLETE:
        try:
            attempt.refused(outcome.verb, reason)
        except Exception as error:
            log.task_note_failed(attempt.claimed, error=error)


def _store_until_stored(
    left: list[Outcome], completer: Completer | None, pauses: Sequence[float]
) -> None:
    using = left[0].attempt.claimed.using
    rows = Task.objects.using(using)
    unsure, waits = any(outcome.is_unsure for outcome in left), deque(pauses)
    while True:
        try:
            alike: dict[object, list[Outcome]] = defaultdict(list)
            for each in _not_arrived(left, rows) if unsure else left:
                alike[each if each.store is not None else each.verb].append(each)
            for outcomes in alike.values():
                _store(outcomes, rows)
            return
        except Error as error:
            failure, is_first, unsure = error, not unsure, True
        connections[using].close()
        answers = _answers(using)
        if answers and len(left) > 1:
            with contextlib.suppress(Error):
                for outcome in _not_arrived(left, rows):
                    with contextlib.suppress(Error):
                        _store([outcome], rows)
        left = [outcome for outcome in left if not outcome.is_done]
        if completer is not None:
            completer.database_down = not answers
        if not left:
            return
        if not answers and any(each.attempt.valid for each in left):
            waits.append(pauses[-1])
        if not waits:
            for outcome in left:
                log.task_result_not_stored(outcome.attempt.claimed, error=failure, exc_info=failure)
            return
        if is_first:
            log.task_result_delayed(left[0].attempt.claimed, error=failure, waiting=len(left))
        threading.Event().wait(waits.popleft())


def _store(outcomes: list[Outcome], rows: TaskQuerySet) -> None:
    """Store ``outcomes`` of one verb in ``rows``, their database. Raises Error when that does not
    answer; what it refuses is logged, and done with."""
    first, began_at = outcomes[0], clock()
    refused: Refused = []
    happened("outcomes.storing", outcomes)
    try:
        if first.store is not None:
            first.store(rows, first.attempt.claimed.task)
        elif first.verb == COMPLETE:
            lost = rows.complete_claimed([(each.attempt.claimed, each.value) for each in outcomes])
            if lost:
                known = {id(each.attempt.claimed): each for each in outcomes}
                refused = [(known[id(each)], error) for each, error in lost]
        else:
            tasks = {id(each.attempt.claimed.task): each for each in outcomes}
            _, left = rows.fail_many([(e.attempt.claimed.task, e.value) for e in outcomes])
            refused = [(tasks[id(each)], error) for each, error in left]
        happened("outcomes.stored", outcomes, refused=refused, seconds=clock() - began_at)
    except Error:
        raise
    except BaseException as failure:  # sys.exit() too, in what asks a retry policy
        if len(outcomes) > 1:
            for outcome in outcomes:
                _store([outcome], rows)
            return
        refused = [(first, failure)]
    for outcome in outcomes:
        outcome.is_done = True
    unfit = []
    for outcome, error in refused:
        claimed = outcome.attempt.claimed
        if isinstance(error, NotSerializable) and outcome.verb == COMPLETE:
            outcome.verb, outcome.value, outcome.is_done = FAIL, error, False
            unfit.append(outcome)
        elif isinstance(error, LeaseLost):
            log.task_result_dropped(claimed, reason=f"lease lost ({error.reason})")
        else:
            log.task_result_not_stored(claimed, error=error, exc_info=error)
    if unfit:
        _store(unfit, rows)


def _not_arrived(outcomes: list[Outcome], rows: TaskQuerySet) -> list[Outcome]:
    """Return the part of ``outcomes`` that no earlier try, whose answer was lost, has stored after
    all."""
    outcomes = [outcome for outcome in outcomes if not outcome.is_done]
    keys = [outcome.attempt.claimed.id for outcome in outcomes]
    ended = rows.filter(pk__in=keys, released_at__isnull=False)
    arrived = set(ended.exclude(status=TaskStatus.RUNNING).values_list("pk", "grant_id"))
    for outcome in outcomes:
        claimed = outcome.attempt.claimed
        outcome.is_done = (claimed.id, claimed.grant_id) in arrived
    return [outcome for outcome in outcomes if not outcome.is_done]


def _answers(using: str) -> bool:
    """Return True if the database answers."""
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return False
    return True
