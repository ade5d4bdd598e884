"""Outcomes of attempts: what is to be stored of each. ``outcome_store`` stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.execution.attempt import Execution

#: The verbs that are stored for many at once.
COMPLETE, FAIL = "complete", "fail"

#: Outcomes that were refused, and the reasons.
Refused = list[tuple["Outcome", BaseException]]


class Outcome:
    """The outcome of an attempt: the ``value`` of a result or an error, or else the function
    ``store``. Without a ``verb`` there is nothing to store."""

    # Defaults are the class's until they are set.
    store: Callable[[], object] | None = None
    #: True if it came too late: the attempt was ended by another.
    dropped: bool = False
    #: The moment at which it was handed in to be stored, on the holder's clock.
    ended_at: float = 0.0
    #: True if a thread that has ended began to store it: how far it came is unknown.
    is_unsure: bool = False

    def __init__(
        self,
        execution: Execution,
        verb: str = "",
        value: Any = None,
        store: Callable[[], object] | None = None,
    ) -> None:
        self.execution = execution
        self.verb = verb
        self.value = value
        if store is not None:
            self.store = store
        #: True if nothing is left to do about it.
        self.is_done = not verb

    def close(self, by: str) -> None:
        """The attempt is over, and nobody but ``by`` ends it from now on, unless somebody else
        was first."""
        execution = self.execution
        execution.hold.expect_end()
        if self.verb and not execution.end_by(by):
            self.dropped = execution.ended_by != by
