"""Models of the queue, a file for each noun."""

from __future__ import annotations

from tasks.models.attempt import AttemptOutcome, AttemptQuerySet, TaskAttempt, TaskStep
from tasks.models.claim_key import ClaimKey
from tasks.models.generator import GeneratorDesiredState
from tasks.models.outbox import OutboxMessage
from tasks.models.queue import Queue
from tasks.models.sample import Sample
from tasks.models.schedule import Schedule, ScheduleSlot
from tasks.models.task import Task
from tasks.models.worker import Worker, WorkerQuerySet, WorkerRole, WorkerState
from tasks.querysets import TaskStatus, UniqueFor
from tasks.scheduling.rules import MissedSlots

__all__ = [
    "AttemptOutcome",
    "AttemptQuerySet",
    "ClaimKey",
    "GeneratorDesiredState",
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
