"""Read from tasks that have ended what a ttl for those of a queue has to be."""

from __future__ import annotations

from leasing.diagnosis.ttl import NEWEST, Heartbeats, History
from tasks.models import AttemptOutcome, Task, TaskAttempt

#: The ends of attempts of which the holder was gone, or told to stop, or that it left to others.
_CUT_SHORT = (AttemptOutcome.LOST, AttemptOutcome.CANCELLED, AttemptOutcome.RETURNED)


def history_of_queue(queue: str) -> History:
    """Return what is recorded about the attempts of ``queue``, among the newest of all queues."""
    tasks = Task.objects.home()
    # By the index of what has ended, whose condition has to be asked for, and whatever the queue:
    # one of which nothing has ended would be looked for in all tasks.
    ended = tasks.succeeded().filter(processed_at__isnull=False).order_by("-processed_at", "-pk")
    rows = ended.values_list(
        "queue", "acquired_at", "renewed_at", "renewals", "ttl", "processed_at"
    )
    mine = [row[1:] for row in rows[:NEWEST] if row[0] == queue]
    attempts = TaskAttempt.objects.using(tasks.db).order_by("-pk")
    others = [
        row[1:]
        for row in attempts.values_list("task__queue", "outcome", "started_at", "ended_at")[:NEWEST]
        if row[0] == queue
    ]
    lengths = [end - begin for begin, _, _, _, end in mine]
    lengths += [end - begin for outcome, begin, end in others if outcome not in _CUT_SHORT]
    return History(
        subject=f"the queue {queue}",
        noun="attempt",
        lengths=[length.total_seconds() for length in lengths],
        lost=sum(outcome == AttemptOutcome.LOST for outcome, _, _ in others),
        heartbeats=[Heartbeats(*row) for row in mine if row[2]],
        renewed="attempt",
        ttl=mine[0][3].total_seconds() if mine else None,
        database=tasks.db,
    )
