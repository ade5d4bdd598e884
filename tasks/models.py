"""Tasks, their attempts, the workers, and what the generator is wished to do."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.db import models, transaction
from django.db.models import Case, F, Q, Value, When

from leasing.db.dialects import take_write_lock
from leasing.db.routing import RoutedManager, RoutedQuerySet
from leasing.functions import DbNow
from leasing.models import Leasable, Ledger
from leasing.querysets.leasable import LEASE_FIELDS
from leasing.querysets.ledger import LedgerQuerySet
from leasing.store import Renewal
from tasks.constraints import UniqueWhereSet
from tasks.querysets import (
    QueueQuerySet,
    ScheduleQuerySet,
    SlotQuerySet,
    TaskQuerySet,
    TaskStatus,
    UniqueFor,
)
from tasks.querysets.claimed import resource_of
from tasks.querysets.outbox import OutboxQuerySet
from tasks.querysets.schedule_validation import clean_schedule
from tasks.scheduling.declarations import LONGEST_NAME
from tasks.scheduling.rules import MissedSlots, Rule, rule_of


class Task(Leasable):
    """A piece of work for one worker at a time.

    While it is running, the row's own lease says who works on it and until when; a worker that
    is gone stops renewing, and recovery sets the task ready again.
    """

    id = models.BigAutoField(primary_key=True)
    #: Which handler runs it; looked up in the registry, never imported.
    name = models.CharField(max_length=200)
    queue = models.CharField(max_length=200, default="default")
    task_data = models.JSONField(default=dict, blank=True)
    #: Higher goes first.
    priority = models.SmallIntegerField(default=0)
    status = models.CharField(max_length=10, choices=TaskStatus, default=TaskStatus.READY)
    #: Not before this moment: when it was enqueued, delayed until, or is to be retried.
    scheduled_at = models.DateTimeField(db_default=DbNow())
    created_at = models.DateTimeField(db_default=DbNow())
    #: The first claim.
    started_at = models.DateTimeField(null=True, default=None)
    #: When it ended, in whatever way.
    processed_at = models.DateTimeField(null=True, default=None)
    #: Counted at the claim, and nowhere else.
    attempts = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=10)
    task_output = models.JSONField(null=True, default=None, blank=True)
    last_error = models.TextField(blank=True, default="")
    #: At most one task has it at a time, for as long as ``unique_for`` says; then it is null.
    unique_key = models.CharField(max_length=200, null=True, default=None)
    unique_for = models.CharField(max_length=8, choices=UniqueFor, default=UniqueFor.FINISHED.value)
    #: The end of the window for which it keeps its key.
    unique_until = models.DateTimeField(null=True, default=None)
    #: The unique key it was enqueued with, which a retry needs again.
    enqueued_key = models.CharField(max_length=200, null=True, default=None)
    #: The client's name for this enqueue: sent again, it meets this row, ended or not.
    idempotency_key = models.CharField(max_length=200, null=True, default=None)
    #: How many enqueues its unique key turned away.
    duplicates = models.IntegerField(default=0)

    #: How long one attempt may run; null is the handler's, or for ever.
    timeout = models.DurationField(null=True, default=None)
    #: What the handler last said of how far it is, and when; set anew at each claim.
    progress = models.JSONField(null=True, default=None, blank=True)
    progressed_at = models.DateTimeField(null=True, default=None)
    #: Without progress for so long while running it is taken from its holder, heartbeats or not.
    progress_timeout = models.DurationField(null=True, default=None)
    #: What the next attempt goes on from, and how often it was written: it never falls.
    checkpoint = models.JSONField(null=True, default=None, blank=True)
    checkpoints = models.IntegerField(default=0)
    #: Someone asked the holder to stop; it hears of it with its next heartbeat.
    cancel_requested_at = models.DateTimeField(null=True, default=None)
    cancel_requested_by = models.CharField(max_length=200, blank=True, default="")
    #: At most ``concurrency_limit`` tasks of one key run at a time, each in a ``slot`` of its own
    #: ("key:0", "key:1", ...), which it has while it is running.
    concurrency_key = models.CharField(max_length=200, blank=True, default="")
    concurrency_limit = models.SmallIntegerField(null=True, default=None)
    slot = models.CharField(max_length=210, null=True, default=None)
    #: What traces go on from: W3C's headers of the span that enqueued it, as JSON, and as
    #: ``previous`` that of the attempt before. Null where nobody traced it.
    trace_context = models.TextField(null=True, default=None, blank=True)
    #: When a relay last took it to give its key to a broker; null: it is to be given. Only tasks of
    #: TASK_QUEUE["CELERY_QUEUES"] ever are.
    published_at = models.DateTimeField(null=True, default=None)

    # Before the tasks that were claimed may come a million that never were.
    leases_listed_by = "acquired_at"
    held_is_indexed = True
    leases_told_by = frozenset[str]()
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
    }

    #: Set on what ``enqueue`` returns: a task with the same key was there before.
    is_duplicate = False
    #: Set by ``fail``: what its handler raised, for the receivers of its signals.
    raised: BaseException | None = None
    #: What of the trace of this attempt its end is to leave in the row, for the next attempt.
    traced: str | None = None

    objects: ClassVar = TaskQuerySet.as_manager()

    class Meta(Leasable.Meta):
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("retry_task", "Can set a failed task ready again"),
            ("cancel_task", "Can cancel a task"),
            ("discard_task", "Can delete a task that has ended"),
            ("reschedule_task", "Can move a task to another time or queue"),
            ("view_payload", "Can see what tasks were given, and what they gave back"),
        ]
        # PostgreSQL reads and compiles every check for each statement that writes: for a single
        # INSERT that is most of its time. So they are few and short, and lean on one another.
        constraints: ClassVar = [
            *Leasable.Meta.constraints,
            UniqueWhereSet(field="unique_key", name="leasing_tasks_task_unique_key"),
            UniqueWhereSet(field="idempotency_key", name="leasing_tasks_task_idempotency"),
            UniqueWhereSet(field="slot", name="leasing_tasks_task_slot"),
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
                condition=Q(attempts__gte=0, duplicates__gte=0, checkpoints__gte=0),
            ),
            models.CheckConstraint(
                name="leasing_tasks_task_attempts",
                condition=Q(attempts__lt=F("max_attempts"))
                | Q(attempts=F("max_attempts")) & ~Q(status=TaskStatus.READY),
            ),
            # A window, which alone has an end, has its key until then, whatever becomes of it;
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
                F("priority").desc(),
                F("scheduled_at"),
                F("id"),
                name="leasing_tasks_task_to_claim",
                condition=Q(status=TaskStatus.READY),
            ),
            models.Index(
                fields=["acquired_at", "id"],
                name="leasing_tasks_task_by_claim",
                condition=Q(acquired_at__isnull=False),
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
            models.Index(
                fields=["scheduled_at", "id"],
                name="leasing_tasks_task_retrying",
                condition=Q(status=TaskStatus.READY, attempts__gt=0),
            ),
            # One for all ends, each in its order: a task that completes writes to no more.
            models.Index(
                fields=["status", "processed_at", "id"],
                name="leasing_tasks_task_ended",
                condition=Q(processed_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.pk}"

    def _do_insert(self, manager: Any, using: Any, *args: Any) -> Any:
        if not (self._is_fixture or self._state.adding) and self.pk and using == self._state.db:
            # What has ended, and was pruned, would be ready again.
            raise self.DoesNotExist(f"Task {self.pk} is gone, and is not saved back.")
        return super()._do_insert(manager, using, *args)

    def begin_free(self) -> None:
        super().begin_free()
        if self.status == TaskStatus.RUNNING:
            self._reset(self.attempt_columns)

    def stalled_for(self, now: datetime) -> timedelta | None:
        """How long nothing has moved at ``now``, which is the database's clock, if that is longer
        than it may be; None otherwise."""
        if self.status != TaskStatus.RUNNING or not (self.progress_timeout and self.progressed_at):
            return None
        silent = now - self.progressed_at
        return silent if silent >= self.progress_timeout else None

    @property
    def has_message(self) -> bool:
        """Whether a message to workers behind a broker tells of it, as far as is known here: see
        ``tasks.querysets.publishing``."""
        told_at = self.published_at
        if told_at is None or told_at < self.scheduled_at:
            return False
        return self.acquired_at is None or told_at > self.acquired_at

    @property
    def lease_resource(self) -> str:
        return resource_of(self.pk)

    def renewal_now(self) -> Renewal:
        renewal = super().renewal_now()
        if self.cancel_requested_at is None:
            return renewal
        return replace(renewal, yield_to=self.cancel_requested_by or "an operator")


class TaskStep(models.Model):
    """A part of a task that was done, and is not done again by later attempts."""

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="step_set")
    name = models.CharField(max_length=200)
    output = models.JSONField(null=True, default=None)
    finished_at = models.DateTimeField(db_default=DbNow())

    objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "objects"
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "name"], name="leasing_tasks_step_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of task {self.task_id}"


class AttemptOutcome(models.TextChoices):
    """How an attempt ended that did not end well."""

    FAILED = "failed"
    LOST = "lost"
    RETURNED = "returned"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"


class AttemptQuerySet(LedgerQuerySet["TaskAttempt"]):
    """Attempts that ended otherwise than well: ``TaskAttempt.objects``."""


class TaskAttempt(Ledger):
    """An attempt that ended otherwise than well. The good one is the task's own row."""

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="attempt_set")
    number = models.PositiveIntegerField()
    grant_id = models.UUIDField()
    fencing_token = models.BigIntegerField()
    holder = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(db_default=DbNow())
    outcome = models.CharField(max_length=9, choices=AttemptOutcome)
    error = models.TextField(blank=True, default="")
    #: Where the class of what was raised is found, and how it came to be raised.
    exception = models.TextField(blank=True, default="")
    traceback = models.TextField(blank=True, default="")
    #: When a late write of this attempt was refused, and which.
    refused_at = models.DateTimeField(null=True, default=None)
    refused_verb = models.CharField(max_length=20, blank=True, default="")

    objects: ClassVar = AttemptQuerySet.as_manager()
    #: Django itself goes by these, and whoever must rewrite what was told all the same.
    base_objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "base_objects"
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["task", "grant_id"], name="leasing_tasks_attempt_of_grant"
            ),
            models.CheckConstraint(
                name="leasing_tasks_attempt_refusal",
                condition=Q(refused_at=None, refused_verb="")
                | Q(refused_at__isnull=False) & ~Q(refused_verb=""),
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of task {self.task_id}"

    @classmethod
    def of(
        cls,
        task: Task,
        outcome: str,
        error: str = "",
        traceback: str = "",
        exception: str = "",
    ) -> TaskAttempt:
        """An unsaved record of the attempt whose grant ``task`` carries."""
        assert task.grant_id is not None and task.acquired_at is not None
        return cls(
            task_id=task.pk,
            number=task.attempts,
            grant_id=task.grant_id,
            fencing_token=task.fencing_token,
            holder=task.holder,
            started_at=task.acquired_at,
            outcome=outcome,
            error=error,
            exception=exception,
            traceback=traceback,
        )


class Queue(models.Model):
    """What is known of a queue beside its tasks: whether it is paused. No row: it is not."""

    name = models.CharField(max_length=200, primary_key=True)
    #: No task of it is claimed while this is set.
    paused_at = models.DateTimeField(null=True, default=None)
    paused_by = models.CharField(max_length=200, blank=True, default="")
    reason = models.CharField(max_length=500, blank=True, default="")

    objects: ClassVar = QueueQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        permissions: ClassVar = [("pause_queue", "Can pause and resume a queue")]

    def __str__(self) -> str:
        return self.name


class Schedule(models.Model):
    """A task that is enqueued at moments: by a cron expression, or every so often."""

    #: Declared in code, and not by any that ran for so long: it looks abandoned.
    ORPHANED_AFTER = timedelta(days=1)
    #: How late the next moment is before it looks as if nobody served it.
    OVERDUE_AFTER = timedelta(minutes=1)

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=LONGEST_NAME, unique=True)
    #: What is enqueued.
    task_name = models.CharField(max_length=200)
    task_data = models.JSONField(default=dict, blank=True)
    queue = models.CharField(max_length=200, blank=True, default="")
    priority = models.SmallIntegerField(default=0)
    #: When: one of the two.
    cron = models.CharField(max_length=200, blank=True, default="")
    every = models.DurationField(null=True, default=None, blank=True)
    #: In which time zone the cron expression is meant.
    timezone = models.CharField(max_length=64, default="UTC")
    missed = models.CharField(max_length=6, choices=MissedSlots, default=MissedSlots.LATEST.value)
    #: Whether it enqueues while its previous task has not ended.
    overlap = models.BooleanField(default=True)
    #: Whether code declares it; what code declares, the admin pauses but does not change.
    declared = models.BooleanField(default=False, editable=False)
    #: When a scheduler whose code declares it last said so.
    declared_at = models.DateTimeField(null=True, default=None, editable=False)
    paused_at = models.DateTimeField(null=True, default=None, editable=False)
    paused_by = models.CharField(max_length=200, blank=True, default="", editable=False)
    #: The next moment that has no slot yet; null until a scheduler or the admin works it out.
    next_at = models.DateTimeField(null=True, default=None, editable=False)
    created_at = models.DateTimeField(db_default=DbNow(), editable=False)

    objects: ClassVar = ScheduleQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        constraints: ClassVar = [
            models.CheckConstraint(
                name="leasing_tasks_schedule_rule",
                condition=~Q(cron="") & Q(every=None) | Q(cron="", every__isnull=False),
                violation_error_message="Say when: by cron or by an interval, and not both.",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["next_at"], name="leasing_tasks_schedule_due")]

    def __str__(self) -> str:
        return self.name

    @property
    def rule(self) -> Rule:
        """Raises InvalidSchedule for what did not come in through code or forms."""
        return rule_of(self.cron, self.every, self.timezone)

    @property
    def unique_key(self) -> str | None:
        """Of the tasks it enqueues."""
        return None if self.overlap else f"schedule:{self.name}"

    def clean(self) -> None:
        """Refuse what could never be enqueued. Raises ValidationError, by field."""
        clean_schedule(self)


