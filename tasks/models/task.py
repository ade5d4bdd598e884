"""Tasks: rows of work, which a worker holds while they run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import models
from django.db.models import F, Q
from django.db.models.expressions import RawSQL

from leasing.functions import DbNow
from leasing.models import Leasable, Listing
from leasing.querysets import LEASE_FIELDS
from leasing.store import Renewal
from tasks.querysets import TaskQuerySet, TaskStatus, UniqueFor
from tasks.querysets.claimed import resource_of
from tasks.registry import KINDS

#: As a constant: of a parameter, the plan of a prepared statement doesn't know that an index of
#: these rows serves it.
_RUNNING: Any = RawSQL("'running'", [], output_field=models.CharField())


class Task(Leasable):
    """A piece of work for one worker at a time.

    While it is running, the lease in the row says who holds it and until when. A worker that is
    gone stops renewing, and recovery makes the task ready again.
    """

    id = models.BigAutoField(primary_key=True)
    #: The handler that runs it; looked up in the registry, never imported.
    name = models.CharField(max_length=200)
    queue = models.CharField(max_length=200, default="default")
    task_data = models.JSONField(default=dict, blank=True)
    #: Higher goes first.
    priority = models.SmallIntegerField(default=0)
    #: The kind of its handler when it was enqueued (``tasks.registry.Kind``), by which claims find
    #: what they have slots for. A hint: once it is claimed, the registry decides where it runs.
    kind = models.SmallIntegerField(default=0)
    status = models.CharField(max_length=10, choices=TaskStatus, default=TaskStatus.READY)
    #: It is not claimed before this moment: its enqueue, the end of its delay, or its next retry.
    scheduled_at = models.DateTimeField(db_default=DbNow())
    created_at = models.DateTimeField(db_default=DbNow())
    #: The first claim.
    started_at = models.DateTimeField(null=True, default=None)
    #: The moment at which it succeeded, failed or was cancelled.
    processed_at = models.DateTimeField(null=True, default=None)
    #: Counted at the claim only.
    attempts = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=10)
    task_output = models.JSONField(null=True, default=None, blank=True)
    last_error = models.TextField(blank=True, default="")
    #: At most one task has it at a time. It becomes null when ``unique_for`` ends.
    unique_key = models.CharField(max_length=200, null=True, default=None)
    unique_for = models.CharField(max_length=8, choices=UniqueFor, default=UniqueFor.FINISHED.value)
    #: The end of the window for which it keeps its key.
    unique_until = models.DateTimeField(null=True, default=None)
    #: The unique key it was enqueued with, which a retry needs again.
    enqueued_key = models.CharField(max_length=200, null=True, default=None)
    #: The client's name for this enqueue: another enqueue with it returns this row, ended or not.
    idempotency_key = models.CharField(max_length=200, null=True, default=None)
    #: The number of enqueues that its unique key refused.
    duplicates = models.IntegerField(default=0)

    #: The time that one attempt may run; null: the handler's timeout, or no limit.
    timeout = models.DurationField(null=True, default=None)
    #: The latest progress of the handler, and its moment; reset at each claim.
    progress = models.JSONField(null=True, default=None, blank=True)
    progressed_at = models.DateTimeField(null=True, default=None)
    #: A running task without progress for this long is taken from its holder, despite heartbeats.
    progress_timeout = models.DurationField(null=True, default=None)
    #: The state from which the next attempt continues, and how often it was written. That number
    #: never decreases.
    checkpoint = models.JSONField(null=True, default=None, blank=True)
    checkpoints = models.IntegerField(default=0)
    #: Someone asked the holder to stop; it learns of that at its next heartbeat.
    cancel_requested_at = models.DateTimeField(null=True, default=None)
    cancel_requested_by = models.CharField(max_length=200, blank=True, default="")
    #: At most ``concurrency_limit`` tasks of one key run at a time. Each has a ``slot`` of its own
    #: ("key:0", "key:1", ...) while it is running.
    concurrency_key = models.CharField(max_length=200, blank=True, default="")
    concurrency_limit = models.SmallIntegerField(null=True, default=None)
    slot = models.CharField(max_length=210, null=True, default=None)
    #: The parents of its spans, as JSON: the W3C headers of the span that enqueued it and, as
    #: ``previous``, those of the latest attempt. Null if it is not traced.
    trace_context = models.TextField(null=True, default=None, blank=True)
    #: The task whose cancellation cancels this one, if it has not ended by then. Without a
    #: constraint, which would lock the parent's row at each enqueue.
    parent = models.ForeignKey(
        "self",
        models.SET_NULL,
        null=True,
        default=None,
        db_constraint=False,
        db_index=False,
        related_name="children",
    )
    #: The name of the task that undoes this one if it fails for good; null: none does. Empty: it is
    #: itself the compensation of its parent, and nothing undoes it.
    compensation = models.CharField(max_length=200, null=True, default=None)
    #: The moment at which a relay last took it to publish its key; null: it was not.
    #: Set for tasks of TASK_QUEUE["CELERY_QUEUES"] only.
    published_at = models.DateTimeField(null=True, default=None)

    # By id, a million tasks that were never claimed may come before one that was.
    listing = Listing("acquired_at", (Q(status=_RUNNING), ~Q(status=_RUNNING)), frozenset())
    renewal_columns = frozenset(
        {"grant_id", "expires_at", "cancel_requested_at", "cancel_requested_by"}
    )
    verb_columns = LEASE_FIELDS | {"cancel_requested_at", "cancel_requested_by"}
    #: Written by the verbs of attempts.
    attempt_columns: ClassVar[frozenset[str]] = frozenset(
        {
            "status",
            "started_at",
            "processed_at",
            "attempts",
            "task_output",
            "last_error",
            "duplicates",
            "progress",
            "progressed_at",
            "checkpoint",
            "checkpoints",
            "slot",
            "published_at",
        }
    )
    state_columns = attempt_columns | {
        "queue",
        "kind",
        "scheduled_at",
        "created_at",
        "max_attempts",
        "unique_key",
        "unique_for",
        "unique_until",
        "enqueued_key",
        "idempotency_key",
        "concurrency_key",
        "concurrency_limit",
        "trace_context",
        "parent",
        "compensation",
    }

    #: True on the row that ``enqueue`` returns if it is an earlier task with the same key.
    is_duplicate = False
    #: Set by ``fail``: the error of its handler, for the receivers of its signals.
    raised: BaseException | None = None
    #: The part of this attempt's trace that its end leaves in the row, for the next attempt.
    traced: str | None = None

    objects: ClassVar = TaskQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("retry_task", "Can retry a task"),
            ("cancel_task", "Can cancel a task"),
            ("discard_task", "Can discard a task that has ended"),
            ("reschedule_task", "Can reschedule a task"),
            ("view_payload", "Can view the arguments and results of tasks"),
        ]
        # PostgreSQL reads and compiles every check for each statement that writes: for a single
        # INSERT that is most of its time. So they are few and short, and lean on one another.
        constraints: ClassVar = [
            *Leasable.Meta.constraints,
            # Partial: what is not set costs no entry of an index.
            *(
                models.UniqueConstraint(
                    fields=[field],
                    condition=Q(**{f"{field}__isnull": False}),
                    name=f"leasing_tasks_task_{name}",
                    violation_error_message=f"A task with this {field} already exists.",
                )
                for field, name in (
                    ("unique_key", "unique_key"),
                    ("idempotency_key", "idempotency"),
                    ("slot", "slot"),
                )
            ),
            # Ended is what has a date of its end.
            models.CheckConstraint(
                name="leasing_tasks_task_state",
                condition=Q(status__in=TaskStatus.ended(), processed_at__isnull=False)
                | Q(processed_at=None)
                & (
                    Q(status=TaskStatus.READY)
                    | Q(
                        status=TaskStatus.RUNNING,
                        grants__gt=0,
                        released_at=None,
                        started_at__isnull=False,
                        attempts__gt=0,
                    )
                ),
            ),
            models.CheckConstraint(
                name="leasing_tasks_task_counts",
                condition=Q(attempts__gte=0, duplicates__gte=0, checkpoints__gte=0)
                # Claims look for these kinds.
                & Q(kind__gte=min(KINDS), kind__lte=max(KINDS)),
            ),
            models.CheckConstraint(
                name="leasing_tasks_task_attempts",
                condition=Q(attempts__lt=F("max_attempts"))
                | Q(attempts=F("max_attempts")) & ~Q(status=TaskStatus.READY),
            ),
            # A window, which alone has an end, has its key until then, ended or not;
            # others not once they have ended. What runs has attempts and grants.
            models.CheckConstraint(
                name="leasing_tasks_task_key_period",
                condition=Q(unique_key=None)
                | Q(unique_until__isnull=False)
                | Q(processed_at=None)
                & (
                    Q(unique_for=UniqueFor.FINISHED)
                    | Q(unique_for=UniqueFor.RUNNING)
                    & (Q(attempts=0) | Q(status=TaskStatus.RUNNING))
                    | Q(unique_for=UniqueFor.WAITING, grants=0)
                ),
            ),
            models.CheckConstraint(
                name="leasing_tasks_task_window_end",
                condition=Q(unique_for=UniqueFor.WINDOW, unique_until__isnull=False)
                | Q(unique_until=None) & ~Q(unique_for=UniqueFor.WINDOW),
            ),
            models.CheckConstraint(
                name="leasing_tasks_task_slot_state",
                condition=Q(slot=None) | Q(status=TaskStatus.RUNNING),
            ),
            models.CheckConstraint(
                name="leasing_tasks_task_limit_key",
                condition=Q(concurrency_key="", concurrency_limit=None)
                | ~Q(concurrency_key="")
                & Q(concurrency_limit__isnull=False, concurrency_limit__gt=0),
            ),
        ]
        # Nothing that a heartbeat writes stands in an index or its condition. And a task stands in
        # few: each change of its state writes to every index that it stands in.
        indexes: ClassVar = [
            models.Index(
                F("queue"),
                F("kind"),
                F("priority").desc(),
                F("scheduled_at"),
                F("id"),
                name="leasing_tasks_task_to_claim",
                condition=Q(status=TaskStatus.READY),
            ),
            # Not of running ones, which are few, and found by the next: a claim writes to one less.
            models.Index(
                fields=["acquired_at", "id"],
                name="leasing_tasks_task_by_claim",
                condition=Q(acquired_at__isnull=False) & ~Q(status=TaskStatus.RUNNING),
            ),
            models.Index(
                fields=["id"],
                name="leasing_tasks_task_running",
                condition=Q(status=TaskStatus.RUNNING),
            ),
            # The lists of the pages, in their order.
            models.Index(
                fields=["scheduled_at", "id"],
                name="leasing_tasks_task_waiting",
                condition=Q(status=TaskStatus.READY),
            ),
            # Begun and waiting again: for a retry, or given back, which spends no attempt.
            models.Index(
                fields=["scheduled_at", "id", "attempts"],
                name="leasing_tasks_task_retrying",
                condition=Q(status=TaskStatus.READY, started_at__isnull=False),
            ),
            models.Index(
                fields=["parent"],
                name="leasing_tasks_task_children",
                condition=Q(parent__isnull=False),
            ),
            # Compensations, of which those that failed are counted.
            models.Index(
                fields=["status"],
                name="leasing_tasks_task_undo",
                condition=Q(compensation=""),
            ),
            # One for all ends, each in its order: a task that completes writes to no more.
            models.Index(
                fields=["status", "processed_at", "id"],
                name="leasing_tasks_task_ended",
                condition=Q(processed_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"task:{self.pk} {self.name}"

    def refresh_from_db(self, using: Any = None, fields: Any = None, *args: Any, **kw: Any) -> None:
        try:
            super().refresh_from_db(using, fields, *args, **kw)
        except SynchronousOnlyOperation as error:
            if fields is None:
                raise
            raise SynchronousOnlyOperation(
                f"{self} was read without {', '.join(fields)}. In a handler, first"
                " `await ctx.load()`; elsewhere, `await task.arefresh_from_db()`."
            ) from error

    def _do_insert(self, manager: Any, using: Any, *args: Any) -> Any:
        if not (self._is_fixture or self._state.adding) and self.pk and using == self._state.db:
            # What has ended, and was pruned, would be ready again.
            raise self.DoesNotExist(f"task:{self.pk} no longer exists and is not saved.")
        return super()._do_insert(manager, using, *args)

    # The columns under the names that callers expect. Queries name the columns.

    @property
    def data(self) -> dict[str, Any]:
        """The handler's keyword arguments, as JSON gives them: the column ``task_data``."""
        data: dict[str, Any] = self.task_data
        return data

    @property
    def result(self) -> Any:
        """The handler's return value once the task has succeeded: the column ``task_output``."""
        return self.task_output

    @property
    def finished_at(self) -> datetime | None:
        """The moment at which it succeeded, failed or was cancelled: the column
        ``processed_at``."""
        return self.processed_at

    def begin_free(self) -> None:
        super().begin_free()
        if self.status == TaskStatus.RUNNING:
            self._reset(self.attempt_columns)

    def stalled_for(self, now: datetime) -> timedelta | None:
        """Return the time without progress at ``now``, the database's clock, if it is longer than
        allowed; None otherwise."""
        if self.status != TaskStatus.RUNNING or not (self.progress_timeout and self.progressed_at):
            return None
        silent = now - self.progressed_at
        return silent if silent >= self.progress_timeout else None

    @property
    def has_message(self) -> bool:
        """Return True if a message to workers behind a broker names it, as far as is known here:
        see ``tasks.querysets.relay``."""
        sent_at = self.published_at
        if sent_at is None or sent_at < self.scheduled_at:
            return False
        return self.acquired_at is None or sent_at > self.acquired_at

    @property
    def lease_resource(self) -> str:
        return resource_of(self.pk)

    def renewal_now(self) -> Renewal:
        renewal = super().renewal_now()
        if self.cancel_requested_at is None:
            return renewal
        return replace(renewal, yield_to=self.cancel_requested_by or "an operator")
