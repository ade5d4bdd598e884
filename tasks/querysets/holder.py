"""What the holder of a running task may do with it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tasks.exceptions import Snooze
from tasks.querysets import completions, ends
from tasks.querysets.cancel import cancellation
from tasks.querysets.claimed import Taken
from tasks.querysets.ends import Refused
from tasks.querysets.progress import Progressing

if TYPE_CHECKING:
    from tasks.models import Task


class Holding(Progressing):
    """What the holder of a running task may do with it."""

    def heartbeat(self, task: Task) -> Task:
        """Move the deadline of a running task to its ttl from now. Raises LeaseLost."""
        return self.renew(task)

    def complete(self, task: Task, output: Any = None, *, unexpired: bool = False) -> Task:
        """Store ``output`` and end the task well, as part of the caller's transaction if there
        is one. ``unexpired`` also demands that the deadline has not passed.

        Raises LeaseLost when the task is no longer this grant's (the output is dropped, and the
        attempt remembers it), NotSerializable.
        """
        rows = self.home(task)
        return ends.alone(ends.complete(rows, [(task, output)], unexpired=unexpired))

    def complete_many(self, results: Iterable[tuple[Task, Any]]) -> tuple[list[Task], Refused]:
        """``complete`` each task with the output beside it. Returns those that are completed,
        and the others, each with its error (LeaseLost, NotSerializable, DataError)."""
        return ends.complete(self.home(), list(results))

    def complete_taken(self, results: Iterable[tuple[Taken, Any]]) -> completions.Refused:
        """``complete`` each with the output beside it, for workers: nothing is read back where
        nobody looks. Returns those that are not completed, each with its error."""
        return completions.complete_taken(self.home(), results)

    def fail(self, task: Task, error: BaseException | str, *, unexpired: bool = False) -> Task:
        """End this attempt badly. The task is tried again after a pause, which its handler's
        retry policy decides about where that is known here, and TASK_QUEUE["BACKOFF"]
        otherwise. When its attempts are used up, the error is a GiveUp, or the policy gives up,
        it is dead. A policy gets an ``error`` that is text as a TaskError. Raises LeaseLost.
        """
        rows = self.home(task)
        return ends.alone(ends.fail(rows, [(task, error)], unexpired=unexpired))

    def fail_many(
        self, failures: Iterable[tuple[Task, BaseException | str]]
    ) -> tuple[list[Task], Refused]:
        """``fail`` each task with the error beside it. Returns those that are failed, and the
        others, each with its error (LeaseLost)."""
        return ends.fail(self.home(), list(failures))

    def give_back(self, task: Task, reason: str, *, delay: timedelta = timedelta(0)) -> Task:
        """Set a running task ready again, unfinished: the attempt is not counted, and it is not
        started before ``delay`` has passed. Raises LeaseLost.

        Of several attempts returned for the same reason the history keeps the latest, so that
        a task that is returned every minute does not fill it.
        """
        return ends.alone(ends.give_back(self.home(task), [task], reason, delay))

    def give_back_many(self, tasks: list[Task], reason: str) -> tuple[list[Task], Refused]:
        """``give_back`` each of ``tasks`` at once and for the same ``reason``. Returns those that
        are ready again, and the others, each with its error (LeaseLost)."""
        return ends.give_back(self.home(), tasks, reason)

    def snooze(self, task: Task, delay: float | timedelta, reason: str = "") -> Task:
        """Put a running task off for ``delay`` (seconds, or a timedelta), as its handler asked
        for: the attempt is not counted, checkpoint and steps stay. The history keeps the latest
        snooze. Raises LeaseLost, ValueError (the delay).
        """
        nap = Snooze(delay, reason)
        return ends.alone(ends.snooze(self.home(task), task, nap))

    def accept_cancel(self, task: Task, by: str = "") -> Task:
        """End a running task as cancelled: its holder heard that ``by`` asked for it, and
        stopped. Raises LeaseLost."""
        text = cancellation(by or task.cancel_requested_by)
        return ends.alone(ends.accept_cancel(self.home(task), task, text))

    def release(self, row: Task) -> Task:
        """Give the task back: see ``give_back``."""
        return self.give_back(row, "released by its holder")
