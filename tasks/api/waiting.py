"""Waiting of API clients for tasks to claim: polls with growing pauses up to a second. An enqueue
ends a pause early, by a call within the process and on PostgreSQL by a notification. The client can
end its wait too, once it is to stop.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from leasing.conf import leasing_settings
from leasing.runtime.aio import Steps, Undoable
from leasing.runtime.clock import clock
from leasing.waiting.listener import Listener
from leasing.waiting.waiter import Waiter
from tasks.notifier import CHANNEL, limiter


@dataclass(eq=False)
class Claimer:
    """A caller that waits for tasks of some ``queues``; None: of all. Its client can end the wait
    by ``wait_id``; None: it cannot."""

    queues: Sequence[str] | None
    wait_id: uuid.UUID | None
    waiter: Waiter

    def hear(self, message: str) -> None:
        """Wake the caller if ``message`` is of an enqueue for it, which may be of many tasks. End
        its wait if its client has sent the message."""
        what, _, which = message.partition(" ")
        if what == "end" and which == str(self.wait_id):
            self.waiter.end()
        if what == "queue" and (self.queues is None or which.partition(" ")[2] in self.queues):
            self.waiter.notify()

    def rivals(self, claimers: Sequence[Claimer]) -> list[Claimer]:
        """Return those of ``claimers`` that wait for tasks of the same queues."""
        return [each for each in claimers if each.queues == self.queues]


class Claimers:
    """The callers of this process that wait for tasks in the database ``using``."""

    def __init__(self, using: str) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Claimer] = []
        self._listener = Listener(using, self._hear, lambda: bool(self), self._lock, CHANNEL)

    def __len__(self) -> int:
        """Return the number of callers that wait."""
        return len(self._waiting)

    @contextmanager
    def waiting(
        self, queues: Sequence[str] | None, until: float, wait_id: uuid.UUID | None = None
    ) -> Iterator[Waiter]:
        """Give a waiter that enqueues wake while the block runs.

        Args:
            queues: The queues whose tasks it waits for; None: all.
            until: The moment on the caller's clock at which the wait ends.
            wait_id: The id by which ``end_wait`` ends it earlier; None: nothing does.
        """
        claimer = Claimer(queues, wait_id, Waiter(until))
        claimer.waiter.ahead = partial(self._ahead_of, claimer)
        with limiter.heard_by(claimer.hear):  # first: a caller that is listed can be woken
            with self._lock:
                self._waiting.append(claimer)
                self._listener.start()
            try:
                yield claimer.waiter
            finally:
                with self._lock:
                    self._waiting.remove(claimer)
                    rivals = claimer.rivals(self._waiting)
                    if rivals and claimer.waiter.left:
                        rivals[
                            0
                        ].waiter.notify()  # this caller leaves with tasks; there may be more

    def _ahead_of(self, claimer: Claimer) -> int:
        if not self._listener.arrives:
            return 0
        with self._lock:
            return claimer.rivals(self._waiting).index(claimer)

    def _hear(self, message: str) -> None:
        with self._lock:
            for claimer in self._waiting:
                claimer.hear(message)


_claimers: dict[str, Claimers] = {}

if hasattr(os, "register_at_fork"):
    # The waiters and the thread are the parent's.
    os.register_at_fork(after_in_child=_claimers.clear)


def claimers(using: str) -> Claimers:
    """Return the callers that wait for tasks in the database ``using``."""
    return _claimers.setdefault(using, Claimers(using))


def end_wait(wait_id: uuid.UUID) -> None:
    """End the wait with this id, in whichever process of the service it is."""
    limiter.notify(leasing_settings.DATABASE, f"end {wait_id}")


def claiming(
    claim: Undoable, queues: Sequence[str] | None, wait_id: uuid.UUID | None, wait: float
) -> Steps[Any]:
    """Return steps that claim tasks, for a driver. Their result is the claimed tasks; empty if none
    came in time.

    Args:
        claim: Claims the tasks that are due now.
        queues: The queues that it claims from; None: all.
        wait_id: The id by which ``end_wait`` ends the wait earlier; None: nothing does.
        wait: Seconds to wait for tasks, at most.
    """
    if not wait:
        return (yield claim)
    until = clock() + wait
    with claimers(leasing_settings.DATABASE).waiting(queues, until, wait_id) as waiter:
        while True:
            claimed = yield claim
            if claimed or not waiter.left:
                return claimed
            yield waiter
