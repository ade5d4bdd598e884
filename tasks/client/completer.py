"""The thread of a remote worker that stores results, many with one request.

Results are sent again until the service has answered, since a completion may be sent twice without
a second effect. What the service refuses then is over: the task was recovered meanwhile, or an
operator has taken it.

A result may be one that the service fails to store, with an error of its own (500), while it serves
all else. The results of such a request are stored one by one; what fails alone is put aside, so
that it holds up no other, and given up once it has failed alone STRIKES times more, each time after
the service has answered something else. An output is then reported as a failure of the attempt;
where the service fails to store that too, the task is left to its recovery.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasing.client.exceptions import RequestRefused, ServiceUnavailable
from leasing.runtime.aio import drive
from leasing.runtime.clock import clock
from leasing.runtime.threads import Streak
from leasing.validation.names import MAX_TASKS
from tasks.client.calls import Claimed, Refused, TaskCalls
from tasks.client.log import log
from tasks.exceptions import NotSerializable

COMPLETE: Final = "complete"
FAIL: Final = "fail"
GIVE_BACK: Final = "give back"
#: Seconds for which one call tries again; the thread itself goes on afterwards.
PATIENCE: Final = 2.0
#: Tries alone of a result that the service fails to store, and seconds between them.
STRIKES: Final = 3
STRIKE_EVERY: Final = 2.0
#: Results of a request that failed, which fail alone in a row until none is tried any more.
ENOUGH: Final = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt, to be stored."""

    claimed: Claimed
    verb: str
    #: The output; the error and if it may be retried; or the fields of a return.
    said: Any
    #: The key by which the caller of ``put`` knows it.
    execution: Any


@dataclass(slots=True)
class _PutAside:
    """An outcome that the service failed to store alone."""

    outcome: Outcome
    #: The number of answers of the service at its latest failure.
    seen: int
    due_at: float
    strikes: int = 0


class Completer:
    """Stores outcomes until it is stopped.

    Args:
        calls: The requests.
        done: Called with the executions of which the service knows the outcome.
    """

    def __init__(self, calls: TaskCalls, done: Callable[[Sequence[Any]], object]) -> None:
        self._calls = calls
        self._done = done
        self._outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._gives_up = threading.Event()
        self._streak = Streak()
        self._put_aside: list[_PutAside] = []
        self._answered: int | None = None
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
        while not self._gives_up.is_set():
            batch = self._next()
            is_over = is_over or None in batch
            left = [outcome for outcome in batch if outcome is not None]
            for verb in (COMPLETE, FAIL, GIVE_BACK):
                self._store_all(verb, [outcome for outcome in left if outcome.verb == verb])
            for aside in [each for each in self._put_aside if each.due_at <= clock()]:
                self._try_again(aside)
            if is_over and self._outcomes.empty() and not self._put_aside:
                return

    def _next(self) -> list[Outcome | None]:
        due_at = min((each.due_at for each in self._put_aside), default=None)
        try:
            left = None if due_at is None else max(0.0, due_at - clock())
            batch = [self._outcomes.get(timeout=left)]
        except queue.Empty:
            return []
        while len(batch) < MAX_TASKS and not self._outcomes.empty():
            batch.append(self._outcomes.get())
        return batch

    def _store_all(self, verb: str, outcomes: list[Outcome]) -> None:
        while outcomes and not self._gives_up.is_set():
            try:
                refused = self._store(verb, outcomes)
            except NotSerializable as error:
                self._note_unsent(verb, outcomes, error)
                return
            except Exception as error:
                if _is_fault(error):
                    outcomes = self._store_each(verb, outcomes)
                if outcomes:
                    self._pause(len(outcomes), error)
                continue
            self._streak.succeeded()
            self._note(verb, outcomes, refused)
            return

    def _note_unsent(self, verb: str, outcomes: list[Outcome], error: NotSerializable) -> None:
        """Store each alone, and take the one that is no JSON for refused: its handler has changed
        what it returned."""
        if len(outcomes) == 1:
            self._note(verb, outcomes, {outcomes[0].claimed.task.id: error})
        else:
            for outcome in outcomes:
                self._store_all(verb, [outcome])

    def _pause(self, count: int, error: Exception) -> None:
        pause = self._streak.failed(error)
        log.worker_store_failed(
            level=self._streak.level, tasks=count, pause_seconds=pause, error=error
        )
        self._gives_up.wait(pause)

    def _store_each(self, verb: str, outcomes: list[Outcome]) -> list[Outcome]:
        """Store each alone, and put aside what the service fails to store. Returns what is left if
        it fails whatever it is sent."""
        failed: list[tuple[Outcome, Exception]] = []
        for place, outcome in enumerate(outcomes):
            try:
                refused = self._store(verb, [outcome])
            except Exception as error:
                if not _is_fault(error):
                    return [each for each, _ in failed] + outcomes[place:]
                failed.append((outcome, error))
                if len(failed) == ENOUGH == place + 1 and not self._is_answered():
                    return outcomes
            else:
                self._note(verb, [outcome], refused)
        for outcome, fault in failed:
            log.task_put_aside(outcome.claimed, verb=verb, error=fault)
            due_at = clock() + STRIKE_EVERY
            self._put_aside.append(_PutAside(outcome, self._calls.transport.answered, due_at))
        return []

    def _is_answered(self) -> bool:
        """Return True if the service has answered anything since the last call."""
        before, self._answered = self._answered, self._calls.transport.answered
        return before is not None and self._answered > before

    def _try_again(self, aside: _PutAside) -> None:
        outcome, seen = aside.outcome, self._calls.transport.answered
        try:
            refused = self._store(outcome.verb, [outcome])
        except Exception as error:
            aside.due_at = clock() + STRIKE_EVERY
            if not _is_fault(error) or seen == aside.seen:
                return  # nothing says that the service is well
            aside.seen, aside.strikes = seen, aside.strikes + 1
            if aside.strikes < STRIKES:
                return
            self._put_aside.remove(aside)
            log.task_given_up(outcome.claimed, verb=outcome.verb, error=error)
            if outcome.verb == COMPLETE:
                text = f"The service failed to store the output: {error}"
                self.put(Outcome(outcome.claimed, FAIL, (text, True), outcome.execution))
            else:
                self._done([outcome.execution])
        else:
            self._put_aside.remove(aside)
            self._note(outcome.verb, [outcome], refused)

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
        ended = []
        for outcome in outcomes:
            error = refused.get(outcome.claimed.task.id)
            if isinstance(error, (RequestRefused, NotSerializable)) and verb == COMPLETE:
                # Its output is too large, or no JSON that every database stores: another attempt
                # would return the same.
                text = f"The service refused the output: {error}"
                self.put(Outcome(outcome.claimed, FAIL, (text, False), outcome.execution))
                continue
            if error is not None:
                log.task_refused(outcome.claimed, verb=verb, reason=error)
            ended.append(outcome.execution)
        self._done(ended)


def _is_fault(error: Exception) -> bool:
    """Return True if the service has met an error of its own."""
    return isinstance(error, ServiceUnavailable) and error.status is not None
