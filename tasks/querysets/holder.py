"""What the holder of a running task may do with it."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import transaction
from django.db.models import F

from tasks import signals
from tasks.bell import ring
from tasks.conf import task_settings
from tasks.exceptions import GiveUp
from tasks.payload import check_json
from tasks.querysets.base import TaskRows, TaskStatus, attempt_model, ending, waiting
from tasks.querysets.cancel import cancellation, said
from tasks.retry import backoff

if TYPE_CHECKING:
    from tasks.models import Task


class Holding(TaskRows):
    """What the holder of a running task may do with it."""

    def holding(self) -> Self:
        return self.filter(status=TaskStatus.RUNNING)

    def heartbeat(self, task: Task) -> Task:
        """Move the deadline of a running task to its ttl from now. Raises LeaseLost."""
        return self.renew(task)

    def complete(self, task: Task, output: Any = None, *, unexpired: bool = False) -> Task:
        """Store ``output`` and end the task well, as part of the caller's transaction if there
        is one. ``unexpired`` also demands that the deadline has not passed.

        Raises LeaseLost when the task is no longer this grant's (the output is dropped, and the
        attempt remembers it), NotSerializable.
        """
        rows = self.home()
        check_json(output, "output")
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            mine = rows._of_grant(task)
            done = (mine.unexpired() if unexpired else mine).update(
                status=TaskStatus.SUCCEEDED,
                task_output=output,
                **ending(),
            )
            if done:
                task.refresh_from_db(using=rows.db)
        if not done:
            raise rows._refuse(task, "complete")
        rows._tell(signals.completed, task)
        return task

    def fail(self, task: Task, error: BaseException | str, *, unexpired: bool = False) -> Task:
        """End this attempt badly: the task is tried again after a pause that grows, until its
        attempts are used up or the error is a GiveUp. Then it is dead. Raises LeaseLost.
        """
        rows = self.home()
        text, trace = describe(error)
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            mine = rows._of_grant(task)
            if unexpired:
                mine = mine.unexpired()
            again = mine.filter(attempts__lt=F("max_attempts"))
            attempt = attempt_model().of(task, "failed", text, trace)
            failed = not isinstance(error, GiveUp) and again.update(
                last_error=text,
                **waiting(_pause(task.attempts)),
            )
            dead = not failed and mine.update(status=TaskStatus.FAILED, last_error=text, **ending())
            if failed or dead:
                attempt.save(using=rows.db, force_insert=True)
                task.refresh_from_db(using=rows.db)
        if not (failed or dead):
            raise rows._refuse(task, "fail")
        if task.status == TaskStatus.CANCELLED:
            rows._tell_cancelled(task)
        else:
            rows._tell(signals.dead if dead else signals.failed, task, error=text)
        return task

    def accept_cancel(self, task: Task, by: str = "") -> Task:
        """End a running task as cancelled: its holder heard that ``by`` asked for it, and
        stopped. Raises LeaseLost."""
        rows = self.home()
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            text = cancellation(by or task.cancel_requested_by)
            attempt = attempt_model().of(task, "cancelled", text)
            done = rows._of_grant(task).update(
                status=TaskStatus.CANCELLED, last_error=said(text), **ending()
            )
            if done:
                task.refresh_from_db(using=rows.db)
                attempt.error = task.last_error
                attempt.save(using=rows.db, force_insert=True)
        if not done:
            raise rows._refuse(task, "cancel")
        rows._tell_cancelled(task)
        return task

    def give_back(self, task: Task, reason: str, *, delay: timedelta = timedelta(0)) -> Task:
        """Set a running task ready again, unfinished: the attempt is not counted, and it is not
        started before ``delay`` has passed. Raises LeaseLost.

        Of several attempts returned for the same reason the history keeps the latest, so that
        a task that is returned every minute does not fill it.
        """
        rows = self.home()
        with transaction.atomic(using=rows.db):
            rows._lock(task)
            attempt = attempt_model().of(task, "returned", reason)
            given = rows._of_grant(task).update(attempts=F("attempts") - 1, **waiting(delay))
            if given:
                rows._attempts_of(task).filter(outcome="returned", error=reason).delete()
                attempt.save(using=rows.db, force_insert=True)
                task.refresh_from_db(using=rows.db)
        if not given:
            raise rows._refuse(task, "give back")
        if task.status == TaskStatus.CANCELLED:
            rows._tell_cancelled(task)
        else:
            rows._tell(signals.returned, task, reason=reason)
            if not delay:
                ring(rows.db, [task])
        return task

    def release(self, row: Task) -> Task:
        """Give the task back: see ``give_back``."""
        return self.give_back(row, "released by its holder")


def _pause(attempts: int) -> timedelta:
    bounds = task_settings.BACKOFF
    return timedelta(seconds=backoff(attempts, base=bounds["base"], cap=bounds["cap"]))


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


def _storable(text: str) -> str:
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= 20_000 else clean[:10_000] + "\n...\n" + clean[-10_000:]
