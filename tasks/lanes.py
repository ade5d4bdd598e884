"""Where a worker runs tasks: places of one kind, each for one task at a time.

``Threads`` here runs plain functions; ``tasks.loop`` has the lane of coroutines,
``tasks.processes`` that of work in child processes. A worker claims for the lanes that have a
place free.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable
from typing import ClassVar

from leasing.clock import clock
from tasks import runner
from tasks.chaos import Chaos
from tasks.execution import Execution
from tasks.registry import Kind


class Lane:
    """``places`` for tasks of one ``kind``; ``done`` is called with each that has ended."""

    kind: ClassVar[Kind]

    def __init__(
        self, places: int, done: Callable[[Execution], object], chaos: Chaos | None = None
    ) -> None:
        self.places = places
        self.chaos = chaos
        self._done = done
        self._lock = threading.Lock()
        # By grant: a task that was lost and claimed again is here twice, in two places.
        self._running: dict[uuid.UUID, Execution] = {}
        self._stuck_since: float | None = None

    @property
    def executions(self) -> list[Execution]:
        """What runs in it now."""
        with self._lock:
            return list(self._running.values())

    @property
    def free(self) -> int:
        """How many tasks more it can run."""
        return self.places - len(self._running)

    def submit(self, execution: Execution) -> None:
        """Run ``execution`` in a free place."""
        with self._lock:
            self._running[execution.hold.grant_id] = execution
        self._begin(execution)

    def _begin(self, execution: Execution) -> None:
        raise NotImplementedError

    def _end(self, execution: Execution) -> None:
        with self._lock:
            self._running.pop(execution.hold.grant_id, None)
        self._done(execution)

    def is_stuck(self) -> bool:
        """Whether every place has been at a task that is over for longer than its lease was:
        what cannot be ended leaves nothing to do but to start the whole process again."""
        executions = self.executions
        if not executions or self.free > 0 or not all(each.is_over for each in executions):
            self._stuck_since = None
            return False
        if self._stuck_since is None:
            self._stuck_since = clock()
        return clock() - self._stuck_since > max(3 * each.hold.interval for each in executions)

    def close(self) -> None:
        """End what can be ended: the process is about to."""


class Threads(Lane):
    """Runs each task on a thread, which cannot be ended from outside."""

    kind = Kind.THREAD

    def __init__(
        self, places: int, done: Callable[[Execution], object], chaos: Chaos | None = None
    ) -> None:
        super().__init__(places, done, chaos)
        self._inbox: queue.SimpleQueue[Execution] = queue.SimpleQueue()
        self._started = False

    def _begin(self, execution: Execution) -> None:
        if not self._started:
            self._started = True
            for number in range(self.places):
                name = f"task-{self.kind}-{number + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._inbox.put(execution)

    def _work(self) -> None:
        call = self._caller()
        while True:
            execution = self._inbox.get()
            try:
                runner.run(execution, call, self.chaos)
            finally:
                self._end(execution)

    def _caller(self) -> runner.Call | None:
        """What calls handlers on the thread that asks; None: the thread itself."""
        return None
