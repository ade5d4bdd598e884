"""The thread of a remote worker that stores results, many with one request.

Results are sent again until the service has answered, since a completion may be sent twice without
a second effect. What the service refuses then is over: the task was recovered meanwhile, or an
operator has taken it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasing.client.exceptions import RequestRefused
from leasing.runtime.aio import drive
from leasing.runtime.outage import Streak
from leasing.validation.requests import MAX_TASKS
from tasks.client.calls import Claimed, Refused, TaskCalls
from tasks.client.log import log

COMPLETE: Final = "complete"
FAIL: Final = "fail"
GIVE_BACK: Final = "give back"
#: Seconds for which one call tries again; the thread itself goes on afterwards.
PATIENCE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt, to be stored."""

    claimed: Claimed
    verb: str
    #: The output; the error and if it may be retried; or the fields of a return.
    said: Any
    #: Called once the service has answered.
    done: Callable[[], object]


class Completer:
    """Stores outcomes until it is stopped."""

    def __init__(self, calls: TaskCalls) -> None:
        self._calls = calls
        self._outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._gives_up = threading.Event()
        self._streak = Streak()
        self._thread = threading.Thread(target=self._run, name="task-results", daemon=True)

    def start(self) -> None:
        """Begin to store."""
        self._thread.start()

    def put(self, outcome: Outcome) -> None:
        """Store ``outcome`` soon."""
        self._outcomes.put(outcome)

    def stop(self, patience: float) -> bool:
        """Store what was put before, for ``patience`` seconds at most. Returns False if some is
        left: its tasks are recovered by the service."""
        self._outcomes.put(None)
        self._thread.join(patience)
        self._gives_up.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_over = False
        while not (is_over and self._outcomes.empty()):
            batch = [self._outcomes.get()]
            while len(batch) < MAX_TASKS and not self._outcomes.empty():
                batch.append(self._outcomes.get())
            is_over = is_over or None in batch
            left = [outcome for outcome in batch if outcome is not None]
            for verb in (COMPLETE, FAIL, GIVE_BACK):
                self._store_all(verb, [outcome for outcome in left if outcome.verb == verb])

    def _store_all(self, verb: str, outcomes: list[Outcome]) -> None:
        while outcomes and not self._gives_up.is_set():
            try:
                refused = self._store(verb, outcomes)
            except Exception as error:
                pause = self._streak.failed(error)
                log.worker_store_failed(
                    level=self._streak.level,
                    tasks=len(outcomes),
                    pause_seconds=pause,
                    error=error,
                )
                self._gives_up.wait(pause)
                continue
            self._streak.succeeded()
            self._note(verb, outcomes, refused)
            return

    def _store(self, verb: str, outcomes: Sequence[Outcome]) -> Refused:
        if verb == COMPLETE:
            results = [(each.claimed, each.said) for each in outcomes]
            return drive(self._calls.complete_many(results, PATIENCE))
        if verb == FAIL:
            failures = [(each.claimed, *each.said) for each in outcomes]
            return drive(self._calls.fail_many(failures, PATIENCE))
        returns = [(each.claimed, each.said) for each in outcomes]
        return drive(self._calls.give_back_many(returns, PATIENCE))

    def _note(self, verb: str, outcomes: Sequence[Outcome], refused: Refused) -> None:
        for outcome in outcomes:
            error = refused.get(outcome.claimed.task.id)
            if isinstance(error, RequestRefused) and verb == COMPLETE:
                # Its output is too large, or no JSON that every database stores: another attempt
                # would return the same.
                text = f"The service refused the output: {error}"
                self.put(Outcome(outcome.claimed, FAIL, (text, False), outcome.done))
                continue
            if error is not None:
                log.task_refused(outcome.claimed, verb=verb, reason=error)
            outcome.done()
