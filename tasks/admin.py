"""What Django's admin shows of tasks: one module for each part."""

from __future__ import annotations

from tasks.attempt_admin import TaskAttemptAdmin, TaskStepAdmin
from tasks.outbox_admin import OutboxMessageAdmin
from tasks.process_admin import GeneratorWishAdmin, QueueAdmin, SampleAdmin, WorkerAdmin
from tasks.schedule_admin import ScheduleAdmin, ScheduleSlotAdmin
from tasks.task_admin import TaskAdmin

__all__ = [
    "GeneratorWishAdmin",
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
