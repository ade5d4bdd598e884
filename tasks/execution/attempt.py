"""One attempt: the term of a claimed task in this process, until its outcome is stored.

Its handler, its timeout or a worker that stops may end it. The outcome of the first is stored,
those of the others are dropped.

It may wait for a slot before its handler starts. Its lease is renewed from the claim on; its
timeout counts from the start. There are many attempts, and most end long before any renewal: what
that needs is filled in for those that last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, Protocol

from leasing.holding.term import Term
from leasing.runtime.clock import clock
from leasing.runtime.events import happened
from tasks import registry
from tasks.models import Task
from tasks.querysets import TaskQuerySet
from tasks.querysets.claimed import ClaimedTask, resource_of
from tasks.runtime import marks

#: Seconds between looks whether what an end waits for has come.
CHECK_EVERY = 0.01
#: The verbs that are stored for many at once.
COMPLETE, FAIL = "complete", "fail"


class Carrier(Protocol):
    """The thread, coroutine or process that runs an attempt."""

    def is_alive(self) -> bool: ...


#: Held for some assignments at a time: one for all takes less time than one for each.
_lock = threading.Lock()
#: Woken with the first thing that there is to hear of for the handler of any attempt.
_notified = threading.Condition()


class Attempt(Term):
    """One attempt of a task.

    Args:
        claimed: The task, which was just claimed.
        stopping: Set when the whole worker is to stop.
        watch: Called with this object when its timeout starts.
    """

    is_prompt = True
    # Defaults are the class's until they are set, as in ``Term``.
    #: The part that ended it: "handler", "timeout" or "stop"; empty while none has.
    ended_by: str = ""
    #: Its carrier: a thread, a coroutine's loop; None while it waits for a slot.
    carrier: Carrier | None = None
    #: Cancels the call of its handler, where that can be done: a coroutine. Called on any thread.
    cancel_call: Callable[[], object] | None = None
    #: The headers by which a child process goes on with its trace; None while it has none.
    trace_context: str | None = None
    #: The name of the requester of the cancellation; empty while there is none.
    cancelled_by: str = ""
    #: The end of the timeout on the holder's clock; None while there is none.
    deadline: float | None = None
    #: True once there is something to hear of: it ends the pauses of the handler.
    is_notified: bool = False
    #: True once the handler has ended, in whatever way.
    has_ended: bool = False
    #: True if it has waited so long for its slot that its time for progress would end too early.
    needs_progress_report: bool = False

    def __init__(
        self,
        claimed: ClaimedTask,
        stopping: threading.Event,
        watch: Callable[[Attempt], object] | None = None,
    ) -> None:
        self.claimed = claimed
        self.stopping = stopping
        self.handler = handler = registry.get(claimed.name)
        self.timeout = claimed.timeout or (handler.timeout if handler is not None else None)
        #: The kind of its executor; of a task without a handler, the kind it was claimed for.
        self.kind = registry.Kind.of(claimed.kind) if handler is None else handler.kind
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        """Fill in what the store answered, at the first look at any of it."""
        if not name.startswith("_"):
            claimed, term = self.claimed, self.claimed.term
            with _lock:
                if "store" not in self.__dict__:
                    super().__init__(
                        claimed.id,
                        claimed.grant_id,
                        claimed.fencing_token,
                        term.holder,
                        resource_of(claimed.id),
                        term.seconds,
                        term.granted_until - term.sent_at,
                        term.expires_at,
                        term.sent_at,
                        store=Task.lease_rows(term.using).store(),
                    )
            # Another thread may have filled it in since this one has missed it.
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(name, name=name, obj=self)

    # As a term

    granted_until = property(attrgetter("claimed.term.granted_until"))
    held_row = property(attrgetter("claimed.task"))

    def goes_on(self) -> bool:
        carrier = self.carrier
        return carrier is None or carrier.is_alive()

    def _tell_lost(self) -> None:
        self.end_work()

    def _tell_asked(self) -> None:
        self.cancel(self.yield_to)

    # Its begin

    def start_timeout(self) -> None:
        """Count its timeout, if it has one, from now on."""
        if self.timeout is not None:
            self.deadline = clock() + self.timeout.total_seconds()
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
                marks.current.keep(self.claimed.grant, 2 * self.ttl)

    # Its end

    @property
    def timeout_error(self) -> TimeoutError:
        """Return the error of an attempt whose timeout is over."""
        seconds = (self.timeout or timedelta(0)).total_seconds()
        return TimeoutError(f"The attempt ran longer than its timeout of {seconds:.12g} s.")

    @property
    def is_over(self) -> bool:
        """Return True if any further work of the handler is in vain."""
        return bool(self.reason) or self.ended_by in ("timeout", "stop")

    def end_by(self, by: str) -> bool:
        """Return True if ``by`` is the first to end it, and so stores its outcome."""
        with _lock:
            if self.ended_by:
                return False
            self.ended_by = by
            return True

    def notify(self) -> None:
        """End the pauses of the handler: there is something to hear of."""
        with _notified:
            self.is_notified = True
            _notified.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until there is something to hear of, for ``seconds`` at most."""
        with _notified:
            _notified.wait_for(lambda: self.is_notified, seconds)

    def end_work(self) -> None:
        """Tell the handler that it is over, and interrupt it where that can be done."""
        self.notify()
        cancel_call = self.cancel_call
        if cancel_call is not None:
            cancel_call()

    def cancel(self, by: str) -> None:
        """Pass on that ``by`` asked for the cancellation."""
        self.cancelled_by = by
        self.end_work()


def wait_until(has_come: Callable[[], bool], until: float) -> None:
    """Wait until ``has_come``, or it is ``until`` on the holder's clock."""
    pause = threading.Event()
    while clock() < until and not has_come():
        pause.wait(CHECK_EVERY)


class Outcome:
    """The outcome of ``attempt``, to be stored (``tasks.execution.completer``): the ``value`` of a
    result or an error, or else ``store``, which is called with the rows and the task. Without a
    ``verb`` there is nothing to store."""

    # Defaults are the class's until they are set.
    #: True if it came too late: the attempt was ended by another.
    dropped: bool = False
    #: The moment at which it was handed in to be stored, on the holder's clock.
    ended_at: float = 0.0
    #: True if a thread that has ended began to store it: how far it came is unknown.
    is_unsure: bool = False

    def __init__(
        self,
        attempt: Attempt,
        verb: str = "",
        value: Any = None,
        store: Callable[[TaskQuerySet, Task], object] | None = None,
    ) -> None:
        self.attempt = attempt
        self.verb = verb
        self.value = value
        self.store = store
        #: True if nothing is left to do about it.
        self.is_done = not verb

    def close(self) -> None:
        """Nobody but its handler, which has ended, ends the attempt from now on, unless somebody
        else was first."""
        attempt = self.attempt
        attempt.has_ended = True
        attempt.expect_end()
        if self.verb and not attempt.end_by("handler"):
            self.dropped = True
        happened("attempt.left", [attempt], outcome=self)


#: Outcomes that were refused, and the reasons.
Refused = Sequence[tuple[Outcome, BaseException]]
