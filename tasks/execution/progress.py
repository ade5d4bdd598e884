"""Write a handler's progress to the row.

A handler may report as often as it likes: reports are written at most once in ``EVERY`` seconds.
One that came too soon waits, and is written with the next report, checkpoint or step, or when the
handler ends. Inside a transaction nothing is written either: nobody would see it, and the row,
locked until the commit, could not be renewed.
"""

from __future__ import annotations

from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from django.db import Error

from leasing.db.dialects import in_transaction
from leasing.db.routing import database_of
from leasing.exceptions import LeaseLost
from leasing.runtime.clock import clock
from tasks.log import log
from tasks.payload import check_json
from tasks.querysets.claimed import ClaimedTask, instance_of

if TYPE_CHECKING:
    from tasks.models import Task

#: Seconds between writes.
EVERY = 1.0


class Progress:
    """The progress that one attempt of ``task`` reports."""

    def __init__(self, task: Task | ClaimedTask) -> None:
        self._given = task
        self._using = database_of(instance_of(task))
        self._every = EVERY
        if task.progress_timeout is not None:
            # A report that waits here must not look like a stalled handler.
            self._every = min(EVERY, task.progress_timeout.total_seconds() / 3)
        self._written_at = float("-inf")
        self._waiting: Any = None
        #: True if progress was reported that is not written.
        self.waits = False

    def say(self, value: Any, *, is_last: bool = False) -> None:
        """Write ``value`` now, or soon. None is a sign of life. Raises LeaseLost,
        NotSerializable."""
        check_json(value, "progress")
        if value is not None:
            self._waiting = value
        self.waits = True
        due = is_last or clock() - self._written_at >= self._every
        if due and not in_transaction(self._using):
            self._write()

    def take(self) -> Any:
        """Return the pending progress, for a statement that writes it along with something else."""
        value, self._waiting, self.waits = self._waiting, None, False
        self._written_at = clock()
        return value

    def flush(self) -> None:
        """Write the report that waits, if there is one, before the result is stored. A failure is
        logged only: the result that follows matters more."""
        if not self.waits:
            return
        try:
            self._write()
        except (LeaseLost, Error) as error:
            # A loss has been logged already.
            level = INFO if isinstance(error, LeaseLost) else WARNING
            log.task_progress_dropped(instance_of(self._given), level=level, error=error)

    def _write(self) -> None:
        task = instance_of(self._given)
        type(task).objects.using(self._using).progress(task, self.take())
