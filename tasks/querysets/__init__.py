"""Every conditional update on tasks.

What each verb demands of the row, beside its key:

    claim           ready, and its time has come
    heartbeat       this grant, running, the deadline ahead
    complete, fail  this grant, running (and the deadline ahead, where the caller asks)
    give_back       this grant, running
    recover         running, the deadline passed, the grant that was read
    revoke          running, the grant that was read
    retry           failed or cancelled

Complete and fail need no clock: while the grant is the row's and the row is running, nobody
else has had the task. Rows are locked first and updated second (see ``leasing.querysets``).
"""

from __future__ import annotations

from tasks.querysets.base import TaskStatus, UniqueFor, check_between, check_queue
from tasks.querysets.claim import Claiming
from tasks.querysets.enqueue import Enqueuing
from tasks.querysets.holder import Holding
from tasks.querysets.operator import SWEEP_BATCH
from tasks.querysets.schedule import ScheduleQuerySet, SlotQuerySet


class TaskQuerySet(Enqueuing, Claiming, Holding):  # type: ignore[override]
    """Tasks: ``Task.objects``."""


__all__ = [
    "SWEEP_BATCH",
    "ScheduleQuerySet",
    "SlotQuerySet",
    "TaskQuerySet",
    "TaskStatus",
    "UniqueFor",
    "check_between",
    "check_queue",
]
