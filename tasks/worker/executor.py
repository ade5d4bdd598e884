"""Run tasks in slots of one kind, each for one task at a time.

There is an executor of threads, of coroutines and of child processes (``tasks.worker.threads``,
``coroutines``, ``processes``). A worker claims for the executors that have room: for their free
slots, and where tasks are short for as many more as the slots end in ``Timing.prefetch`` seconds.
A slot whose task turns out to be long does not count: what waits and is more than the other slots
end in that time is given back for others to run, and all of it where every slot is at a long task.
So is what has waited for longer than ``Timing.slot_wait``, whatever the reason. An executor whose
slots are all at long tasks has no room: it claims nothing of what it has given back until one of
them has ended. The file is long, for all of that is judged by the same pace and the same slots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import ClassVar

from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.execution.attempt import Execution
from tasks.execution.chaos import Chaos
from tasks.execution.completer import Completer
from tasks.execution.outcomes import Outcome
from tasks.querysets.claim_request import may_wait
from tasks.registry import Kind
from tasks.runtime import marks
from tasks.runtime.timing import USUAL, Timing

#: The greatest number of tasks that wait in an executor.
MAX_PREFETCH = 2000
#: Seconds of work, and the number, of tasks that must not wait, for their attempt counts from the
#: claim and may be the only one: those that take microseconds begin about as soon as others that
#: have a slot. Each claim would be for a few of them, and take longer than they do. Only under a
#: parent, which gives back what has not begun when the worker dies. And the number of tasks that
#: have to end for each of them: where the parent dies too, that costs no more than that share of
#: others.
MOMENT, MAX_IN_A_MOMENT, CAREFUL = 0.004, 512, 16
#: Seconds in which all of these end, by the time from one end to the next, most of it for claims.
ALL_END_IN = 0.01
#: A task is long once it has run for ``Timing.long_after`` seconds, and for so many times what
#: others take.
LONG_FACTOR = 3.0
#: Seconds until what waits behind long tasks is judged again, and given back: where the whole
#: process had to wait all tasks look long, and end at once when it goes on.
CONFIRM_AFTER = 0.01
#: Seconds after its claim until a task that neither waits nor has begun is nobody's.
FORGOTTEN_AFTER = 10.0
#: The number of latest tasks that tell how long one takes: their mean, without the slowest quarter.
PACED_BY = 16


class Executor:
    """``slots`` for tasks of one ``kind``; what came of each goes to ``completer``, and ``wake``
    is called when the executor has emptied as far as ``look_at`` says."""

    kind: ClassVar[Kind]

    def __init__(
        self,
        slots: int,
        completer: Completer,
        wake: Callable[[], object],
        chaos: Chaos | None = None,
        timing: Timing = USUAL,
    ) -> None:
        self.slots = slots
        self.timing = timing
        self.chaos = chaos
        #: With how many tasks left in it somebody wants to know; -1: nobody does.
        self.look_at = -1
        #: True if something is ready that goes before what waits: it has room for that as well.
        self.is_outranked = False
        #: ``has_more``: more of its kind was ready at the latest claim. ``may_prefetch``: nothing
        #: came then that waits for a free slot with others before it is claimed.
        self.has_more = False
        self.may_prefetch = True
        self._completer = completer
        self._wake = wake
        # What runs and what waits, by identity: a task that was lost and claimed again is here
        # twice, in two places.
        self._running: dict[int, Execution] = {}
        self._waiting: deque[Execution] = deque()
        #: The ``id()`` of those that came by ``submit_next``.
        self._moved: set[int] = set()
        #: The moment at which each that runs has begun, in the order of these.
        self._begun: dict[int, float] = {}
        #: When that was last judged, and since when more has waited than should; None: it has not.
        self._judged_at = float("-inf")
        self._crowded_since: float | None = None
        #: The seconds that each of the latest tasks took, and how many have ended since some had to
        #: be given back.
        self._took: deque[float] = deque(maxlen=PACED_BY)
        self._paced = 0
        #: The ``id()`` of those that ran when others were given back, but for one: see ``overdue``.
        self._uncounted: set[int] = set()
        #: Since when it has not been empty, how many had ended by then, and the seconds from one
        #: end to the next since: threads that take turns take longer than their tasks.
        self._filled_at, self._paced_before, self._each = float("-inf"), 0, 0.0
        #: Since when each of the tasks that are over has been seen to run on.
        self._over_since: dict[Execution, float] = {}

    @property
    def executions(self) -> list[Execution]:
        """Return the attempts that run in it now, and those that wait."""
        return list(self._running.values())

    @property
    def is_busy(self) -> bool:
        """Return True if any attempt runs in it or waits."""
        return bool(self._running)

    @property
    def free(self) -> int:
        """Return the number of tasks that could start at once."""
        return self.slots - len(self._running) + len(self._waiting)

    @property
    def most_inside(self) -> int:
        """Return the greatest number of attempts that run in it or wait, at any time."""
        return 2 * (self.slots + MAX_PREFETCH)

    @property
    def vacant(self) -> int:
        """Return the number of tasks that could start at once if no others wait here."""
        return max(0, self.slots - len(self._running))

    @property
    def blocked(self) -> int:
        """Return the number of slots whose handler runs on although its task has ended."""
        return sum(each.carrier is not None and each.is_over for each in self.executions)

    # How much to claim

    @property
    def prefetch(self) -> int:
        """Return the number of tasks that may wait: as many as the slots end in
        ``Timing.prefetch``, by the latest tasks. Few at first, and none where that is unknown."""
        if not self._paced:
            return 0
        flowing = self._flowing(clock())
        if not self.may_prefetch:
            if marks.current is None:
                return 0
            most = min(MAX_IN_A_MOMENT, self._paced // CAREFUL)
            in_a_moment = min(self._fit(flowing, MOMENT), ALL_END_IN / max(self._each, 1e-6))
            return int(max(0, min(most, in_a_moment - self.slots)))
        return int(min(MAX_PREFETCH, self._fit(flowing, self.timing.prefetch), 2 * self._paced))

    def _fit(self, slots: int, seconds: float) -> float:
        """Return the number of tasks that so many ``slots`` end in so many ``seconds``."""
        return seconds * slots / max(self._pace, 1e-6)

    @property
    def _pace(self) -> float:
        """Return the seconds that a task takes; 0 where that is unknown. A few that took long say
        nothing about the others."""
        took = sorted(self._took)
        counted = took[: len(took) - len(took) // 4]
        return sum(counted) / max(1, len(counted))

    def _flowing(self, now: float) -> int:
        """Return the number of slots that are not at a long task."""
        before = now - self._long_after
        begun = list(self._begun.values())
        return self.slots - sum(1 for _ in takewhile(lambda began_at: began_at <= before, begun))

    @property
    def _long_after(self) -> float:
        return max(self.timing.long_after, LONG_FACTOR * self._pace)

    @property
    def low(self) -> int:
        """With so many tasks left in it, or fewer, it is time to claim more."""
        return (0 if self._are_quick else self.slots - 1) + self.prefetch // 2

    @property
    def _are_quick(self) -> bool:
        """Return True if a claim for each slot alone would come after the end of what runs in all
        of them. What turns out to be long is waited for no longer."""
        if not self._paced or self.may_prefetch or self._pace >= MOMENT / self.slots:
            return False
        return self._flowing(clock()) == self.slots

    @property
    def judges_in(self) -> float:
        """Return the seconds until it may have room without an end in it: what runs in it was to
        end at once, and turns out to be long."""
        waits_for_all = self.look_at == 0 and self.is_busy and self._are_quick
        return self._long_after if waits_for_all else math.inf

    @property
    def room(self) -> int:
        """Return the number of tasks to claim for it now."""
        inside = len(self._running)
        if not inside or inside <= self.low:
            return self.slots + self.prefetch - inside
        if not self.is_outranked:
            return 0
        return max(0, min(self._flowing(clock()), self._outranked_low + 1 - inside))

    @property
    def _outranked_low(self) -> int:
        """``low`` while it is outranked: twice as many may be inside as otherwise. Not all of what
        is claimed then goes before what waits, so without a limit more and more would wait."""
        return 2 * (self.slots + self.prefetch) - 1

    def look_for_room(self) -> None:
        """Have ``wake`` called once there is room."""
        self.look_at = self._outranked_low if self.is_outranked else self.low

    def note_ready(self, queue: str, priority: int) -> None:
        """Note that something of ``priority`` has become ready in ``queue``."""
        if any(_goes_before(queue, priority, each) for each in self._waiting.copy()):
            self.is_outranked = True

    @property
    def waits_until(self) -> float | None:
        """Return the moment at which ``overdue`` may have something; None when none waits."""
        until = self._waits_until_at_most
        if until is None:
            return None
        if self._crowded_since is not None:
            return min(until, self._crowded_since + CONFIRM_AFTER)
        judged_at, long_after = self._judged_at, self._long_after
        turns = (began_at + long_after for began_at in list(self._begun.values()))
        # Where the slots have not begun yet, what they begin may be long after that.
        first = next((moment for moment in turns if moment > judged_at), judged_at + long_after)
        return min(until, first)

    @property
    def _waits_until_at_most(self) -> float | None:
        try:
            return self._waiting[0].claimed.sent_at + self.timing.slot_wait
        except IndexError:
            return None

    def overdue(self) -> list[Execution]:
        """Return the attempts that have waited for too long, and those behind them, or else those
        that wait behind long tasks: they are no longer in the executor, and nothing is prefetched
        until tasks are short again."""
        count = self._count_overdue()
        if not count:
            return []
        self._crowded_since = None
        self._paced = 0
        # Of the long ones one counts. They stay, and the short ones go to others: by all that ends
        # here tasks would look long that are short.
        self._uncounted = set(list(self._begun)[1:])
        return self.withdraw(count)

    def _count_overdue(self) -> int:
        waiting, until = len(self._waiting), self._waits_until_at_most
        self._judged_at = now = clock()
        if until is None or now >= until:
            self._crowded_since = None
            return waiting
        flowing = self._flowing(now)
        kept = int(self._fit(flowing, self.timing.prefetch))
        waiting -= self._count_moved()
        # A few too many are not worth it.
        if flowing == self.slots or waiting <= kept + kept // 2:
            self._crowded_since = None
            return 0
        if self._crowded_since is None:
            self._crowded_since = now
        return waiting - kept if now >= self._crowded_since + CONFIRM_AFTER else 0

    def withdraw(self, count: int | None = None) -> list[Execution]:
        """Return the last ``count`` that wait, or all: they are no longer in the executor."""
        withdrawn: list[Execution] = []
        with suppress(IndexError):
            while count is None or len(withdrawn) < count:
                execution = self._waiting.pop()
                # Unless ``tend`` has given it up just now.
                if self._running.pop(id(execution), None) is not None:
                    withdrawn.append(execution)
        return withdrawn

    # Running

    def submit(self, executions: Iterable[Execution]) -> None:
        """Run ``executions``, in their order, as slots become free."""
        executions = list(executions)
        if not self._running:
            self._filled_at, self._paced_before = clock(), self._paced
        self._running.update(zip(map(id, executions), executions, strict=True))
        count = len(executions)
        if self.is_outranked or self._moved:
            lowest = self._lowest_waiting()
            executions = [each for each in executions if not self._overtakes(each, lowest)]
        self._waiting.extend(executions)
        self._begin(count)

    def submit_next(self, executions: Iterable[Execution]) -> list[Execution]:
        """Run those of ``executions`` that may wait before all that waits, one for each slot at the
        most. Return the others."""
        room = self.slots - self._count_moved()
        stay: list[Execution] = []
        left: list[Execution] = []
        for each in executions:
            fits = len(stay) < room
            fits = fits and may_wait(each.claimed.attempts - 1, each.claimed.max_attempts)
            (stay if fits else left).append(each)
        self._moved |= set(map(id, stay))
        self.submit(stay[::-1])
        return left

    def _count_moved(self) -> int:
        """Return the number of those that wait and came by ``submit_next``."""
        if self._moved:
            self._moved &= set(map(id, self._waiting.copy()))
        return len(self._moved)

    def _lowest_waiting(self) -> dict[str, int]:
        """Return the lowest priority of what waits, by queue."""
        lowest: dict[str, int] = {}
        for each in self._waiting.copy():
            queue, priority = each.claimed.queue, each.claimed.priority
            lowest[queue] = min(priority, lowest.get(queue, priority))
        return lowest

    def _overtakes(self, execution: Execution, lowest: Mapping[str, int]) -> bool:
        """Put ``execution`` before the first of its queue that waits and has a lower priority; one
        that is next, before all. Return False if it goes behind all, as most do: no priority that
        waits in its queue is below the ``lowest``."""
        if id(execution) in self._moved:
            # Behind those for which a slot is free.
            self._waiting.insert(max(0, self.slots - len(self._begun)), execution)
            return True
        queue, priority = execution.claimed.queue, execution.claimed.priority
        if priority <= lowest.get(queue, priority):
            return False
        for place, each in enumerate(self._waiting.copy()):
            if _goes_before(queue, priority, each):
                self._waiting.insert(place, execution)
                return True
        return False

    def _begin(self, count: int) -> None:
        """``count`` more are waiting."""
        raise NotImplementedError

    def _end(self, outcome: Outcome, began_at: float) -> None:
        outcome.ended_at = now = clock()
        execution, running, completer = outcome.execution, self._running, self._completer
        took = now - began_at
        happened("attempt.ran", queue=execution.claimed.queue, seconds=took)
        self._paced += 1
        key = id(execution)
        if key in self._uncounted:
            self._uncounted.discard(key)
        else:
            self._took.append(took)
        # In this order: what has not been stored is always to be found in one of the two.
        completer.put(outcome)
        running.pop(key, None)
        self._begun.pop(key, None)
        execution.carrier = completer
        completer.wake(now, is_busy=bool(running))
        if len(running) <= self.look_at:
            self.look_at = -1
            ended = max(1, self._paced - self._paced_before)
            self._each = (now - self._filled_at) / ended
            self._wake()

    def is_stuck(self) -> bool:
        """Return True if every slot has been at one task that is over for longer than its lease
        was: what cannot be ended leaves nothing to do but to start the whole process again."""
        # Each slot is judged by the task that it is at, however the others change meanwhile.
        now, since = clock(), self._over_since
        self._over_since = {
            each: since.get(each, now) for each in self.executions if each.carrier and each.is_over
        }
        hopeless = sum(now - at > 3 * each.hold.interval for each, at in self._over_since.items())
        return 0 < self.slots <= hopeless

    def close(self) -> None:
        """End what can be ended: the process is about to."""

    # Watching

    def tend(self) -> list[Execution]:
        """Start again what has ended of that which carries tasks here. Return what it carried and
        nobody stores; it is no longer in the executor."""
        self._restart()
        waiting = {id(each) for each in self._waiting.copy()}
        carried = [each for each in self.executions if not self._goes_on(each, waiting)]
        # In this order: what is handed in or withdrawn meanwhile is no longer carried here.
        stored = {id(each) for each in self._completer.executions}
        left: list[Execution] = []
        for each in carried:
            if self._running.pop(id(each), None) is not None and id(each) not in stored:
                left.append(each)
            self._begun.pop(id(each), None)
        return left

    def _goes_on(self, execution: Execution, waiting: set[int]) -> bool:
        if execution.carrier is not None:
            return execution.goes_on()
        # Neither waits nor has begun: the thread that took it has ended.
        is_fresh = clock() - execution.claimed.sent_at < FORGOTTEN_AFTER
        return is_fresh or id(execution) in waiting

    def _restart(self) -> None:
        """Start again what has ended of that which carries tasks here."""


def _goes_before(queue: str, priority: int, waiting: Execution) -> bool:
    """Return True if a task of ``priority`` in ``queue`` goes before one that is ``waiting``:
    priorities hold within a queue."""
    return waiting.claimed.priority < priority and waiting.claimed.queue == queue
