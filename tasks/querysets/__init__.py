"""Every conditional update on tasks.

What each verb requires of the row, in addition to its key:

    claim           ready, due, its queue not paused, a slot of its key free
    heartbeat       this grant, running, the deadline not passed
    complete, fail  this grant, running (with ``unexpired`` also the deadline not passed)
    give_back       this grant, running; snooze too
    progress        this grant, running; checkpoint and finish_step too
    recover         running, the deadline passed, the grant that was read
    take_from_dead  running, the grant that was read; of a holder whose parent saw it die
    recover_stalled running, no progress for as long as it may be, the grant that was read
    revoke          running, the grant that was read
    cancel          ready: it ends; running: its holder is asked to stop
    accept_cancel   this grant, running
    retry           failed or cancelled, its unique key not another task's
    reschedule      ready
    discard         ended
    prune           ended, long enough ago, without a unique key that is still kept
    mark_published  ready, due, without a message under way or with one that is late
    unpublish       ready
    enqueue         replaces a ready task that has its unique key; takes the key from a task that
                    has it beyond its window

Each public verb is a method of the class in the module named after its caller, which the queryset
inherits: ``producer``, ``worker`` (with ``ends`` for the ends of attempts), ``operator``,
``recovery``, ``relay``. A verb for one task calls the verb for many. What PostgreSQL does in one
statement is written by hand in ``sql``.

The verbs of holders, except heartbeat, need no clock: while the row is running and has the grant,
nobody else has had the task. Rows are locked first and then updated (see
``leasing.querysets``).
"""

from __future__ import annotations

from tasks.querysets.base import TaskStatus
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
]
