"""What every part of the task queryset stands on: the states, the columns of an end, the pieces."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import models
from django.db.models import Case, ExpressionWrapper, F, Q, Value, When
from django.db.models.functions import Least
from django.db.models.lookups import LessThanOrEqual
from django.dispatch import Signal

from leasing.db.dialects import after_commit
from leasing.functions import DbNow, after
from leasing.humanize import span
from leasing.querysets.leasable import LeasableQuerySet
from leasing.querysets.ledger import LedgerQuerySet
from leasing.stores.reasons import Reason, Why
from tasks import signals
from tasks.conf import task_settings
from tasks.exceptions import UnknownQueue
from tasks.querysets.unique import key_in_retry, key_once_ended

if TYPE_CHECKING:
    from tasks.models import Task


#: Tasks that someone asked to cancel while they ran.
CANCEL_REQUESTED = Q(cancel_requested_at__isnull=False)
#: What identifies a term and says how long it lasts.
TERM = ("grant_id", "fencing_token", "acquired_at", "expires_at")


class TaskStatus(models.TextChoices):
    """Where a task is. Delayed tasks and those waiting for a retry are ready, later."""

    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @classmethod
    def ended(cls) -> list[str]:
        """The states that nothing but an operator's retry leaves."""
        return [cls.SUCCEEDED.value, cls.FAILED.value, cls.CANCELLED.value]


class TaskRows(LeasableQuerySet["Task"]):
    """Tasks by their state, and what the verbs share."""

    keeps_events = False  # TaskAttempt is their ledger.
    renewing = "heartbeat"

    # By state

    def ready(self) -> Self:
        """Tasks that a worker could claim now."""
        return self.filter(status=TaskStatus.READY, scheduled_at__lte=DbNow())

    def scheduled(self) -> Self:
        """Tasks whose time has not come: delayed, or waiting for a retry."""
        return self.filter(status=TaskStatus.READY, scheduled_at__gt=DbNow())

    def running(self) -> Self:
        """Tasks that a worker has claimed; stuck ones too."""
        return self.filter(status=TaskStatus.RUNNING)

    holding = running

    def stuck(self) -> Self:
        """Running tasks whose holder let the deadline pass."""
        return self.running().filter(expires_at__lte=DbNow())

    def stalled(self) -> Self:
        """Running tasks that said nothing of their progress for as long as they may, whether
        their heartbeats arrive or not."""
        return self.running().filter(_progress_is_overdue())

    def lapsed(self) -> Self:
        """What recovery takes: stuck tasks and stalled ones."""
        return self.running().filter(lapse())

    def succeeded(self) -> Self:
        return self.filter(status=TaskStatus.SUCCEEDED)

    def failed(self) -> Self:
        """Dead letters: attempts exhausted, or given up."""
        return self.filter(status=TaskStatus.FAILED)

    def cancelled(self) -> Self:
        return self.filter(status=TaskStatus.CANCELLED)

    def next_due_in(self, seconds: float) -> float | None:
        """Seconds until the next of these tasks is due, if that is within ``seconds``."""
        soon = self.scheduled().filter(scheduled_at__lte=after(timedelta(seconds=seconds)))
        moments: Any = soon.order_by("scheduled_at", "id").values_list("scheduled_at", DbNow())
        row = moments.first()
        return None if row is None else max(0.0, (row[0] - row[1]).total_seconds())

    # The pieces

    def _tell(self, signal: Signal, task: Task, **details: Any) -> None:
        after_commit(self.db, lambda: signals.send(signal, task, **details))

    def _tell_cancelled(self, task: Task, reason: str = "") -> None:
        by = task.cancel_requested_by
        self._tell(signals.cancelled, task, by=by, reason=reason or task.last_error)

    def _attempts_of(self, task: Task) -> LedgerQuerySet[Any]:
        attempts: LedgerQuerySet[Any] = attempt_model()._default_manager.using(self.db)
        return attempts.filter(task_id=task.pk)

    def why_over(
        self, row: Any, grant_id: uuid.UUID | None, fencing_token: int | None = None
    ) -> str | None:
        if row is not None and row.grant_id == grant_id:
            if row.status in TaskStatus.ended():
                return Reason(Why.ENDED, f"it was already processed: {row.status}")
            if row.status == TaskStatus.READY:
                return Reason(Why.TAKEN, "it was taken back, and waits for another attempt")
        return super().why_over(row, grant_id, fencing_token)

    def _lease_columns(self, keys: Iterable[Any]) -> Self:
        asked = ("cancel_requested_at", "cancel_requested_by")
        term = ("pk", "status", *TERM, "holder", "released_at", *asked)
        return super()._lease_columns(keys).only(*term)


