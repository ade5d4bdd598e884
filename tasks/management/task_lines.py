"""The lines of tasks on a worker's own console.

A task that ends has one line. One that still runs a second after its claim has another, of its
claim. Once a hundred end in a second, the lines would take more time than the tasks: then there is
one line a second, with counts by handler and outcome. Failures have a line each in any case.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from leasing.runtime.clock import clock
from leasing.runtime.event_lines import log as leasing_log
from leasing.runtime.events import Subscriber, subscribe, unsubscribe
from leasing.signals import sending
from tasks.log import log
from tasks.querysets.claimed import instance_of
from tasks.signals import SENDERS, SIGNALS

#: Ends in a second from which on they are counted.
MANY: Final = 100
#: Seconds after its claim at which a task that still runs has a line.
LONG_AFTER: Final = 1.0
#: Handlers that one line names.
MAX_NAMED: Final = 10
#: The events of an end, by the word for it; and those of failures.
ENDS: Final = {
    "completed": "task.completed",
    "failed": "task.failed",
    "failed and retried": "task.attempt_failed",
    "postponed": "task.snoozed",
    "given back": "task.returned",
    "cancelled": "task.cancelled",
}
FAILURES: Final = ("failed", "failed and retried")


class TaskLines:
    """Chooses which tasks have a line each, and counts the others. The worker, which watches it,
    calls ``ensure_running`` once a second.

    Args:
        now: Returns the seconds of a clock.
    """

    def __init__(self, now: Callable[[], float] = clock) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._since = now()
        self._count = 0
        #: True if so many ended in the second before that none has a line.
        self._is_busy = False
        #: The moments of claims that have no line yet, with their tasks, by the ids of these.
        self._claimed: dict[Any, tuple[float, Any]] = {}
        #: The numbers of tasks without a line, by handler and outcome.
        self._counts: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Choose the lines of this process during the block."""
        usual = {event: SENDERS[event] for event in ("task.claimed", *ENDS.values())}
        without_line = {event: sending(SIGNALS[event][0], "task", instance_of) for event in usual}
        chosen: dict[str, Subscriber] = {"task.claimed": self._claims}
        chosen |= {event: partial(self._ends, outcome) for outcome, event in ENDS.items()}
        unsubscribe(usual)
        subscribe(without_line, leasing_log.log_failed)
        subscribe(chosen, leasing_log.log_failed)
        try:
            yield
        finally:
            unsubscribe(chosen)
            unsubscribe(without_line)
            subscribe(usual, leasing_log.log_failed)
            self.ensure_running()

    def _claims(self, rows: Sequence[Any]) -> None:
        if not self._is_busy:
            now = self._now()
            with self._lock:
                self._claimed.update((row.id, (now, row)) for row in rows)

    def _ends(self, outcome: str, rows: Sequence[Any], **details: Any) -> None:
        with self._lock:
            if self._claimed:
                for row in rows:
                    self._claimed.pop(row.id, None)
            left = 0 if self._is_busy else max(0, MANY - self._count)
            self._count += len(rows)
            self._counts.update([(row.name, outcome) for row in rows[left:]])
        _, line = SIGNALS[ENDS[outcome]]
        line.each(rows if outcome in FAILURES else rows[:left], **details)

    def ensure_running(self) -> None:
        """Write the lines of claims and counts that are due: none has a thread of its own."""
        with self._lock:
            now = self._now()
            seconds, self._since = now - self._since, now
            self._is_busy, self._count = self._count >= MANY * min(1.0, seconds), 0
            counts, self._counts = self._counts, Counter()
            due = [row for at, row in self._claimed.values() if now - at >= LONG_AFTER]
            for row in due:
                del self._claimed[row.id]
        for row in due:
            log.task_claimed(row)
        if counts:
            log.worker_tasks_ended(ended=counts.total(), seconds=seconds, handlers=_words(counts))


def _words(counts: Counter[tuple[str, str]]) -> str:
    """Return the counts as text, by handler, those of most tasks first."""
    by_handler: dict[str, list[str]] = {}
    for (name, outcome), count in counts.most_common():
        by_handler.setdefault(name, []).append(f"{count:,} {outcome}")
    named = [f"{name} {', '.join(words)}" for name, words in by_handler.items()]
    more = len(named) - MAX_NAMED
    return "; ".join(named[:MAX_NAMED]) + (f"; and {more} more handlers" if more > 0 else "")
