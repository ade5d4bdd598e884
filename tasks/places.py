"""All the places of a worker: its lanes together, and what to claim for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks import registry
from tasks.chaos import Chaos
from tasks.execution import Execution
from tasks.lanes import Lane, Threads
from tasks.loop import Coroutines
from tasks.models import Task
from tasks.processes import Processes
from tasks.querysets import TaskQuerySet
from tasks.registry import Kind


class Places:
    """One lane for each kind of handler; ``done`` is called with each task that has ended."""

    def __init__(
        self,
        places: dict[Kind, int],
        done: Callable[[Execution], object],
        chaos: Chaos | None = None,
    ) -> None:
        self.lanes: dict[Kind, Lane] = {
            lane.kind: lane(places[lane.kind], done, chaos)
            for lane in (Threads, Coroutines, Processes)
        }
        #: Whether the latest openings were for tasks of every kind.
        self.saw_all = False

    @property
    def executions(self) -> list[Execution]:
        """What runs now."""
        return [execution for lane in self.lanes.values() for execution in lane.executions]

    @property
    def concurrency(self) -> int:
        """How many tasks can run at a time, of the kinds for which there are handlers."""
        return sum(self.lanes[kind].places for kind in self._kinds())

    @property
    def has_room(self) -> bool:
        """Whether a place is free that a task could come for."""
        return any(self.lanes[kind].free > 0 for kind in self._kinds())

    def is_stuck(self) -> bool:
        """Whether a lane is: see ``Lane.is_stuck``."""
        return any(lane.is_stuck() for lane in self.lanes.values())

    def submit(self, execution: Execution) -> None:
        """Run ``execution`` where it belongs."""
        self.lanes[execution.kind].submit(execution)

    def openings(self, busy: bool) -> Iterator[tuple[TaskQuerySet, int]]:
        """Which tasks to claim, and how many. Unless ``busy`` finding some, one claim looks for
        all kinds together; else each lane has one of its own, so that none waits for another."""
        kinds = self._kinds()
        room = {kind: self.lanes[kind].free for kind in kinds}
        self.saw_all = min(room.values()) > 0
        if self.saw_all and (len(kinds) == 1 or not busy):
            yield Task.objects.all(), min(room.values())
            return
        for kind, free in room.items():
            if free > 0 and kind is Kind.THREAD:
                others = [name for other in kinds if other is not kind for name in kinds[other]]
                yield Task.objects.exclude(name__in=others), free
            elif free > 0:
                yield Task.objects.filter(name__in=kinds[kind]), free

    def _kinds(self) -> dict[Kind, list[str]]:
        """The names of the tasks of each kind that there is; threads also take unknown ones."""
        named = registry.names_by_kind()
        return {kind: names for kind, names in named.items() if names or kind is Kind.THREAD}

    def close(self) -> None:
        """End what can be ended: the process is about to."""
        for lane in self.lanes.values():
            lane.close()