def check_queue(queue: str) -> str:
    """Return ``queue`` if it is one of TASK_QUEUE["QUEUES"]. Raises UnknownQueue."""
    if queue not in task_settings.QUEUES:
        raise UnknownQueue(f"There is no queue {queue!r} in TASK_QUEUE['QUEUES'].")
    return queue


def check_between(value: int, lowest: int, highest: int, what: str) -> int:
    """Return ``value`` if it is a whole number within the bounds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"The {what} must be a whole number from {lowest} to {highest}.")
    return value


def overdue(task: Task) -> str:
    return f"{task.holder} did not renew its lease in time"


def idle(task: Task) -> str:
    assert task.progress_timeout is not None
    return f"no progress for {span(task.progress_timeout)}"


def _idle_at() -> Any:
    # Null, where there is no timeout.
    return ExpressionWrapper(
        F("progressed_at") + F("progress_timeout"), output_field=models.DateTimeField()
    )


def lapse() -> Q:
    """Of a running task: that its holder let a deadline pass."""
    return Q(expires_at__lte=DbNow()) | Q(_progress_is_overdue())


def _progress_is_overdue() -> LessThanOrEqual:
    # A sum, as deadlines are: SQLite compares texts, and sums have no ".000000" to be less by.
    return LessThanOrEqual(_idle_at(), DbNow())


def until_idle() -> Any:
    """How long a running task may still be without progress."""
    return ExpressionWrapper(_idle_at() - DbNow(), output_field=models.DurationField())


def attempt_model() -> Any:
    return apps.get_model("leasing_tasks", "TaskAttempt")


def step_model() -> Any:
    return apps.get_model("leasing_tasks", "TaskStep")


def over() -> dict[str, Any]:
    """The lease columns of a task whose holder is done with it."""
    return {"released_at": DbNow(), "expires_at": Least(F("expires_at"), DbNow()), "slot": None}


def closing() -> dict[str, Any]:
    """The columns of a task that ends, beside those of its lease."""
    return {"processed_at": DbNow(), "unique_key": key_once_ended()}


def ending() -> dict[str, Any]:
    """The columns of a running task that ends."""
    return {**closing(), **over()}


def completing() -> dict[str, Any]:
    """The columns of a task that ends well, beside its output."""
    return {"status": TaskStatus.SUCCEEDED, **ending()}


def traced(task: Task) -> dict[str, Any]:
    """The columns of a trace that the next attempt goes on from."""
    return {} if task.traced is None else {"trace_context": task.traced}


def waiting(delay: timedelta, *, spent: bool = True) -> dict[str, Any]:
    """The columns of a task that waits ``delay`` for its next attempt; of one that someone asked
    to cancel, the columns of its end: it is not tried again. ``spent`` says whether the attempt
    that ended counts."""
    moved = {"scheduled_at": after(delay)} if delay else {}
    return {**ready_unless_cancelled(spent=spent), **moved, **over()}


def ready_unless_cancelled(*, spent: bool = True) -> dict[str, Any]:
    """The columns of a task that waits again, or ends here because someone asked for it."""
    status = Case(
        When(CANCEL_REQUESTED, then=Value(TaskStatus.CANCELLED.value)),
        default=Value(TaskStatus.READY.value),
    )
    stays: dict[str, Any] = {"unique_key": key_in_retry()} if spent else {}
    fields: Any = apps.get_model("leasing_tasks", "Task")._meta
    ends = {
        column: Case(
            When(CANCEL_REQUESTED, then=value),
            default=stays.get(column, F(column)),
            output_field=fields.get_field(column),
        )
        for column, value in closing().items()
    }
    return {"status": status, **ends}
