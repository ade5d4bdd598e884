"""A claimed task on its way through this process, from the claim to what is stored of it.

Several may want to end it: its handler, its timeout, a worker that stops. Whoever takes it first
stores what came of it, and what the others bring is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from leasing.hold import Hold
from leasing.keeper import Keeper, keeper
from leasing.rowstore import RowStore, grant_of
from tasks import registry
from tasks.context import Context
from tasks.exceptions import UnknownTask
from tasks.interruption import Interruption
from tasks.models import Task


class Execution:
    """One attempt at ``task``, which was just claimed: it is kept from now on. ``watch`` is
    called as its timeout begins."""

    def __init__(
        self,
        task: Task,
        stopping: threading.Event,
        *,
        keeper: Keeper = keeper,
        watch: Callable[[Execution], object] = lambda execution: None,
    ) -> None:
        self.task = task
        self.using = task._state.db or "default"
        self.handler = _handler_of(task)
        timeout = task.timeout or (self.handler.timeout if self.handler else None)
        self.interruption = Interruption(stopping, timeout)
        #: Set when the handler has ended, in whatever way.
        self.ended = threading.Event()
        #: Who ended it: "handler", "timeout" or "stop"; empty while nobody has.
        self.taken_by = ""
        #: Ends what can be ended from outside: a coroutine. May be called on any thread.
        self.interrupt: Callable[[], object] | None = None
        self._watch = watch
        self._lock = threading.Lock()
        self.hold = Hold(
            RowStore(Task, self.using), on_lost=self._lost, on_yield=self._cancelled, keeper=keeper
        )
        self.hold.adopt(grant_of(task))
        if self.kind is not registry.Kind.PROCESS:  # which may have to start first
            self.start_timeout(task.sent_at)

    def start_timeout(self, since: float | None = None) -> None:
        """The attempt begins now, or began at ``since``: it is watched from here on."""
        self.interruption.start_timeout(since)
        self._watch(self)

    @property
    def kind(self) -> registry.Kind:
        """Where it runs. What has no handler here is given back from a thread."""
        return self.handler.kind if self.handler else registry.Kind.THREAD

    @property
    def is_over(self) -> bool:
        """Whether what the handler still does is in vain."""
        return self.hold.lost.is_set() or self.taken_by in ("timeout", "stop")

    def context(self) -> Context:
        """What the handler is given."""
        return Context(self.task, self.hold, self.interruption.stopping, self.interruption)

    def take(self, by: str) -> bool:
        """Whether ``by`` is the first to end it, and so stores what came of it."""
        with self._lock:
            if self.taken_by:
                return False
            self.taken_by = by
            return True

    def end_work(self) -> None:
        """Let the handler hear that it is over; end it where that can be done."""
        self.interruption.stirred.set()
        if self.interrupt is not None:
            self.interrupt()

    def _lost(self, hold: Hold) -> None:
        self.end_work()

    def _cancelled(self, hold: Hold) -> None:
        self.interruption.cancel(hold.yield_to)
        self.end_work()


def _handler_of(task: Task) -> registry.Handler | None:
    try:
        return registry.find(task.name)
    except UnknownTask:
        return None
