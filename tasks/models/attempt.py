"""The ledger of attempts that did not succeed, and the steps that attempts have finished."""

from __future__ import annotations

from typing import ClassVar, Final

from django.db import models
from django.db.models import Q

from leasing.db.routing import RoutedManager
from leasing.functions import DbNow
from leasing.models import Ledger
from leasing.models.ledger import LedgerQuerySet
from tasks.models.task import Task


class AttemptOutcome(models.TextChoices):
    """The end of an attempt that did not succeed."""

    FAILED = "failed"
    LOST = "lost"
    RETURNED = "returned", "Given back"
    SNOOZED = "snoozed", "Postponed"
    CANCELLED = "cancelled"


class AttemptQuerySet(LedgerQuerySet["TaskAttempt"]):
    """Attempts that did not succeed: ``TaskAttempt.objects``."""


#: The writes of a holder by each verb, for operators.
_REPORTS: Final = {
    "complete": "result",
    "fail": "failure report",
    "snooze": "postponement",
    "progress": "progress report",
    "step": "result of a step",
}


class TaskAttempt(Ledger):
    """An attempt that did not succeed. The successful one is in the task's own row."""

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
    #: The path of the class of the error, and its traceback.
    exception = models.TextField(blank=True, default="")
    traceback = models.TextField(blank=True, default="")
    #: The moment at which a late write of this attempt was refused, and its verb.
    refused_at = models.DateTimeField(null=True, default=None)
    refused_verb = models.CharField(max_length=20, blank=True, default="")

    objects: ClassVar = AttemptQuerySet.as_manager()
    #: For Django itself, and for code that has to change rows of the ledger.
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
        # For the list of what was recovered: few of many attempts.
        indexes: ClassVar = [
            models.Index(
                fields=["id"],
                name="leasing_tasks_attempt_lost",
                condition=Q(outcome=AttemptOutcome.LOST),
            ),
        ]

    @property
    def refused_report(self) -> str:
        """Return the name of the late write that was refused: "failure report"."""
        return str(_REPORTS.get(self.refused_verb, self.refused_verb))

    def __str__(self) -> str:
        return f"attempt {self.number} of task:{self.task_id}"

    @classmethod
    def of(
        cls,
        task: Task,
        outcome: str,
        error: str = "",
        traceback: str = "",
        exception: str = "",
    ) -> TaskAttempt:
        """Return an unsaved record of an attempt.

        Args:
            task: The task, with the grant of the attempt.
            outcome: One of AttemptOutcome.
            error: The error, or the reason, in a line.
            traceback: The traceback of the error.
            exception: The type of the error, by its dotted path.
        """
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
        return f"{self.name} of task:{self.task_id}"
