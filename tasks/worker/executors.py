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

#: Reasons for which a worker stops by itself.
ALL_SLOTS_STUCK = "all slots of one kind run handlers whose tasks have ended"
NO_RESULT = "results can't be stored, though the database answers"


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A number of tasks to claim, their filter, and their executors."""

    rows: TaskQuerySet
    room: int
    executors: list[Executor]

    def record_found(self, count: int) -> None:
        """Record that the claim found ``count`` tasks."""
        if len(self.executors) == 1:
            self.executors[0].found_none_at = float("-inf") if count else clock()


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
    ) -> None:
        self.completer = Completer(self._is_busy, stored, callbacks)
        self.executors: dict[Kind, Executor] = {
            executor.kind: executor(slots[executor.kind], self.completer, wake, chaos)
            for executor in (Threads, Coroutines, Processes)
        }
        #: ``saw_all``: the latest requests were for tasks of every kind. ``passed_over``: they left
        #: out a kind for which the claim before found none.
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
    def slots(self) -> dict[str, int]:
        """Return the number of tasks that can run at a time, by kind, of the kinds for which there
        are handlers."""
        return {kind.value: self.executors[kind].slots for kind in self._kinds()}

    @property
    def blocked(self) -> dict[str, int]:
        """Return the number of slots that take no task although they run none, by kind."""
        counts = {kind.value: executor.blocked for kind, executor in self.executors.items()}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def has_room(self) -> bool:
        """Return True if an executor has room for another task."""
        return any(self.executors[kind].room > 0 for kind in self._kinds())

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

    def submit(self, executions: list[Execution]) -> None:
        """Give each of ``executions`` to the executor of its kind."""
        by_kind: dict[Kind, list[Execution]] = {}
        for execution in executions:
            by_kind.setdefault(execution.kind, []).append(execution)
        for kind, some in by_kind.items():
            self.executors[kind].submit(some)

    def claim_requests(self, busy: bool) -> Iterator[ClaimRequest]:
        """Yield the claims to make. Unless the worker is ``busy`` with tasks that it finds, one
        claim is for all kinds together. Otherwise each executor has one of its own, so that none
        waits for another."""
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
        """Have ``wake`` called when an executor without room has room again, with ``has_capacity``
        when any has; with ``is_empty`` also when nothing is left in any. Return True if that is so
        already."""
        already = False
        for kind in self._kinds():
            executor = self.executors[kind]
            is_wanted = has_capacity or executor.room <= 0
            executor.look_at = executor.low if is_wanted else 0 if is_empty else -1
            already = already or (is_wanted and executor.room > 0)
        return already or (is_empty and not self._is_busy())

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

    def _kinds(self) -> dict[Kind, list[str]]:
        """Return the names of the tasks of each kind in use; threads also take unknown names."""
        named = registry.names_by_kind()
        return {kind: names for kind, names in named.items() if names or kind is Kind.THREAD}

    def close(self) -> None:
        """End what can be ended, before the process exits."""
        self.completer.close()
        for executor in self.executors.values():
            executor.close()
