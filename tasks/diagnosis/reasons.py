"""Reasons for which the due tasks of a queue wait, each with the number of tasks and the oldest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, Count, F, Min, Q, Value, When

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import Sentence
from leasing.web.counts import Capped
from tasks.diagnosis.context import DiagnosisContext, holders_of_keys, read_context
from tasks.diagnosis.waiting import many, waiting
from tasks.models import Task, TaskStatus
from tasks.querysets.base import CLAIM_ORDER, GIVEN_BACK, GIVEN_BACK_SINCE

#: The time that a task may be due before the overview and the list of queues explain it.
WAITS: Final = timedelta(seconds=15)
#: Tasks of a queue that are read, in the order in which they are claimed.
LOOKED_AT: Final = 1_000
#: Queues whose tasks are explained.
EXPLAINED: Final = 5


@dataclass(frozen=True)
class Reason:
    """A reason for which tasks of one queue wait."""

    queue: str
    #: The diagnosis of one of them.
    diagnosis: Diagnosis
    #: Since when the first of them has been due.
    since: datetime
    #: The reason in words, with their number and the time.
    sentence: Sentence


def reasons(queues: Sequence[str], now: datetime, *, fresh: bool = True) -> dict[str, list[Reason]]:
    """Return why tasks wait, by queue, the longest first: of EXPLAINED of ``queues``.

    Args:
        queues: Names of queues.
        now: The database's clock.
        fresh: False if the workers and their tasks may be those of another poll.
    """
    context = read_context(now=now, fresh=fresh)
    return {name: reasons_in(name, context) for name in queues[:EXPLAINED]}


def reasons_in(queue: str, context: DiagnosisContext) -> list[Reason]:
    """Return why the due tasks of ``queue`` wait, the longest first. One statement reads LOOKED_AT
    of them, and another the tasks that hold their keys."""
    rows: Any = Task.objects.home().filter(queue=queue, status=TaskStatus.READY)
    first = rows.order_by("kind", *CLAIM_ORDER).values("pk")[: LOOKED_AT + 1]
    held = Task.objects.home().running().exclude(concurrency_key="").values("concurrency_key")
    key = Case(When(concurrency_key__in=held, then="concurrency_key"), default=Value(""))
    due: Q = Q(scheduled_at__lte=context.now)
    due_since: Any = F("scheduled_at")
    if serving := context.serving(queue):
        # Tasks that no worker has a handler for count as due while a worker has put them off.
        put_off = GIVEN_BACK & ~Q(name__in={name for each in serving for name in each.handlers})
        due |= put_off
        due_since = Case(When(put_off, then=GIVEN_BACK_SINCE), default=due_since)
    groups = (
        rows.filter(pk__in=first)
        .values_list("name", key, "concurrency_limit")
        .annotate(
            count=Count("pk"),
            due=Count("pk", filter=due),
            due_since=Min(due_since, filter=due),
            enqueued_at=Min("created_at", filter=due),
        )
        .order_by("due_since", "name")
    )
    looked_at, tasks = 0, list[tuple[Task, int]]()
    for name, key, limit, count, number, due_since, enqueued_at in groups:
        looked_at += count
        if number:
            terms = {"concurrency_key": key, "concurrency_limit": limit, "created_at": enqueued_at}
            tasks.append((Task(name=name, queue=queue, scheduled_at=due_since, **terms), number))
    context = replace(context, key_holders=holders_of_keys((task for task, _ in tasks), context))
    alike: defaultdict[str, list[tuple[Diagnosis, int, datetime]]] = defaultdict(list)
    for task, number in tasks:
        diagnosis = waiting(task, context.now, context)
        alike[diagnosis.headline].append((diagnosis, number, task.scheduled_at))
    reasons = []
    for (diagnosis, number, since), *others in alike.values():
        number += sum(more for _, more, _ in others)
        count = Capped(number, LOOKED_AT, looked_at > LOOKED_AT)
        sentence = many(diagnosis, context.now, count, since)
        reasons.append(Reason(queue, diagnosis, since, sentence))
    return reasons
