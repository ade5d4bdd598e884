"""Tasks by their state, and what all verbs stand on."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import connections, models
from django.db.models import Case, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet, Value, When
from django.db.models.functions import Cast, Coalesce, Concat
from django.db.models.lookups import LessThanOrEqual

from leasing.db.dialects import after_commit
from leasing.db.sql import in_sql
from leasing.functions import DbNow, after
from leasing.querysets import LeasableQuerySet
from leasing.runtime.events import happened
from leasing.store import Reason, Why
from leasing.validation.terms import Terms
from tasks.querysets.unique import IS_TO_HAVE_ITS_KEY, key_once_claimed
from tasks.registry import KINDS, UNKNOWN_DELAY

if TYPE_CHECKING:
    from tasks.models import Task
    from tasks.querysets.slots import Seats

#: The order of claims within a queue, and its columns.
CLAIM_ORDER = ("-priority", "scheduled_at", "id")
CLAIM_COLUMNS = ("priority", "scheduled_at", "id")

#: Tasks that someone asked to cancel while they ran.
CANCEL_REQUESTED = Q(cancel_requested_at__isnull=False)
#: The beginning of the idempotency keys of compensations, which end in the key of the failed task
#: and the number of its last attempt.
COMPENSATION_KEYS = "undo:"
#: The time for which a child that is enqueued late stops with its parent.
STOPPED_WITHIN = timedelta(days=1)
#: Columns that identify a term and its duration.
TERM = ("grant_id", "fencing_token", "acquired_at", "expires_at")


class TaskStatus(models.TextChoices):
    """The state of a task. Delayed tasks and those waiting for a retry are ready, later."""

    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @classmethod
    def ended(cls) -> list[str]:
        """The states that nothing but an operator's retry leaves."""
        return [cls.SUCCEEDED.value, cls.FAILED.value, cls.CANCELLED.value]


#: The states of a compensation that may still undo something, a failed one once it is retried.
UNDO_OPEN = (TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED)
#: Tasks that a worker has claimed and given back, and will claim again. Those of a handler that
#: snoozed them are among them.
GIVEN_BACK = Q(
    status=TaskStatus.READY,
    started_at__isnull=False,
    scheduled_at__lte=after(UNKNOWN_DELAY),
    grants__gt=F("attempts"),
)
#: Since when such a task is due, for its due time moves on with each claim: the first claim shows
#: it of one that never began an attempt.
GIVEN_BACK_SINCE = Case(When(attempts=0, then=F("started_at")), default=F("acquired_at"))


def is_paused(name: Any) -> Exists:
    """The condition that the queue ``name`` is paused: judged once a statement, not once a row."""
    rows: Any = apps.get_model("leasing_tasks", "Queue")._default_manager
    return Exists(rows.filter(name=name).paused())


