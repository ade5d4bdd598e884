"""All the slots of a worker: its executors together, and what to claim for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from leasing.runtime.callbacks import CallbackThreads
from leasing.runtime.clock import clock
from tasks import registry
from tasks.execution.attempt import Execution
from tasks.execution.chaos import Chaos
from tasks.execution.completer import Completer
from tasks.execution.outcomes import Outcome
from tasks.models import Task
from tasks.querysets import TaskQuerySet
from tasks.registry import Kind
from tasks.worker.coroutines import Coroutines
from tasks.worker.processes import Processes
from tasks.worker.threads import Executor, Threads

#: Seconds for which a kind that was looked for in vain is not looked for again, while there is
#: work of another.
EMPTY_FOR = 0.05

#: Why a worker can do no more.
ALL_SLOTS_STUCK = "every executor is stuck in a task that has ended"
NO_RESULT = "results can't be stored, though the database answers"


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A number of tasks to claim, their filter, and their executors."""

    rows: TaskQuerySet
    room: int
    executors: list[Executor]

    def record_found(self, count: int) -> None:
        """So many were found."""
        if len(self.executors) == 1:
            self.executors[0].found_none_at = float("-inf") if count else clock()


class ExecutorPool:
    """One executor for each kind of handler, and what stores what came of its tasks. ``wake`` is
    called when an executor has emptied as far as somebody wants to know; ``stored`` with what was
    just stored. ``callbacks`` calls the receivers of what is stored."""

    def __init__(
        self,
        slots: dict[Kind, int],
        wake: Callable[[], object],
        stored: Callable[[list[Outcome]], object],
        chaos: Chaos | None = None,
        callbacks: CallbackThreads | None = None,
    ) -> None:
        self.completer = Completer(self._is_busy, stored, callbacks)
        self.executors: dict[Kind, Executor] = {
            executor.kind: executor(slots[executor.kind], self.completer, wake, chaos)
            for executor in (Threads, Coroutines, Processes)
        }
        #: True if the latest requests were for tasks of every kind; and True if they were but for a
        #: kind for which none was found just before.
        self.saw_all = False
        self.passed_over = False

    @property
    def executions(self) -> list[Execution]:
        """Return the attempts that run now or wait for a slot, and those that have ended and are
        not stored yet."""
        inside = [each for executor in self.executors.values() for each in executor.executions]
        found = {id(each): each for each in (*inside, *self.completer.executions)}
        return list(found.values())

    def _is_busy(self) -> bool:
        return any(executor.is_busy for executor in self.executors.values())

    @property
    def concurrency(self) -> int:
        """Return the number of tasks that can run at a time, of the kinds for which there are
        handlers."""
        return sum(self.executors[kind].slots for kind in self._kinds())

    @property
    def has_room(self) -> bool:
        """Return True if there is room for a task that could come."""
        return any(self.executors[kind].room > 0 for kind in self._kinds())

    @property
    def stuck_reason(self) -> str:
        """Why nothing helps but to start the whole process again; empty while there is no
        reason to."""
        if any(executor.is_stuck() for executor in self.executors.values()):
            return ALL_SLOTS_STUCK
        return NO_RESULT if self.completer.is_stuck() else ""

    def tend(self) -> list[Execution]:
        """Start again what has ended of that which runs and stores tasks. Return those that were
        carried by it, and are given up; they are in no executor any more."""
        self.completer.tend()
        return [each for executor in self.executors.values() for each in executor.tend()]

    def submit(self, executions: list[Execution]) -> None:
        """Run ``executions`` where they belong."""
        by_kind: dict[Kind, list[Execution]] = {}
        for execution in executions:
            by_kind.setdefault(execution.kind, []).append(execution)
        for kind, some in by_kind.items():
            self.executors[kind].submit(some)

    def claim_requests(self, busy: bool) -> Iterator[ClaimRequest]:
        """Yield the tasks to claim, and how many. Unless ``busy`` finding some, one claim looks for
        all kinds together; else each executor has one of its own, so that none waits for
        another."""
        kinds = self._kinds()
        room = {kind: self.executors[kind].room for kind in kinds}
        self.saw_all, self.passed_over = min(room.values()) > 0, False
        if self.saw_all and (len(kinds) == 1 or not busy):
            executors = [self.executors[kind] for kind in kinds]
            yield ClaimRequest(Task.objects.all(), min(room.values()), executors)
            return
        for kind, free in room.items():
            executor = self.executors[kind]
            if free <= 0:
                continue
            if clock() - executor.found_none_at < EMPTY_FOR:
                self.saw_all, self.passed_over = False, True
            elif kind is Kind.THREAD:
                others = [name for other in kinds if other is not kind for name in kinds[other]]
                yield ClaimRequest(Task.objects.exclude(name__in=others), free, [executor])
            else:
                yield ClaimRequest(Task.objects.filter(name__in=kinds[kind]), free, [executor])

    def wake_when(self, *, has_capacity: bool, is_empty: bool) -> bool:
        """Have ``wake`` called when there is room again in an executor that had none, or for which
        there is ``has_capacity``; when nothing is left in any, where ``is_empty`` says so. Whether
        that is so already."""
        already = False
        for kind in self._kinds():
            executor = self.executors[kind]
            is_wanted = has_capacity or executor.room <= 0
            executor.look_at = executor.low if is_wanted else 0 if is_empty else -1
            already = already or (is_wanted and executor.room > 0)
        return already or (is_empty and not self._is_busy())

    # What waits

    def overdue(self) -> list[Execution]:
        """Return the attempts that have waited too long for a slot; they are in no executor any
        more."""
        return [each for executor in self.executors.values() for each in executor.overdue()]

    def withdraw(self) -> list[Execution]:
        """Return the attempts that wait for a slot; they are in no executor any more."""
        return [each for executor in self.executors.values() for each in executor.withdraw()]

    def wait_ends_in(self) -> float | None:
        """Seconds until something will have waited too long; None: nothing waits."""
        moments = [executor.waits_until for executor in self.executors.values()]
        ends = [moment for moment in moments if moment is not None]
        return max(0.0, min(ends) - clock()) if ends else None

    def _kinds(self) -> dict[Kind, list[str]]:
        """The names of the tasks of each kind that there is; threads also take unknown ones."""
        named = registry.names_by_kind()
        return {kind: names for kind, names in named.items() if names or kind is Kind.THREAD}

    def close(self) -> None:
        """End what can be ended: the process is about to."""
        self.completer.close()
        for executor in self.executors.values():
            executor.close()
