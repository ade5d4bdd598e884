"""All the slots of a worker: its executors together, and what to claim for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import attrgetter

from leasing.runtime.clock import clock
from leasing.runtime.threads import CallbackThreads
from tasks import registry
from tasks.execution.attempt import Attempt, Outcome
from tasks.execution.chaos import Chaos
from tasks.execution.completer import Completer
from tasks.querysets.slots import may_wait
from tasks.registry import Kind
from tasks.runtime import marks
from tasks.runtime.timing import USUAL, Timing
from tasks.worker.coroutines import Coroutines
from tasks.worker.executor import Executor
from tasks.worker.processes import Processes
from tasks.worker.threads import Threads

#: The kind of the handler of an attempt.
_KIND = attrgetter("kind")
#: Reasons for which a worker stops by itself.
ALL_SLOTS_STUCK = "all slots of one kind run handlers whose tasks have ended"
NO_RESULT = "results can't be stored, though the database answers"


class Executors(dict[Kind, Executor]):
    """One executor for each kind of handler, and the completer that stores their outcomes.

    ``wake`` is called when an executor has the room that ``wake_when`` asked for, ``stored`` with
    the outcomes that were just stored. ``callbacks`` calls the receivers of their signals.
    """

    def __init__(
        self,
        slots: dict[Kind, int],
        wake: Callable[[], object],
        stored: Callable[[list[Outcome]], object],
        chaos: Chaos | None = None,
        callbacks: CallbackThreads | None = None,
        timing: Timing = USUAL,
    ) -> None:
        self.completer = Completer(self._expects_more, stored, callbacks, timing)
        for each in (Threads, Coroutines, Processes):
            self[each.kind] = each(slots[each.kind], self.completer, wake, chaos, timing)
        #: True if there was room for tasks of every kind at the latest look.
        self.saw_all = False
        #: The executors that had room then, and the numbers of the kinds to claim for each.
        self._with_room: dict[Executor, list[int]] = {}

    @property
    def attempts(self) -> list[Attempt]:
        """Return the attempts that run now or wait for a slot, and those that have ended and are
        not stored yet."""
        inside = [each for executor in self.values() for each in executor.attempts]
        found = {id(each): each for each in (*inside, *self.completer.attempts)}
        return list(found.values())

    def _expects_more(self) -> bool:
        """Return True if more outcomes come soon: what is ready is claimed as what runs ends."""
        return any(each.is_busy or each.has_more for each in self.values())

    @property
    def slots(self) -> dict[str, int]:
        """Return the number of tasks that can run at a time, by kind, of the kinds for which there
        are handlers."""
        return {kind.value: self[kind].slots for kind in registry.kinds_in_use()}

    @property
    def blocked(self) -> dict[str, int]:
        """Return the number of slots that take no task although they run none, by kind."""
        counts = {kind.value: executor.blocked for kind, executor in self.items()}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def stuck_reason(self) -> str:
        """The reason to restart the whole process; empty if there is none."""
        if any(executor.is_stuck() for executor in self.values()):
            return ALL_SLOTS_STUCK
        return NO_RESULT if self.completer.is_stuck() else ""

    def ensure_running(self) -> list[Attempt]:
        """Replace threads, loops and processes that have ended. Return the attempts that they ran,
        which are given up and are no longer in an executor."""
        self.completer.ensure_running()
        return [each for executor in self.values() for each in executor.ensure_running()]

    # Claiming

    def find_room(self) -> list[tuple[Executor, list[int]]]:
        """Return the executors that have room, and the numbers of the kinds to claim for each. Rows
        of a kind that no handler here has are for threads: some were enqueued before their handler
        changed its kind. They are claimed before others or after them, by chance, so that many of
        either never keep the others waiting."""
        kinds = registry.kinds_in_use()
        used = [kind.number for kind in kinds]
        self._with_room = {}
        for kind in kinds:
            executor = self[kind]
            if executor.room > 0:
                unused = [number for number in registry.KINDS if number not in used]
                numbers = [*(unused if kind is Kind.THREAD else ()), kind.number]
                random.shuffle(numbers)
                self._with_room[executor] = numbers
        self.saw_all = len(self._with_room) == len(kinds)
        return list(self._with_room.items())

    def submit(self, attempts: list[Attempt], claimed_for: Executor) -> list[Attempt]:
        """Give each of ``attempts`` to the executor of its kind. Return those for which there is
        no slot: their rows were of another kind, and they must not wait for one."""
        left: list[Attempt] = []
        kinds = set(map(_KIND, attempts))
        for kind in kinds:
            executor = self[kind]
            own = attempts
            if len(kinds) > 1:
                own = [each for each in attempts if each.kind is kind]
            if executor is not claimed_for:
                vacant = executor.vacant
                late = [each for each in own[vacant:] if not _may_wait(each)]
                left += late
                own = own[:vacant] + [each for each in own[vacant:] if each not in late]
            executor.submit(own)
        return left

    @property
    def idle_kinds(self) -> list[int]:
        """Return the numbers of the kinds of which all that was ready was claimed."""
        found = [kinds for executor, kinds in self._with_room.items() if not executor.has_more]
        return [number for kinds in found for number in kinds]

    def wake_when(self, *, is_empty: bool) -> bool:
        """Have ``wake`` called when an executor of whose kind more is ready, or that had no room,
        has room again; with ``is_empty`` also when nothing is left in any. Return True if that is
        so already."""
        already = False
        for kind in registry.kinds_in_use():
            executor = self[kind]
            if executor in self._with_room:
                executor.is_outranked = False
            if executor.has_more or executor.is_outranked or executor.room <= 0:
                executor.wake_at = executor.low
                already = already or executor.room > 0
            else:
                executor.wake_at = 0 if is_empty else -1
        is_idle = not any(executor.is_busy for executor in self.values())
        return already or (is_empty and is_idle)

    def expect_no_more(self) -> None:
        """Record that nothing more is to be claimed, and have ``wake`` called when nothing is
        left."""
        for executor in self.values():
            executor.has_more = executor.is_outranked = False
        self.wake_when(is_empty=True)

    def wait_ends_in(self) -> float | None:
        """Return the seconds until an attempt will have waited too long; None if none waits."""
        moments = [executor.waits_until for executor in self.values()]
        ends = [moment for moment in moments if moment is not None]
        return max(0.0, min(ends) - clock()) if ends else None

    def close(self, patience: float) -> None:
        """End what can be ended, before the process exits; what only has to close its connection
        within ``patience`` seconds."""
        self.completer.close(patience)
        for executor in self.values():
            executor.close()


def _may_wait(attempt: Attempt) -> bool:
    """Return True if the task may be held before there is a slot for it: if its worker dies
    meanwhile, its parent gives it back, or it has further attempts."""
    claimed = attempt.claimed
    return marks.current is not None or may_wait(claimed.attempts - 1, claimed.max_attempts)