class TaskRows(LeasableQuerySet["Task"]):
    """Tasks by their state, and what the verbs share."""

    #: The room and the slots of the claim that these rows are a part of.
    seats: Seats | None = None
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

    def stuck(self) -> Self:
        """Running tasks whose lease has expired."""
        return self.running().filter(expires_at__lte=DbNow())

    def stalled(self) -> Self:
        """Running tasks that said nothing of their progress for as long as they may, whether
        their heartbeats arrive or not."""
        return self.running().filter(_progress_is_overdue())

    def lapsed(self) -> Self:
        """Tasks that recovery takes: stuck ones and stalled ones."""
        return self.running().filter(lapse())

    def succeeded(self) -> Self:
        return self.filter(status=TaskStatus.SUCCEEDED)

    def failed(self) -> Self:
        """Failed tasks: attempts exhausted, or given up."""
        return self.filter(status=TaskStatus.FAILED)

    def cancelled(self) -> Self:
        return self.filter(status=TaskStatus.CANCELLED)

    def stopped(self) -> Self:
        """Tasks that are asked to stop, or were cancelled within STOPPED_WITHIN: their children are
        to stop too."""
        lately = Q(status=TaskStatus.CANCELLED, processed_at__gte=after(-STOPPED_WITHIN))
        return self.filter(lately | Q(status=TaskStatus.RUNNING) & CANCEL_REQUESTED)

    def ended(self) -> Self:
        """Tasks that nothing but an operator's retry brings back."""
        return self.filter(status__in=TaskStatus.ended())

    def ended_by_holders(self) -> Self:
        """Tasks whose latest grant was ended by its own holder, and not taken from it."""
        attempts = attempt_model()._default_manager.using(self.db)
        own = attempts.filter(task=OuterRef("pk"), grant_id=OuterRef("grant_id"))
        is_reported = Exists(own.exclude(outcome="lost"))
        return self.filter(Q(status=TaskStatus.SUCCEEDED) | Q(is_reported))

    def erasable(self) -> Self:
        """Ended tasks that may be deleted."""
        return self.ended().filter(~self.is_needed_by_compensation())

    def prunable(self, age: timedelta) -> Self:
        """Tasks that ended ``age`` ago or longer, and keep no unique key."""
        free = Q(unique_key=None) | Q(unique_until__lte=DbNow())
        return self.erasable().filter(free, processed_at__lte=after(-age))

    def is_needed_by_compensation(self) -> Q:
        """The condition of a task whose deletion would lose what is to be undone, or that it was
        undone: a failed one while its compensation is open, and a compensation that has succeeded
        while its parent is there."""
        succeeded = Q(compensation="", status=TaskStatus.SUCCEEDED, parent__isnull=False)
        return succeeded | self._is_compensated(UNDO_OPEN)

    def is_undone(self) -> Q:
        """The condition of a failed task whose compensation has succeeded."""
        return self._is_compensated([TaskStatus.SUCCEEDED])

    def _is_compensated(self, statuses: Sequence[str]) -> Q:
        # Failed: the attempts of one that waits or was cancelled may be those of its life before.
        key = _compensation_key(OuterRef("pk"), OuterRef("attempts"))
        undoing = self.home()._everything().filter(idempotency_key=key, status__in=statuses)
        return Q(status=TaskStatus.FAILED) & Q(Exists(undoing))

    def is_bound_by_compensation(self) -> Q:
        """The condition of a task that cannot be retried now: its compensation is open, or it is a
        compensation, and its parent has been retried or is gone."""
        parents = self.home()._everything().filter(pk=OuterRef("parent"), status=TaskStatus.FAILED)
        undone = parents.annotate(key=_compensation_key(F("pk"), F("attempts")))
        is_void = Q(compensation="") & ~Q(Exists(undone.filter(key=OuterRef("idempotency_key"))))
        return self._is_compensated(UNDO_OPEN) | is_void

    def is_without_its_key(self) -> Q:
        """The condition of a task that cannot be retried now: another has its unique key."""
        others = self.home()._everything().filter(unique_key=OuterRef("enqueued_key"))
        return IS_TO_HAVE_ITS_KEY & Q(Exists(others))

    def to_claim(self, queue: Any, kind: Any) -> Self:
        """The tasks of ``queue`` and of this ``kind`` in the order in which they are claimed; none
        while it is paused."""
        return self.to_claim_of(queue).filter(kind=kind)

    def to_claim_of(self, queue: Any) -> Self:
        """The same of every kind, which no index has in this order."""
        return self.filter(~is_paused(queue), queue=queue).order_by(*CLAIM_ORDER)

    def to_claim_next(
        self, queue: str, size: int, *columns: Any, kinds: Sequence[int] = KINDS
    ) -> QuerySet[Any, tuple[Any, ...]]:
        """CLAIM_COLUMNS and these ``columns`` of the first ``size`` ready tasks of ``queue``, of
        these ``kinds``, in the order in which they are claimed; none while it is paused. Each kind
        is read by the index."""
        parts: list[QuerySet[Any, Any]] = [
            self.to_claim(queue, kind).available().values_list(*CLAIM_COLUMNS, *columns)
            for kind in kinds
        ]
        if len(parts) == 1:
            return parts[0][:size]
        if connections[self.db].features.supports_slicing_ordering_in_compound:
            parts = [part[:size] for part in parts]
        else:  # SQLite merges them, and reads each no further than it must
            parts = [part.order_by() for part in parts]
        return parts[0].union(*parts[1:], all=True).order_by(*CLAIM_ORDER)[:size]

    def due_within(self, seconds: float) -> Self:
        """Tasks that are ready now, or will be within ``seconds``."""
        soon = after(timedelta(seconds=seconds))
        return self.filter(status=TaskStatus.READY, scheduled_at__lte=soon)

    def are_due_within(self, seconds: float) -> bool:
        """Return True if any of these tasks is ready now, or will be within ``seconds``."""
        return self.due_within(seconds).exists()

    def next_due_in(self, seconds: float, since: float = 0.0) -> float | None:
        """Seconds until the next of these tasks is due, if that is within ``seconds``; 0 if one has
        become due within the last ``since`` seconds."""
        lately = after(timedelta(seconds=-since)) if since else DbNow()
        soon = self.filter(
            status=TaskStatus.READY,
            scheduled_at__gt=lately,
            scheduled_at__lte=after(timedelta(seconds=seconds)),
        )
        moments: Any = soon.order_by("scheduled_at", "id").values_list("scheduled_at", DbNow())
        row = moments.first()
        return None if row is None else max(0.0, (row[0] - row[1]).total_seconds())

    # For the verbs of every leasable row

    def available(self) -> Self:
        return self.ready()

    @in_sql("t.status = 'running'")
    def holding(self) -> Self:
        return self.running()

    def grantable(self) -> Self:
        return self.filter(status=TaskStatus.READY, grants__gt=0)

    def granting(self, terms: Terms) -> dict[str, Any]:
        return super().granting(terms) | {
            "status": TaskStatus.RUNNING,
            "attempts": F("attempts") + 1,
            "started_at": Coalesce(F("started_at"), DbNow()),
            "progress": None,
            "progressed_at": DbNow(),
            "unique_key": key_once_claimed(),
        }

    def why_over(
        self, row: Any, grant_id: uuid.UUID | None, fencing_token: int | None = None
    ) -> str | None:
        if row is not None and row.grant_id == grant_id:
            if row.status in TaskStatus.ended():
                return Reason(Why.ENDED, f"it has already ended: {row.status}")
            if row.status == TaskStatus.READY:
                return Reason(Why.TAKEN, "it was recovered and waits for another attempt")
        return super().why_over(row, grant_id, fencing_token)

    def _lease_columns(self, keys: Iterable[Any]) -> Self:
        asked = ("cancel_requested_at", "cancel_requested_by")
        term = ("pk", "status", *TERM, "holder", "released_at", *asked)
        return super()._lease_columns(keys).only(*term)

    # For the verbs of tasks

    def _tell(self, event: str, tasks: Sequence[Any], **details: Any) -> None:
        """Tell of ``event`` once what was written is there to stay."""
        after_commit(self.db, partial(happened, event, tasks, **details))

    def _tell_cancelled(self, task: Task, reason: str = "") -> None:
        by = task.cancel_requested_by
        self._tell("task.cancelled", [task], by=by, reason=reason or task.last_error)


def _compensation_key(task: Any, attempts: Any) -> Concat:
    """The idempotency key of the compensation of a ``task`` that failed after ``attempts``."""
    parts = Value(COMPENSATION_KEYS), _text(task), Value(":"), _text(attempts)
    return Concat(*parts, output_field=models.CharField())


def _text(number: Any) -> Cast:
    return Cast(number, models.CharField())


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
    """The time for which a running task may still be without progress."""
    return ExpressionWrapper(_idle_at() - DbNow(), output_field=models.DurationField())


def attempt_model() -> Any:
    return apps.get_model("leasing_tasks", "TaskAttempt")


def step_model() -> Any:
    return apps.get_model("leasing_tasks", "TaskStep")
