"""What the holder of a running task may do with it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import transaction
from django.db.models import F
from django.dispatch import Signal

from leasing.db.deletion import unprotected
from leasing.querysets.claim import leaves_block
from tasks import registry, signals
from tasks.exceptions import GiveUp, Snooze, TaskError, UnknownTask
from tasks.notifier import ring
from tasks.payload import check_json
from tasks.querysets.base import (
    CANCEL_REQUESTED,
    TaskStatus,
    attempt_model,
    ending,
    traced,
    waiting,
)
from tasks.querysets.cancel import cancellation, said
from tasks.querysets.progress import Progressing
from tasks.retry import decide, usual

if TYPE_CHECKING:
    from tasks.models import Task, TaskAttempt


class Holding(Progressing):
    """What the holder of a running task may do with it."""

    def holding(self) -> Self:
        return self.filter(status=TaskStatus.RUNNING)

    def completing(self) -> dict[str, Any]:
        """The columns of a task that ends well, beside its output."""
        return {"status": TaskStatus.SUCCEEDED, **ending()}

    def heartbeat(self, task: Task) -> Task:
        """Move the deadline of a running task to its ttl from now. Raises LeaseLost."""
        return self.renew(task)

    @leaves_block
    def complete(self, task: Task, output: Any = None, *, unexpired: bool = False) -> Task:
        """Store ``output`` and end the task well, as part of the caller's transaction if there
        is one. ``unexpired`` also demands that the deadline has not passed.

        Raises LeaseLost when the task is no longer this grant's (the output is dropped, and the
        attempt remembers it), NotSerializable.
        """
        rows = self.home(task)
        check_json(output, "output")
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            mine = rows._of_grant(task)
            done = (mine.unexpired() if unexpired else mine).update(
                task_output=output,
                **rows.completing(),
            )
            if done:
                task.refresh_from_db(using=rows.db)
        if not done:
            raise rows._refuse(task, "complete")
        rows._tell(signals.completed, task)
        return task

    def fail(self, task: Task, error: BaseException | str, *, unexpired: bool = False) -> Task:
        """End this attempt badly. The task is tried again after a pause, which its handler's
        retry policy decides about where that is known here, and TASK_QUEUE["BACKOFF"]
        otherwise. When its attempts are used up, the error is a GiveUp, or the policy gives up,
        it is dead. A policy gets an ``error`` that is text as a TaskError. Raises LeaseLost.
        """
        return self.home(task)._fail_alone(task, Failure.of(task, error), unexpired=unexpired)

    @leaves_block
    def _fail_alone(self, task: Task, failure: Failure, *, unexpired: bool = False) -> Task:
        with transaction.atomic(using=self.db):
            self._lock(task)
            told = self._fail(failure, unexpired=unexpired)
            if told:
                failure.attempt.save(using=self.db, force_insert=True)
                task.refresh_from_db(using=self.db)
        if not told:
            raise self._refuse(task, "fail")
        if task.status == TaskStatus.CANCELLED:
            self._tell_cancelled(task)
        else:
            self._tell(told, task, error=failure.text)
        return task

    @leaves_block
    def accept_cancel(self, task: Task, by: str = "") -> Task:
        """End a running task as cancelled: its holder heard that ``by`` asked for it, and
        stopped. Raises LeaseLost."""
        rows = self.home(task)
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            text = cancellation(by or task.cancel_requested_by)
            attempt = attempt_model().of(task, "cancelled", text)
            done = rows._of_grant(task).update(
                status=TaskStatus.CANCELLED, last_error=said(text), **ending(), **traced(task)
            )
            if done:
                task.refresh_from_db(using=rows.db)
                attempt.error = task.last_error
                attempt.save(using=rows.db, force_insert=True)
        if not done:
            raise rows._refuse(task, "cancel")
        rows._tell_cancelled(task)
        return task

    def _fail(self, failure: Failure, *, unexpired: bool = False) -> Signal | None:
        """End the attempt of a locked row. Which signal tells of it; None: it was refused."""
        failure.task.raised = failure.raised
        mine = self._of_grant(failure.task)
        if unexpired:
            mine = mine.unexpired()
        said = {"last_error": failure.text, **traced(failure.task)}
        if mine.filter(CANCEL_REQUESTED).update(status=TaskStatus.CANCELLED, **said, **ending()):
            return signals.cancelled
        if failure.delay is not None:
            again = mine.filter(attempts__lt=F("max_attempts"))
            if again.update(**said, **waiting(failure.delay)):
                return signals.failed
        dead = mine.update(status=TaskStatus.FAILED, **said, **ending())
        return signals.dead if dead else None

    @leaves_block
    def give_back(self, task: Task, reason: str, *, delay: timedelta = timedelta(0)) -> Task:
        """Set a running task ready again, unfinished: the attempt is not counted, and it is not
        started before ``delay`` has passed. Raises LeaseLost.

        Of several attempts returned for the same reason the history keeps the latest, so that
        a task that is returned every minute does not fill it.
        """
        rows = self.home(task)
        attempt = attempt_model().of(task, "returned", reason)
        if not rows._refund(task, attempt, delay, like={"outcome": "returned", "error": reason}):
            raise rows._refuse(task, "give back")
        if task.status == TaskStatus.CANCELLED:
            rows._tell_cancelled(task)
        else:
            rows._tell(signals.returned, task, reason=reason)
            if not delay:
                ring(rows.db, [task])
        return task

    @leaves_block
    def snooze(self, task: Task, delay: float | timedelta, reason: str = "") -> Task:
        """Put a running task off for ``delay`` (seconds, or a timedelta), as its handler asked
        for: the attempt is not counted, checkpoint and steps stay. The history keeps the latest
        snooze. Raises LeaseLost, ValueError (the delay).
        """
        rows = self.home(task)
        nap = Snooze(delay, reason)
        text = _storable(str(nap))
        attempt = attempt_model().of(task, "snoozed", text)
        if not rows._refund(task, attempt, nap.delay, like={"outcome": "snoozed"}):
            raise rows._refuse(task, "snooze")
        if task.status == TaskStatus.CANCELLED:
            rows._tell_cancelled(task)
        else:
            rows._tell(signals.snoozed, task, reason=text)
        return task

    def _refund(
        self, task: Task, attempt: TaskAttempt, delay: timedelta, like: dict[str, str]
    ) -> bool:
        """Let ``task`` wait for ``delay`` with its attempt uncounted, and put ``attempt`` in
        place of those ``like`` it."""
        with transaction.atomic(using=self.db):
            self._lock(task)
            given = self._of_grant(task).update(
                attempts=F("attempts") - 1, **waiting(delay, spent=False), **traced(task)
            )
            if given:
                unprotected(self._attempts_of(task).filter(**like))._forget()
                attempt.save(using=self.db, force_insert=True)
                task.refresh_from_db(using=self.db)
        return bool(given)

    def release(self, row: Task) -> Task:
        """Give the task back: see ``give_back``."""
        return self.give_back(row, "released by its holder")


@dataclass(frozen=True)
class Failure:
    """A failed attempt of ``task``, before it is stored."""

    task: Task
    text: str
    #: How long until the next attempt; None: there is to be none.
    delay: timedelta | None
    attempt: TaskAttempt
    raised: BaseException | None

    @classmethod
    def of(cls, task: Task, error: BaseException | str) -> Failure:
        """Asks the policy: code of others, that no lock should wait for."""
        text, trace = describe(error)
        attempt = attempt_model().of(task, "failed", text, trace, class_path(error))
        raised = error if isinstance(error, BaseException) else None
        return cls(task, text, _delay(task, error), attempt, raised)


def _delay(task: Task, error: BaseException | str) -> timedelta | None:
    if isinstance(error, GiveUp):
        return None
    try:
        policy = registry.find(task.name).retry
    except UnknownTask:
        policy = None
    seen = error if isinstance(error, BaseException) else TaskError(error)
    return decide(policy or usual, seen, task.attempts)


def describe(error: BaseException | str) -> tuple[str, str]:
    """The error in a line, and its traceback; free of what a database cannot store."""
    if isinstance(error, str):
        return _storable(error), ""
    try:
        said = str(error)
    except Exception:  # an error of the error's own
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return _storable(text), _storable("".join(traceback.format_exception(error)))


def class_path(error: BaseException | str) -> str:
    """Where the class of ``error`` is found; empty where there is none."""
    kind = type(error)
    return "" if isinstance(error, str) else f"{kind.__module__}.{kind.__qualname__}"


def _storable(text: str) -> str:
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= 20_000 else clean[:10_000] + "\n...\n" + clean[-10_000:]
