"""A claimed task as a worker carries it: the columns that running it needs, and no more.

A model instance of a task costs more than running a short one. It is made when somebody asks
for it, and reads the columns that the claim did not bring when they are looked at.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps

if TYPE_CHECKING:
    from tasks.models import Task

#: The columns that a claim brings, in their order.
COLUMNS = (
    "id",
    "name",
    "queue",
    "task_data",
    "priority",
    "attempts",
    "max_attempts",
    "timeout",
    "progress_timeout",
    "concurrency_key",
    "holder",
    "grant_id",
    "fencing_token",
    "grants",
    "ttl",
    "acquired_at",
    "expires_at",
)


def resource_of(key: int) -> str:
    """What the API and the pages say is leased with the task of this ``key``."""
    return f"/api/tasks/{key}"


class Taken:
    """A task under a fresh grant."""

    __slots__ = (
        *COLUMNS,
        "_task",
        "now",
        "sent_at",
        "using",
    )

    if TYPE_CHECKING:
        id: int
        name: str
        queue: str
        task_data: dict[str, Any]
        priority: int
        attempts: int
        max_attempts: int
        timeout: timedelta | None
        progress_timeout: timedelta | None
        concurrency_key: str
        holder: str
        grant_id: uuid.UUID
        fencing_token: int
        grants: int
        ttl: timedelta
        acquired_at: datetime
        expires_at: datetime
        #: The database's clock when it answered ...
        now: datetime
        #: ... a request that was sent at this moment on the holder's clock.
        sent_at: float
        using: str
        _task: Task | None

    @property
    def task(self) -> Task:
        """The model instance of this term."""
        if self._task is None:
            model: type[Task] = apps.get_model("tasks", "Task")
            task = model.from_db(self.using, COLUMNS, [getattr(self, name) for name in COLUMNS])
            task.now, task.sent_at = self.now, self.sent_at
            self._task = task
        return self._task

    @classmethod
    def of(cls, task: Task) -> Self:
        """``task``, which was just claimed."""
        taken = cls()
        for name in COLUMNS:
            setattr(taken, name, getattr(task, name))
        taken.now, taken.sent_at = task.now, task.sent_at
        taken.using = task._state.db or "default"
        taken._task = task
        return taken
