"""All the places of a worker: its lanes together, and what to claim for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from leasing.runtime.callbacks import Teller
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
from tasks.worker.threads import Lane, Threads

#: Seconds for which a kind that was looked for in vain is not looked for again, while there is
#: work of another.
EMPTY_FOR = 0.05

#: Why a worker can do no more.
EVERY_PLACE = "every executor is stuck in a task that has ended"
NO_RESULT = "results can't be stored, though the database answers"


@dataclass(frozen=True, slots=True)
class Opening:
    """How many of which tasks to claim, and for which lanes."""

    rows: TaskQuerySet
    room: int
    lanes: list[Lane]

    def heard_of(self, count: int) -> None:
        """So many were found."""
        if len(self.lanes) == 1:
            self.lanes[0].found_none_at = float("-inf") if count else clock()


class Places:
    """One lane for each kind of handler, and what stores what came of its tasks. ``wake`` is
    called when a lane has emptied as far as somebody wants to know; ``stored`` with what was
    just stored. ``teller`` calls the receivers of what is stored."""

    def __init__(
        self,
        places: dict[Kind, int],
        wake: Callable[[], object],
        stored: Callable[[list[Outcome]], object],
        chaos: Chaos | None = None,
        teller: Teller | None = None,
    ) -> None:
        self.completer = Completer(self._is_busy, stored, teller)
        self.lanes: dict[Kind, Lane] = {
            lane.kind: lane(places[lane.kind], self.completer, wake, chaos)
            for lane in (Threads, Coroutines, Processes)
        }
        #: Whether the latest openings were for tasks of every kind; and whether that is so but
        #: for a kind that was looked for in vain just before.
        self.saw_all = False
        self.passed_over = False

    @property
    def executions(self) -> list[Execution]:
        """What runs now or waits for its place, and what has ended and is not stored yet."""
        inside = [each for lane in self.lanes.values() for each in lane.executions]
        found = {id(each): each for each in (*inside, *self.completer.executions)}
        return list(found.values())

    def _is_busy(self) -> bool:
        return any(lane.is_busy for lane in self.lanes.values())

    @property
    def concurrency(self) -> int:
        """How many tasks can run at a time, of the kinds for which there are handlers."""
        return sum(self.lanes[kind].places for kind in self._kinds())

    @property
    def has_room(self) -> bool:
        """Whether there is room for a task that could come."""
        return any(self.lanes[kind].room > 0 for kind in self._kinds())

    @property
    def stuck_reason(self) -> str:
        """Why nothing helps but to start the whole process again; empty while there is no
        reason to."""
        if any(lane.is_stuck() for lane in self.lanes.values()):
            return EVERY_PLACE
        return NO_RESULT if self.completer.is_stuck() else ""

    def tend(self) -> list[Execution]:
        """Start again what has ended of that which runs and stores tasks. Return those that were
        carried by it, and are given up; they are in no lane any more."""
        self.completer.tend()
        return [each for lane in self.lanes.values() for each in lane.tend()]

    def submit(self, executions: list[Execution]) -> None:
        """Run ``executions`` where they belong."""
        by_kind: dict[Kind, list[Execution]] = {}
        for execution in executions:
            by_kind.setdefault(execution.kind, []).append(execution)
        for kind, some in by_kind.items():
            self.lanes[kind].submit(some)

    def openings(self, busy: bool) -> Iterator[Opening]:
        """Which tasks to claim, and how many. Unless ``busy`` finding some, one claim looks for
        all kinds together; else each lane has one of its own, so that none waits for another."""
        kinds = self._kinds()
        room = {kind: self.lanes[kind].room for kind in kinds}
        self.saw_all, self.passed_over = min(room.values()) > 0, False
        if self.saw_all and (len(kinds) == 1 or not busy):
            lanes = [self.lanes[kind] for kind in kinds]
            yield Opening(Task.objects.all(), min(room.values()), lanes)
            return
        for kind, free in room.items():
            lane = self.lanes[kind]
            if free <= 0:
                continue
            if clock() - lane.found_none_at < EMPTY_FOR:
                self.saw_all, self.passed_over = False, True
            elif kind is Kind.THREAD:
                others = [name for other in kinds if other is not kind for name in kinds[other]]
                yield Opening(Task.objects.exclude(name__in=others), free, [lane])
            else:
                yield Opening(Task.objects.filter(name__in=kinds[kind]), free, [lane])

    def call_when(self, *, more: bool, emptied: bool) -> bool:
        """Have ``wake`` called when there is room again in a lane that had none, or for which
        there is ``more``; when nothing is left in any, where ``emptied`` says so. Whether that
        is so already."""
        already = False
        for kind in self._kinds():
            lane = self.lanes[kind]
            is_wanted = more or lane.room <= 0
            lane.look_at = lane.low if is_wanted else 0 if emptied else -1
            already = already or (is_wanted and lane.room > 0)
        return already or (emptied and not self._is_busy())

    # What waits

    def overdue(self) -> list[Execution]:
        """What has waited too long for a place; it is in no lane any more."""
        return [each for lane in self.lanes.values() for each in lane.overdue()]

    def withdraw(self) -> list[Execution]:
        """What waits for a place; it is in no lane any more."""
        return [each for lane in self.lanes.values() for each in lane.withdraw()]

    def wait_ends_in(self) -> float | None:
        """Seconds until something will have waited too long; None: nothing waits."""
        moments = [lane.waits_until for lane in self.lanes.values()]
        ends = [moment for moment in moments if moment is not None]
        return max(0.0, min(ends) - clock()) if ends else None

    def _kinds(self) -> dict[Kind, list[str]]:
        """The names of the tasks of each kind that there is; threads also take unknown ones."""
        named = registry.names_by_kind()
        return {kind: names for kind, names in named.items() if names or kind is Kind.THREAD}

    def close(self) -> None:
        """End what can be ended: the process is about to."""
        self.completer.close()
        for lane in self.lanes.values():
            lane.close()
