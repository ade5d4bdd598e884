"""Every conditional update on tasks.

What each verb demands of the row, beside its key:

    claim           ready, its time has come, its queue not paused, a slot of its key free
    heartbeat       this grant, running, the deadline ahead
    complete, fail  this grant, running (and the deadline ahead, where the caller asks)
    give_back       this grant, running; snooze too
    progress        this grant, running; checkpoint and finish_step too
    recover         running, the deadline passed, the grant that was read
    recover_stalled running, no progress for as long as it may be, the grant that was read
    revoke          running, the grant that was read
    retry           failed or cancelled, its unique key no other's
    reschedule      ready
    discard         ended
    prune           ended, long enough ago, without a unique key that is still kept
    mark_published  ready, due, without a message under way or with one that is late
    unpublish       ready
    enqueue         replaces what has its unique key and is ready; takes the key from what has
                    it beyond its window

Each public verb is documented on ``TaskQuerySet`` in ``task``, and done in the module of who calls
it: ``producer``, ``worker`` (with ``ends`` for how attempts end), ``operator``, ``recovery``,
``relay``. A verb for one task is the verb for many, given one.

Holder verbs but heartbeat need no clock: while the grant is the row's and the row is running,
nobody else has had the task. Rows are locked first and updated second (see
``leasing.querysets.leasable``).
"""

from __future__ import annotations

from tasks.querysets.base import TaskStatus, check_between, check_queue
from tasks.querysets.operator import BULK_BATCH
from tasks.querysets.queues import QueueQuerySet
from tasks.querysets.recovery import SWEEP_BATCH
from tasks.querysets.schedule import ScheduleQuerySet, SlotQuerySet
from tasks.querysets.task import TaskQuerySet
from tasks.querysets.unique import OnDuplicate, UniqueFor

__all__ = [
    "BULK_BATCH",
    "SWEEP_BATCH",
    "OnDuplicate",
    "QueueQuerySet",
    "ScheduleQuerySet",
    "SlotQuerySet",
    "TaskQuerySet",
    "TaskStatus",
    "UniqueFor",
    "check_between",
    "check_queue",
]
