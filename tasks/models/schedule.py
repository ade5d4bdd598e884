"""Schedules, and the moments of each that were served."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from leasing.functions import DbNow
from leasing.humanize import stamp
from leasing.validation.names import check_name
from tasks import registry
from tasks.bounds import PRIORITIES, check_between
from tasks.exceptions import TaskError
from tasks.models.task import Task
from tasks.payload import check_data
from tasks.querysets import ScheduleQuerySet, SlotQuerySet
from tasks.querysets.producer import new_task
from tasks.scheduling.declarations import LONGEST_NAME
from tasks.scheduling.rules import Cron, MissedSlots, Rule, rule_of


class Schedule(models.Model):
    """A task that is enqueued at moments: by a cron expression, or every so often."""

    #: Declared in code, and not by any that ran for so long: it looks abandoned.
    ORPHANED_AFTER = timedelta(days=1)
    #: The delay after which the next moment looks as if nobody served it.
    OVERDUE_AFTER = timedelta(minutes=1)
    #: The column that names a row in the audit, whose key says nothing to people.
    audit_name = "name"

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=LONGEST_NAME, unique=True)
    #: The name of the task that is enqueued.
    task_name = models.CharField(max_length=200)
    task_data = models.JSONField(default=dict, blank=True)
    queue = models.CharField(max_length=200, blank=True, default="")
    priority = models.SmallIntegerField(default=0)
    #: The rule: one of the two.
    cron = models.CharField(max_length=200, blank=True, default="")
    every = models.DurationField(null=True, default=None, blank=True)
    #: In which time zone the cron expression is meant.
    timezone = models.CharField(max_length=64, default="UTC")
    missed = models.CharField(max_length=6, choices=MissedSlots, default=MissedSlots.LATEST.value)
    #: True if it enqueues while its previous task has not ended.
    overlap = models.BooleanField(default=True)
    #: True if code declares it; the admin may pause, but not change, what code declares.
    declared = models.BooleanField(default=False, editable=False)
    #: The moment at which a scheduler whose code declares it last recorded that.
    declared_at = models.DateTimeField(null=True, default=None, editable=False)
    paused_at = models.DateTimeField(null=True, default=None, editable=False)
    paused_by = models.CharField(max_length=200, blank=True, default="", editable=False)
    #: The reason of the pause.
    reason = models.CharField(max_length=500, blank=True, default="", editable=False)
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
                violation_error_message="Give either a cron expression or an interval.",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["next_at"], name="leasing_tasks_schedule_due")]

    def __str__(self) -> str:
        return self.name

    @property
    def rule(self) -> Rule:
        """The rule. Raises InvalidSchedule if the row was written around code and forms."""
        return rule_of(self.cron, self.every, self.timezone)

    @property
    def unique_key(self) -> str | None:
        """The unique key of its tasks; None if they may overlap."""
        return None if self.overlap else f"schedule:{self.name}"

    def clean(self) -> None:
        """Raise ValidationError, by field, for a schedule whose task could never be enqueued."""
        errors: dict[str, str] = {}

        def check(field: str, call: Callable[..., object], *args: Any) -> None:
            try:
                call(*args)
            except (TaskError, ValueError) as error:
                errors[field] = str(error)

        check("name", check_name, self.name, "name")
        check("task_name", registry.find, self.task_name)
        check("task_data", check_data, self.task_data)
        check("priority", check_between, self.priority, *PRIORITIES, "priority")
        if self.queue:
            check("queue", registry.check_queue, self.queue)
        if not errors:  # such as the key of a limit, which is made of the data
            check("task_data", new_task, Task.objects.all(), self.task_name, self.task_data)
        check(self._field_of_rule(), lambda: self.rule)
        if errors:
            raise ValidationError(errors)

    def _field_of_rule(self) -> str:
        """Return the name of the field that an error of the rule belongs to."""
        if self.every is not None and not self.cron:
            return "every"
        try:
            Cron("0 0 * * *", self.timezone)
        except TaskError:
            return "timezone" if self.cron else "cron"
        return "cron"


class ScheduleSlot(models.Model):
    """A due moment of a schedule, which the first scheduler that found it has handled."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="slot_set")
    at = models.DateTimeField()
    #: The enqueued task; null if it was pruned since, or if none was enqueued.
    task = models.ForeignKey(
        Task, on_delete=models.SET_NULL, null=True, default=None, related_name="+"
    )
    #: True if nothing was enqueued, because the previous task had not ended.
    skipped = models.BooleanField(default=False)
    #: The operator who ran it by hand; empty: it was due by its rule.
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
        return f"schedule {self.schedule_id} at {stamp(self.at)}"
