"""Why the due tasks of a queue wait: each reason once, with the number of tasks and the oldest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from leasing.diagnosis.base import Diagnosis
from leasing.humanize import Sentence
from leasing.web.counts import Capped
from tasks.diagnosis.surroundings import Surroundings, holders_of_keys, look_around
from tasks.diagnosis.waiting import many, waiting
from tasks.models import Task, TaskStatus
from tasks.querysets.base import CLAIM_ORDER

#: For so long a task may be due before it is explained on the overview and the list of queues.
WAITS: Final = timedelta(seconds=15)
#: Tasks of a queue that are looked at, in the order in which they are claimed.
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


def reasons(queues: Sequence[str], *, fresh: bool = True) -> dict[str, list[Reason]]:
    """Return why tasks wait, by queue, the longest first: of EXPLAINED of ``queues``.

    Args:
        queues: Names of queues.
        fresh: False if the workers and what they hold may be those of another poll.
    """
    around = look_around(fresh=fresh)
    return {name: reasons_in(name, around) for name in queues[:EXPLAINED]}


def reasons_in(queue: str, around: Surroundings) -> list[Reason]:
    """Return why the due tasks of ``queue`` wait, the longest first. One statement reads LOOKED_AT
    of them, and another the tasks that hold their keys."""
    rows: Any = Task.objects.home().filter(queue=queue, status=TaskStatus.READY)
    columns = "name", "concurrency_key", "concurrency_limit", "scheduled_at", "created_at"
    read = list(rows.order_by("kind", *CLAIM_ORDER).values_list(*columns)[: LOOKED_AT + 1])
    firsts: dict[tuple[Any, ...], Task] = {}
    counts = Counter[tuple[Any, ...]]()
    for name, key, limit, due_at, created_at in read:
        if due_at > around.now:
            continue
        group = name, key if around.keys[key] else "", limit
        if group not in firsts:
            terms = {"concurrency_key": key, "concurrency_limit": limit, "created_at": created_at}
            firsts[group] = Task(name=name, queue=queue, scheduled_at=due_at, **terms)
        firsts[group].scheduled_at = min(firsts[group].scheduled_at, due_at)
        counts[group] += 1
    around = replace(around, key_holders=holders_of_keys(firsts.values(), around))
    alike: defaultdict[str, list[tuple[Diagnosis, int, datetime]]] = defaultdict(list)
    for group, first in firsts.items():
        diagnosis = waiting(first, around.now, around)
        alike[diagnosis.headline].append((diagnosis, counts[group], first.scheduled_at))
    found = []
    for each in alike.values():
        diagnosis, since = each[-1][0], min(due_at for *_, due_at in each)
        count = Capped(sum(number for _, number, _ in each), LOOKED_AT, len(read) > LOOKED_AT)
        sentence = many(diagnosis, around.now, count, since)
        found.append(Reason(queue, diagnosis, since, sentence))
    return sorted(found, key=lambda reason: reason.since)
