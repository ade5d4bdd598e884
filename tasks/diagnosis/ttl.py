"""Read the history of a queue's ended tasks, from which a ttl for them is derived."""

from __future__ import annotations

from leasing.diagnosis.ttl import NEWEST, Heartbeats, History
from tasks.models import AttemptOutcome, Task, TaskAttempt

#: The outcomes of attempts whose holder was gone, was asked to stop, or left them to others.
_CUT_SHORT = (AttemptOutcome.LOST, AttemptOutcome.CANCELLED, AttemptOutcome.RETURNED)


def history_of_queue(queue: str) -> History:
    """Return the history of the attempts of ``queue``, as far as they are of the newest of all
    queues."""
    tasks = Task.objects.home()
    # Served by the index of ended tasks, whose condition the query must have. The queue is no
    # condition: for one without ended tasks all tasks would be searched.
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
