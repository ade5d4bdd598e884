"""Watches the clock for what runs: an attempt whose timeout is over is failed in time.

A coroutine is cancelled and a process killed; a thread cannot be ended, so its attempt is failed
without it, and what it still returns is dropped.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from functools import partial

from leasing.runtime.clock import clock
from leasing.runtime.threads import LastingThread
from tasks.execution.attempt import Attempt


class Timekeeper:
    """Calls ``over`` with each attempt whose deadline has passed, on a thread of its own."""

    def __init__(self, over: Callable[[Attempt], object]) -> None:
        self._over = over
        self._wakes = threading.Condition()
        self._heap: list[tuple[float, int, Attempt]] = []
        self._order = itertools.count()
        self._thread = LastingThread("timeouts", self._watch)
        self._closed = False
        self._tidy_at = 64

    def watch(self, attempt: Attempt) -> None:
        """Watch ``attempt``, if it has a timeout."""
        deadline = attempt.deadline
        if deadline is None:
            return
        with self._wakes:
            if len(self._heap) >= self._tidy_at:  # most have ended long before their deadline
                self._heap = [each for each in self._heap if not each[2].has_ended]
                heapq.heapify(self._heap)
                self._tidy_at = max(64, 2 * len(self._heap))
            heapq.heappush(self._heap, (deadline, next(self._order), attempt))
            self._wakes.notify()
        self._thread.ensure_running()

    def ensure_running(self) -> None:
        """Start its thread again, if that has ended."""
        if self._heap:
            self._thread.ensure_running()

    def close(self) -> None:
        """End the thread."""
        with self._wakes:
            self._closed = True
            self._wakes.notify()

    def due(self) -> list[Attempt]:
        """Return the attempts whose deadline has passed; they are no longer watched."""
        found: list[Attempt] = []
        while self._heap and self._heap[0][0] <= clock():
            attempt = heapq.heappop(self._heap)[2]
            if not attempt.has_ended:
                found.append(attempt)
        return found

    def _watch(self) -> None:
        while True:
            with self._wakes:
                if self._closed:
                    return
                due = self.due()
                if not due:
                    until = self._heap[0][0] - clock() if self._heap else None
                    if until is None or until > 0:
                        self._wakes.wait(until)
            for attempt in due:
                # Each on a thread: one that has to wait for the database delays no other.
                telling = partial(self._over, attempt)
                try:
                    threading.Thread(target=telling, name="timeout", daemon=True).start()
                except RuntimeError:  # there can be no thread more
                    telling()