class ScheduleSlot(models.Model):
    """A moment of a schedule that was served, once, by whichever scheduler came first."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="slot_set")
    at = models.DateTimeField()
    #: What was enqueued; null where it was pruned since, and where nothing was.
    task = models.ForeignKey(
        Task, on_delete=models.SET_NULL, null=True, default=None, related_name="+"
    )
    #: Nothing was enqueued: the previous task had not ended.
    skipped = models.BooleanField(default=False)
    #: Who had it run beside the plan; empty: it is of the plan.
    run_by = models.CharField(max_length=200, blank=True, default="")
    enqueued_at = models.DateTimeField(db_default=DbNow())

    objects: ClassVar = SlotQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["schedule", "at"], name="leasing_tasks_slot_once"),
            models.CheckConstraint(
                name="leasing_tasks_slot_skipped",
                condition=Q(skipped=False) | Q(task=None),
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="leasing_tasks_slot_by_time")]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.at}"


class WorkerState(models.TextChoices):
    """What a worker's last sign of life says."""

    LIVE = "live"
    LATE = "late"
    GONE = "gone"
    STOPPED = "stopped"


class WorkerRole(models.TextChoices):
    """What a process is there for that shows signs of life."""

    WORKER = "worker"
    RECOVERY = "recovery"
    GENERATOR = "generator"
    #: A worker that runs what a broker's messages tell of, and nothing else.
    CELERY = "celery"
    RELAY = "relay"

    @classmethod
    def running(cls) -> tuple[WorkerRole, ...]:
        """Of those that run tasks."""
        return (cls.WORKER, cls.CELERY)


