"""Django's admin of tasks: one module for each part."""

from __future__ import annotations

from tasks.admin.attempts import TaskAttemptAdmin, TaskStepAdmin
from tasks.admin.outbox import OutboxMessageAdmin
from tasks.admin.processes import GeneratorDesiredStateAdmin, QueueAdmin, SampleAdmin, WorkerAdmin
from tasks.admin.schedules import ScheduleAdmin, ScheduleSlotAdmin
from tasks.admin.tasks import TaskAdmin

__all__ = [
    "GeneratorDesiredStateAdmin",
    "OutboxMessageAdmin",
    "QueueAdmin",
    "SampleAdmin",
    "ScheduleAdmin",
    "ScheduleSlotAdmin",
    "TaskAdmin",
    "TaskAttemptAdmin",
    "TaskStepAdmin",
    "WorkerAdmin",
]
