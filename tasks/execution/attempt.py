"""A claimed task in this process, from the claim until its outcome is stored.

Its handler, its timeout or a worker that stops may end it. The outcome of the first is stored,
those of the others are dropped.

It may wait for a slot before its handler starts. Its lease is renewed from the claim on; its
timeout counts from the start. There are many executions, so each uses as little memory as possible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from leasing.holding.keeper import Keeper, keeper
from leasing.holding.term import keep_all
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks import registry
from tasks.execution.cancellation import Interruption
from tasks.execution.claimed_hold import ClaimedHold
from tasks.execution.context import Context
from tasks.models import Task
from tasks.querysets.claimed import ClaimedTask
from tasks.runtime import marks
from tasks.runtime.latch import Latch

Watch = Callable[["Execution"], object]

#: The share of its progress timeout for which a task may wait for a slot without a report.
SILENCE = 0.1


class Carrier(Protocol):
    """The thread, coroutine or process that runs an attempt."""

    def is_alive(self) -> bool: ...


#: Held for two assignments at a time: one for all takes less time than one for each.
_lock = threading.Lock()


class Execution:
    """One attempt of ``task``, which was just claimed. Its lease is renewed from now on, unless
    ``keep`` is False: then the caller keeps its hold. ``watch`` is called when its timeout
    starts."""

    # Defaults are the class's until they are set, as in ``Term``.
    #: The part that ended it: "handler", "timeout" or "stop"; empty while none has.
    ended_by: str = ""
    #: Its carrier: a thread, a coroutine's loop; None while it waits for a slot.
    carrier: Carrier | None = None
    #: Ends what can be ended from outside: a coroutine. May be called on any thread.
    interrupt: Callable[[], object] | None = None
    #: The headers by which a child process goes on with its trace; None while it has none.
    trace_context: str | None = None

    def __init__(
        self,
        task: Task | ClaimedTask,
        stopping: threading.Event,
        *,
        keeper: Keeper = keeper,
        watch: Watch | None = None,
        keep: bool = True,
    ) -> None:
        self.claimed = claimed = task if isinstance(task, ClaimedTask) else ClaimedTask.of(task)
        self.handler = handler = registry.get(claimed.name)
        timeout = claimed.timeout or (handler.timeout if handler is not None else None)
        #: The kind of its executor; of a task without a handler, the kind it was claimed for.
        self.kind = registry.Kind.of(claimed.kind) if handler is None else handler.kind
        self.interruption = Interruption(stopping, timeout)
        #: Set when the handler has ended, in whatever way.
        self.ended = Latch()
        self._watch = watch
        self.hold = ClaimedHold(claimed, self)
        if keep:
            self.hold.keep(keeper)

    @classmethod
    def of_claim(
        cls, claimed: Sequence[ClaimedTask], stopping: threading.Event, watch: Watch
    ) -> list[Execution]:
        """One for each of the tasks that were ``claimed`` by one request, all of them kept."""
        executions = [cls(each, stopping, watch=watch, keep=False) for each in claimed]
        keep_all([execution.hold for execution in executions])
        return executions

    @property
    def task(self) -> Task:
        """The model instance."""
        return self.claimed.task

    @property
    def using(self) -> str:
        return self.claimed.using

    def start_timeout(self) -> None:
        """The attempt begins now: it is watched from here on."""
        if self.interruption.timeout is not None:
            self.interruption.start_timeout()
            if self._watch is not None:
                self._watch(self)

    def set_mark(self) -> None:
        """Mark that its handler is about to be called, where a parent reads marks. Raises
        TimeoutError, and leaves no mark, if the attempt is over: it is not to be called."""
        if marks.current is not None:
            marks.current.begin(self.claimed.grant)
            if self.ended_by:  # and whoever ended it has perhaps cleared the mark already
                self.clear_mark(is_stored=True)
                raise TimeoutError("The attempt was over before its handler was called.")

    def clear_mark(self, *, is_stored: bool) -> None:
        """Clear the mark: now that the outcome is stored, or else once the lease has run out."""
        if marks.current is not None:
            if is_stored:
                marks.current.clear([self.claimed.grant])
            else:
                # A renewal may be on its way.
                marks.current.keep(self.claimed.grant, 2 * self.hold.ttl)

    @property
    def owes_a_word(self) -> bool:
        """Return True if it has waited so long for its slot that its time for progress would end
        too early."""
        timeout = self.claimed.progress_timeout
        if timeout is None:
            return False
        return clock() - self.claimed.sent_at > SILENCE * timeout.total_seconds()

    @property
    def is_over(self) -> bool:
        """Return True if any further work of the handler is in vain."""
        return self.hold.is_lost or self.ended_by in ("timeout", "stop")

    def goes_on(self) -> bool:
        """Return True unless what carried it has ended."""
        carrier = self.carrier
        return carrier is None or carrier.is_alive()

    def follow(self) -> None:
        """Tell that the attempt begins: the work of this thread or coroutine is a part of it."""
        happened("attempt.begun", [self])

    def context(self) -> Context:
        """Return the context for the handler."""
        return Context(self.claimed, self.hold, self.interruption.stopping, self.interruption)

    def end_by(self, by: str) -> bool:
        """Return True if ``by`` is the first to end it, and so stores its outcome."""
        with _lock:
            if self.ended_by:
                return False
            self.ended_by = by
            return True

    def end_work(self) -> None:
        """Tell the handler that it is over, and interrupt it where that can be done."""
        self.interruption.notified.set()
        if self.interrupt is not None:
            self.interrupt()

    def lose(self) -> None:
        """The task is lost."""
        self.end_work()

    def cancel(self, by: str) -> None:
        """``by`` asked for the task to be cancelled."""
        self.interruption.cancel(by)
        self.end_work()