class WorkerQuerySet(RoutedQuerySet["Worker"]):
    """Worker processes, and those that stand beside them."""

    def generators(self) -> WorkerQuerySet:
        """Those that generate, or stand by to."""
        return self.filter(role=WorkerRole.GENERATOR)

    def with_state(self) -> WorkerQuerySet:
        """Annotate ``state`` (a WorkerState) and ``now`` by the database's clock."""
        return self.annotate(
            now=DbNow(),
            state=Case(
                When(stopped_at__isnull=False, then=Value(WorkerState.STOPPED.value)),
                When(last_seen_at__lt=DbNow() - Worker.GONE_AFTER, then=Value("gone")),
                When(last_seen_at__lt=DbNow() - Worker.LATE_AFTER, then=Value("late")),
                default=Value(WorkerState.LIVE.value),
                output_field=models.CharField(),
            ),
        )

    def present(self) -> WorkerQuerySet:
        """Workers that were seen lately and have not stopped."""
        return self.filter(stopped_at=None, last_seen_at__gte=DbNow() - Worker.GONE_AFTER)

    def register(self, name: str, **what: Any) -> None:
        """Note that a worker called ``name`` has started, as the ``what`` columns say."""
        started = {"started_at": DbNow(), "last_seen_at": DbNow(), "stopped_at": None}
        with transaction.atomic(using=self.db):
            take_write_lock(self)
            self.update_or_create(name=name, defaults=what | started)
        Queue.objects.using(self.db).declare(what.get("queues", ()))

    def forget_gone(self) -> None:
        """Delete workers that have not been seen for a day."""
        self.filter(last_seen_at__lt=DbNow() - Worker.FORGOTTEN_AFTER).delete()

    def seen(self, name: str) -> int:
        """Note a sign of life of the worker called ``name``."""
        return self.filter(name=name).update(last_seen_at=DbNow(), stopped_at=None)

    def sign_off(self, name: str) -> int:
        """Note that the worker called ``name`` has stopped."""
        return self.filter(name=name).update(last_seen_at=DbNow(), stopped_at=DbNow())


