"""All the slots of a worker: its executors together, and what to claim for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from operator import attrgetter

from leasing.runtime.clock import clock
from leasing.runtime.threads import CallbackThreads
from tasks import registry
from tasks.execution.attempt import Execution
from tasks.execution.chaos import Chaos
from tasks.execution.completer import Completer
from tasks.execution.outcomes import Outcome
from tasks.querysets.claim_request import ClaimRequest, may_wait
from tasks.querysets.claimed import ClaimedTask
from tasks.registry import Kind
from tasks.runtime.timing import USUAL, Timing
from tasks.worker.coroutines import Coroutines
from tasks.worker.executor import Executor
from tasks.worker.processes import Processes
from tasks.worker.threads import Threads

#: The kind of an execution's handler, and of its row.
_KIND, _ROWS_KIND = attrgetter("kind"), attrgetter("claimed.kind")
#: Reasons for which a worker stops by itself.
ALL_SLOTS_STUCK = "all slots of one kind run handlers whose tasks have ended"
NO_RESULT = "results can't be stored, though the database answers"


class ExecutorPool:
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
        self.executors: dict[Kind, Executor] = {
            executor.kind: executor(slots[executor.kind], self.completer, wake, chaos, timing)
            for executor in (Threads, Coroutines, Processes)
        }
        #: True if the latest requests were for tasks of every kind.
        self.saw_all = False
        #: The executor that each number of a kind was asked for, in the latest requests.
        self._asked: dict[int, Executor] = {}

    @property
    def executions(self) -> list[Execution]:
        """Return the attempts that run now or wait for a slot, and those that have ended and are
        not stored yet."""
        inside = [each for executor in self.executors.values() for each in executor.executions]
        found = {id(each): each for each in (*inside, *self.completer.executions)}
        return list(found.values())

    def _expects_more(self) -> bool:
        """Return True if more outcomes come soon: what is ready is claimed as what runs ends."""
        return self._is_busy() or self.have_more

    def _is_busy(self) -> bool:
        return any(executor.is_busy for executor in self.executors.values())

    @property
    def slots(self) -> dict[str, int]:
        """Return the number of tasks that can run at a time, by kind, of the kinds for which there
        are handlers."""
        return {kind.value: self.executors[kind].slots for kind in registry.kinds_in_use()}

    @property
    def blocked(self) -> dict[str, int]:
        """Return the number of slots that take no task although they run none, by kind."""
        counts = {kind.value: executor.blocked for kind, executor in self.executors.items()}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def stuck_reason(self) -> str:
        """The reason to restart the whole process; empty if there is none."""
        if any(executor.is_stuck() for executor in self.executors.values()):
            return ALL_SLOTS_STUCK
        return NO_RESULT if self.completer.is_stuck() else ""

    def tend(self) -> list[Execution]:
        """Replace threads, loops and processes that have ended. Return the attempts that they ran,
        which are given up and are no longer in an executor."""
        self.completer.tend()
        return [each for executor in self.executors.values() for each in executor.tend()]

    def submit(self, executions: list[Execution]) -> list[Execution]:
        """Give each of ``executions`` to the executor of its kind. Return those for which there is
        no slot: their rows were of another kind. Some of these stay, and are next there: where two
        releases disagree about the kind of a handler, it would always be the one without a slot
        that finds them."""
        left: list[Execution] = []
        kinds = set(map(_KIND, executions))
        for kind in kinds:
            executor = self.executors[kind]
            own = executions
            if len(kinds) > 1:
                own = [each for each in executions if each.kind is kind]
            # Of each kind of row once: nearly all rows are of one.
            asked = {row: self._asked.get(row) is executor for row in set(map(_ROWS_KIND, own))}
            others: list[Execution] = []
            if not all(asked.values()):
                some, own = own, [each for each in own if asked[each.claimed.kind]]
                others = [each for each in some if not asked[each.claimed.kind]]
                fit = max(0, executor.vacant - len(own))
                own += others[:fit]
                others = others[fit:]
            executor.submit(own)
            if others:
                left += executor.submit_next(others)
        return left

    def claim_requests(self) -> list[ClaimRequest]:
        """Return what to claim in one statement, for each executor that has room. Rows of a kind
        that no handler here has are for threads: some were enqueued before their handler changed
        its kind. They are claimed before others or after them, by chance, so that many of either
        never keep the others waiting."""
        kinds = registry.kinds_in_use()
        used = [kind.number for kind in kinds]
        unused = [number for number in registry.KINDS if number not in used]
        requests: list[ClaimRequest] = []
        self._asked = {}
        for kind in kinds:
            executor = self.executors[kind]
            room = executor.room
            if room > 0:
                numbers = [*(unused if kind is Kind.THREAD else ()), kind.number]
                random.shuffle(numbers)
                soon = executor.vacant if executor.may_prefetch else room
                requests.append(ClaimRequest(room, numbers, executor.vacant, soon))
                self._asked |= dict.fromkeys(numbers, executor)
        self.saw_all = len(requests) == len(kinds)
        return requests

    def record_claimed(
        self, requests: Iterable[ClaimRequest], claimed: Iterable[ClaimedTask]
    ) -> None:
        """Record for each executor whether more of its kind is ready, and whether it may prefetch:
        as long as nothing comes that is to wait for a free slot elsewhere."""
        # Their attempt is counted already.
        cautious = {
            each.kind for each in claimed if not may_wait(each.attempts - 1, each.max_attempts)
        }
        for request in requests:
            executor = self._asked[request.kinds[-1]]
            executor.has_more = request.has_more
            executor.may_prefetch = not request.passed_over and cautious.isdisjoint(request.kinds)
        if not self.have_more:
            self.completer.look_again()

    def note_ready(self, queue: str, priority: int) -> None:
        """Note that something of ``priority`` has become ready in ``queue``: the next claim is also
        for executors in which tasks of lower priority wait."""
        for executor in self.executors.values():
            executor.note_ready(queue, priority)

    @property
    def idle_kinds(self) -> list[int]:
        """Return the numbers of the kinds of which all that was ready was claimed."""
        return [number for number, executor in self._asked.items() if not executor.has_more]

    @property
    def have_more(self) -> bool:
        """Return True if more of any kind was ready when it was last claimed."""
        return any(executor.has_more for executor in self.executors.values())

    def wake_when(self, *, is_empty: bool) -> bool:
        """Have ``wake`` called when an executor of whose kind more is ready, or that had no room,
        has room again; with ``is_empty`` also when nothing is left in any. Return True if that is
        so already."""
        already, asked = False, self._asked.values()
        for kind in registry.kinds_in_use():
            executor = self.executors[kind]
            if executor in asked:
                executor.is_outranked = False
            if executor.has_more or executor.is_outranked or executor.room <= 0:
                executor.look_for_room()
                already = already or executor.room > 0
            else:
                executor.look_at = 0 if is_empty else -1
        return already or (is_empty and not self._is_busy())

    def judges_in(self) -> float:
        """Return the seconds until an executor may have room without an end in it."""
        return min(each.judges_in for each in self.executors.values())

    def expect_no_more(self) -> None:
        """Record that nothing more is to be claimed, and have ``wake`` called when nothing is
        left."""
        for executor in self.executors.values():
            executor.has_more = executor.is_outranked = False
        self.wake_when(is_empty=True)

    # What waits

    def overdue(self) -> list[Execution]:
        """Remove and return the attempts that have waited too long for a slot."""
        return [each for executor in self.executors.values() for each in executor.overdue()]

    def withdraw(self) -> list[Execution]:
        """Remove and return the attempts that wait for a slot."""
        return [each for executor in self.executors.values() for each in executor.withdraw()]

    def wait_ends_in(self) -> float | None:
        """Return the seconds until an attempt will have waited too long; None if none waits."""
        moments = [executor.waits_until for executor in self.executors.values()]
        ends = [moment for moment in moments if moment is not None]
        return max(0.0, min(ends) - clock()) if ends else None

    def close(self, patience: float) -> None:
        """End what can be ended, before the process exits; what only has to close its connection
        within ``patience`` seconds."""
        self.completer.close(patience)
        for executor in self.executors.values():
            executor.close()
