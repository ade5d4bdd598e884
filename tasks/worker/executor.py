"""Run tasks in slots of one kind, each for one task at a time.

There is an executor of threads, of coroutines and of child processes (``tasks.worker.threads``,
``coroutines``, ``processes``). A worker claims for its free slots, and ahead of them as many tasks
as the slots end in ``Timing.prefetch`` seconds by the mean of the latest results. What waits is
given back for others to run once the first of it has waited for ``Timing.slot_wait`` seconds, or
every slot is at a long task: one that has run for ``LONG_FACTOR`` times that mean.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar

from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks.execution.attempt import Attempt, Outcome
from tasks.execution.chaos import Chaos
from tasks.execution.completer import Completer
from tasks.registry import Kind
from tasks.runtime.timing import USUAL, Timing

#: The greatest number of tasks that wait in an executor.
MAX_PREFETCH = 2000
#: The number of latest tasks that tell how long one takes.
PACED_BY = 16
#: A task is long once it has run for ``Timing.long_after`` seconds, and for so many times the mean.
LONG_FACTOR = 3.0
#: Seconds until slots that are all at long tasks are judged again: where the whole process had to
#: wait all tasks look long, and end at once when it goes on.
CONFIRM_AFTER = 0.01
#: Seconds after its claim until a task that neither waits nor has begun is nobody's.
FORGOTTEN_AFTER = 10.0


class Executor:
    """``slots`` for tasks of one ``kind``; what came of each goes to ``completer``, and ``wake``
    is called when ``wake_at`` attempts are left."""

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
        #: ``wake`` is called when this many attempts are left; -1: never.
        self.wake_at = -1
        #: True if something is ready that goes before what waits: it has room for that as well.
        self.is_outranked = False
        #: True if more of its kind was ready at the latest claim.
        self.has_more = False
        self._completer = completer
        self._wake = wake
        # What runs and what waits, by identity: a task that was lost and claimed again is here
        # twice, in two places.
        self._running: dict[int, Attempt] = {}
        self._waiting: deque[Attempt] = deque()
        #: The moment at which each that runs has begun, in the order of these.
        self._begun: dict[int, float] = {}
        #: The seconds that each of the latest tasks took, and how many have ended since some had to
        #: be given back.
        self._took: deque[float] = deque(maxlen=PACED_BY)
        self._ended = 0
        #: The value of ``_long_from`` when it was last reached, and when to judge the slots again.
        self._long_from_seen, self._confirm_at = math.nan, math.inf
        #: Since when each of the tasks that are over has been seen to run on.
        self._over_since: dict[Attempt, float] = {}

    @property
    def attempts(self) -> list[Attempt]:
        """Return the attempts that run in it now, and those that wait."""
        return list(self._running.values())

    @property
    def is_busy(self) -> bool:
        """Return True if any attempt runs in it or waits."""
        return bool(self._running)

    @property
    def is_blocked(self) -> bool:
        """Return True if what carries its tasks does not answer: it takes none then."""
        return False

    @property
    def free(self) -> int:
        """Return the number of slots that run nothing."""
        return 0 if self.is_blocked else self.slots - len(self._running) + len(self._waiting)

    @property
    def most_inside(self) -> int:
        """Return the greatest number of attempts that run in it or wait, at any time."""
        return 2 * (self.slots + MAX_PREFETCH)

    @property
    def vacant(self) -> int:
        """Return the number of tasks that could start at once."""
        return max(0, self.slots - len(self._running))

    @property
    def blocked(self) -> int:
        """Return the number of slots whose handler runs on although its task has ended."""
        if self.is_blocked:
            return self.slots
        return sum(each.carrier is not None and each.is_over for each in self.attempts)

    # How much to claim

    @property
    def _mean(self) -> float:
        took = list(self._took)
        return sum(took) / max(1, len(took))

    @property
    def prefetch(self) -> int:
        """Return the number of tasks that may wait: few at first, none before a task has ended."""
        ahead = self.timing.prefetch * self.slots / max(self._mean, 1e-6)
        return int(min(MAX_PREFETCH, 2 * self._ended, ahead))

    @property
    def low(self) -> int:
        """With so many tasks left in it, or fewer, it is time to claim more. While it is outranked
        twice as many may be inside as otherwise: not all of what is claimed then goes before what
        waits, so without a limit more and more would wait."""
        if self.is_outranked:
            return 2 * (self.slots + self.prefetch) - 1
        return self.slots - 1 + self.prefetch // 2

    @property
    def room(self) -> int:
        """Return the number of tasks to claim for it now."""
        if self.is_blocked:
            return 0
        inside, prefetch = len(self._running), self.prefetch
        if not inside or inside <= self.slots - 1 + prefetch // 2:
            return self.slots + prefetch - inside
        if not self.is_outranked or self._long_from <= clock():
            return 0
        return max(0, min(self.slots, self.low + 1 - inside))

    def note_ready(self, queue: str, priority: int) -> None:
        """Note that something of ``priority`` has become ready in ``queue``."""
        if any(_goes_before(queue, priority, each) for each in self._waiting.copy()):
            self.is_outranked = True

    # What has waited too long

    @property
    def _long_from(self) -> float:
        """Return the moment from which every slot is at a long task; inf while one is at none."""
        begun = list(self._begun.values())
        if len(begun) < self.slots:
            return math.inf
        return begun[-1] + max(self.timing.long_after, LONG_FACTOR * self._mean)

    @property
    def waits_until(self) -> float | None:
        """Return the moment at which ``overdue`` may have something; None when none waits."""
        try:
            first: float = self._waiting[0].claimed.sent_at + self.timing.slot_wait
        except IndexError:
            return None
        long_from = self._long_from
        is_confirming = long_from == self._long_from_seen
        return min(first, self._confirm_at if is_confirming else long_from)

    def overdue(self) -> list[Attempt]:
        """Return the attempts that wait if they do so for too long, or behind long tasks: they are
        no longer in the executor, and nothing is claimed ahead until tasks are short again."""
        until, now = self.waits_until, clock()
        if until is None or now < until:
            return []
        long_from = self._long_from
        if until == long_from != self._long_from_seen:
            self._long_from_seen, self._confirm_at = long_from, now + CONFIRM_AFTER
            return []
        self._ended = 0
        return self.withdraw()

    def withdraw(self) -> list[Attempt]:
        """Return what waits: it is no longer in the executor."""
        withdrawn: list[Attempt] = []
        with suppress(IndexError):
            while True:
                attempt = self._waiting.pop()
                # Unless ``ensure_running`` has given it up just now.
                if self._running.pop(id(attempt), None) is not None:
                    withdrawn.append(attempt)
        return withdrawn

    # Running

    def submit(self, attempts: Iterable[Attempt]) -> None:
        """Run ``attempts``, in their order, as slots become free."""
        attempts = list(attempts)
        self._running.update(zip(map(id, attempts), attempts, strict=True))
        count = len(attempts)
        if self.is_outranked:
            lowest: dict[str, int] = {}
            for each in self._waiting.copy():
                queue, priority = each.claimed.queue, each.claimed.priority
                lowest[queue] = min(priority, lowest.get(queue, priority))
            attempts = [each for each in attempts if not self._overtakes(each, lowest)]
        self._waiting.extend(attempts)
        self._begin(count)

    def _overtakes(self, attempt: Attempt, lowest: dict[str, int]) -> bool:
        """Put ``attempt`` before the first of its queue that waits and has a lower priority.
        Return False if there is none, as for most: no priority that waits in its queue is below the
        ``lowest``."""
        queue, priority = attempt.claimed.queue, attempt.claimed.priority
        if priority <= lowest.get(queue, priority):
            return False
        for place, each in enumerate(self._waiting.copy()):
            if _goes_before(queue, priority, each):
                self._waiting.insert(place, attempt)
                return True
        return False

    def _begin(self, count: int) -> None:
        """``count`` more are waiting."""
        raise NotImplementedError

    def _end(self, outcome: Outcome, began_at: float) -> None:
        attempt, took = outcome.attempt, clock() - began_at
        happened("attempt.ran", queue=attempt.claimed.queue, seconds=took)
        self._ended += 1
        self._took.append(took)
        self._completer.put(outcome, self._running)
        self._begun.pop(id(attempt), None)
        attempt.carrier = self._completer
        if len(self._running) <= self.wake_at:
            self.wake_at = -1
            self._wake()

    def is_stuck(self) -> bool:
        """Return True if every slot has been at one task that is over for longer than its lease
        was: what cannot be ended leaves nothing to do but to start the whole process again."""
        # Each slot is judged by the task that it is at, however the others change meanwhile.
        now, since = clock(), self._over_since
        self._over_since = {
            each: since.get(each, now) for each in self.attempts if each.carrier and each.is_over
        }
        hopeless = sum(now - at > 3 * each.interval for each, at in self._over_since.items())
        return 0 < self.slots <= hopeless

    def close(self) -> None:
        """End what can be ended: the process is about to."""

    # Watching

    def ensure_running(self) -> list[Attempt]:
        """Start again what has ended of that which carries tasks here. Return what it carried and
        nobody stores; it is no longer in the executor."""
        self._restart()
        waiting = {id(each) for each in self._waiting.copy()}
        carried = [each for each in self.attempts if not self._goes_on(each, waiting)]
        # In this order: what is handed in or withdrawn meanwhile is no longer carried here.
        stored = {id(each) for each in self._completer.attempts}
        left: list[Attempt] = []
        for each in carried:
            if self._running.pop(id(each), None) is not None and id(each) not in stored:
                left.append(each)
            self._begun.pop(id(each), None)
        return left

    def _goes_on(self, attempt: Attempt, waiting: set[int]) -> bool:
        if attempt.carrier is not None:
            return attempt.goes_on()
        # Neither waits nor has begun: the thread that took it has ended.
        is_fresh = clock() - attempt.claimed.sent_at < FORGOTTEN_AFTER
        return is_fresh or id(attempt) in waiting

    def _restart(self) -> None:
        """Start again what has ended of that which carries tasks here."""


def _goes_before(queue: str, priority: int, waiting: Attempt) -> bool:
    """Return True if a task of ``priority`` in ``queue`` goes before one that is ``waiting``:
    priorities hold within a queue."""
    return waiting.claimed.priority < priority and waiting.claimed.queue == queue