class Worker(models.Model):
    """A worker process: what it serves, and when it was last seen."""

    SEEN_EVERY = timedelta(seconds=6)
    LATE_AFTER = timedelta(seconds=14)
    GONE_AFTER = timedelta(seconds=30)
    FORGOTTEN_AFTER = timedelta(days=1)

    id = models.BigAutoField(primary_key=True)
    #: The holder's name on its tasks.
    name = models.CharField(max_length=200, unique=True)
    role = models.CharField(
        max_length=9, choices=WorkerRole, default=WorkerRole.WORKER.value, db_default="worker"
    )
    hostname = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    queues = models.JSONField(default=list)
    #: The names of the tasks it has code for.
    handlers = models.JSONField(default=list)
    concurrency = models.PositiveIntegerField(default=0)
    #: Whether it runs recovery.
    sweeps = models.BooleanField(default=True)
    started_at = models.DateTimeField(db_default=DbNow())
    last_seen_at = models.DateTimeField(db_default=DbNow())
    stopped_at = models.DateTimeField(null=True, default=None)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.name

    @property
    def runs_tasks(self) -> bool:
        return self.role in WorkerRole.running()


class GeneratorWish(models.Model):
    """The one row that says whether tasks are to be generated, and what became of the wish."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    wanted = models.BooleanField(default=False)
    #: Rises with each start and stop.
    revision = models.PositiveIntegerField(default=0)
    changed_by = models.CharField(max_length=200, blank=True, default="")
    changed_at = models.DateTimeField(db_default=DbNow())
    reason = models.CharField(max_length=500, blank=True, default="")
    #: The latest revision that the generator has seen, and which process that was.
    acknowledged_revision = models.PositiveIntegerField(default=0)
    acknowledged_by = models.CharField(max_length=200, blank=True, default="")
    acknowledged_at = models.DateTimeField(null=True, default=None)

    objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name_plural = "generator wishes"
        permissions: ClassVar = [("control_generator", "Can start and stop the generator")]
        constraints: ClassVar = [
            models.CheckConstraint(name="leasing_tasks_generator_single", condition=Q(id=1)),
            models.CheckConstraint(
                name="leasing_tasks_generator_acked",
                condition=Q(acknowledged_revision__lte=F("revision")),
            ),
        ]

    def __str__(self) -> str:
        return "started" if self.wanted else "stopped"


class Sample(models.Model):
    """What went on in one queue in ten seconds: see ``tasks.maintenance.sampling``. The row of no
    queue ("") has what concerns the leases of all."""

    SLOT = 10

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=200)
    #: When its ten seconds begin: seconds since 1970 by the database's clock, a multiple of ten.
    slot = models.BigIntegerField()
    # At the end of the slot, counted up to ``leasing.web.paging.COUNT_CAP``; null where nobody
    # looked.
    ready = models.PositiveIntegerField(null=True, default=None)
    scheduled = models.PositiveIntegerField(null=True, default=None)
    running = models.PositiveIntegerField(null=True, default=None)
    # In the slot.
    enqueued = models.PositiveIntegerField(default=0)
    claimed = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    #: Failed for good, and cancelled.
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    #: Attempts that failed and are followed by another, and attempts whose holder was gone.
    retried = models.PositiveIntegerField(default=0)
    recovered = models.PositiveIntegerField(default=0)
    #: Seconds from being due to being claimed, of what was claimed in the slot; null for nothing.
    wait_p50 = models.FloatField(null=True, default=None)
    wait_p95 = models.FloatField(null=True, default=None)
    # Of leases: those of the queue's tasks; in the row of no queue all others, and every renewal.
    renewals = models.PositiveIntegerField(default=0)
    expirations = models.PositiveIntegerField(default=0)
    releases = models.PositiveIntegerField(default=0)

    objects: ClassVar = RoutedManager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["slot", "queue"], name="leasing_tasks_sample_once"),
        ]

    def __str__(self) -> str:
        return f"{self.queue or 'leases'} at {self.at:%Y-%m-%d %H:%M:%S}"

    @property
    def at(self) -> datetime:
        """When its ten seconds begin."""
        return datetime.fromtimestamp(self.slot, UTC)


class OutboxMessage(models.Model):
    """A message of a user's own, stored by ``tasks.outbox.publish``."""

    id = models.BigAutoField(primary_key=True)
    #: By which a consumer knows it again.
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    topic = models.CharField(max_length=200)
    #: Messages of one key are published in the order of their ids; empty: in any.
    key = models.CharField(max_length=200, blank=True, default="")
    payload = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=DbNow())
    #: When a relay noted that the broker has it.
    published_at = models.DateTimeField(null=True, default=None)
    #: How often it could not be sent though the broker was there; why; and when it is tried next.
    failures = models.IntegerField(default=0)
    last_error = models.TextField(blank=True, default="")
    due_at = models.DateTimeField(null=True, default=None)

    objects: ClassVar = OutboxQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("retry_outboxmessage", "Can let a refused message be tried now"),
            ("discard_outboxmessage", "Can delete a message that is not published"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["id"], name="leasing_tasks_outbox_pending", condition=Q(published_at=None)
            ),
            models.Index(
                fields=["published_at", "id"],
                name="leasing_tasks_outbox_published",
                condition=Q(published_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.uid}"


__all__ = [
    "AttemptOutcome",
    "GeneratorWish",
    "MissedSlots",
    "OutboxMessage",
    "Queue",
    "Sample",
    "Schedule",
    "ScheduleSlot",
    "Task",
    "TaskAttempt",
    "TaskStatus",
    "TaskStep",
    "UniqueFor",
    "Worker",
    "WorkerQuerySet",
    "WorkerRole",
    "WorkerState",
]
