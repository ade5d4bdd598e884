"""Read what is needed besides the tasks that are explained."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from django.db.models import Count

from leasing.conf import leasing_settings
from leasing.diagnosis.base import FLAPPING_WITHIN, FLAPS
from leasing.functions import EPOCH, after, database_now
from leasing.web.cache import shared
from tasks.models import AttemptOutcome, Queue, Task, TaskAttempt, Worker, WorkerRole, WorkerState
from tasks.querysets import TaskStatus

#: Workers that are looked at, at most.
MAX_WORKERS: Final = 1000
#: Pairs of a holder and a concurrency key that are looked at, at most.
MAX_GROUPS: Final = 10_000
#: Attempts that are looked at, at most.
MAX_ATTEMPTS_READ: Final = 1_000
#: An attempt that ended like this was the worker's end, not the task's.
_LOST: Final = (AttemptOutcome.LOST, AttemptOutcome.RETURNED)


@dataclass(frozen=True)
class Surroundings:
    """The workers that were seen lately, and what they hold: read once for many tasks."""

    now: datetime
    workers: dict[str, Worker]
    running: dict[str, int]
    paused: dict[str, Queue] = field(default_factory=dict)
    #: The number of running tasks of each concurrency key, by holder.
    by_key: dict[str, dict[str, int]] = field(default_factory=dict)
    #: From whom each of the tasks that were asked about was lost lately, if that was often.
    losses: dict[int, list[str]] = field(default_factory=dict)

    @property
    def someone_sweeps(self) -> bool:
        return any(worker.sweeps for worker in self.workers.values())

    def serving(self, queue: str) -> list[Worker]:
        return [worker for worker in self.workers.values() if queue in worker.queues]

    @property
    def relays(self) -> list[Worker]:
        """Return the processes that publish to a broker, or stand by to, and send heartbeats."""
        return [
            w for w in self.workers.values() if w.role == WorkerRole.RELAY and self.is_live(w.name)
        ]

    def free_threads(self, workers: list[Worker]) -> int:
        return sum(max(0, w.concurrency - self.running.get(w.name, 0)) for w in workers)

    def is_live(self, name: str) -> bool:
        worker = self.workers.get(name)
        return worker is not None and getattr(worker, "state", "") == WorkerState.LIVE


def look_around(tasks: Iterable[Task] = (), *, fresh: bool = True) -> Surroundings:
    """Read what ``diagnose`` needs to know beside ``tasks``: four queries, and a fifth when some
    of them were granted often. Of tasks that are not among them nobody can say whether they go
    from worker to worker. Unless ``fresh``, it may be as it was SHARED_FOR ago."""
    using = leasing_settings.DATABASE
    around = shared("surroundings", _everyone, fresh=fresh)
    return replace(around, now=database_now(using), losses=_losses(tasks, using))


def _everyone() -> Surroundings:
    using = leasing_settings.DATABASE
    present = Worker.objects.using(using).present().with_state().order_by("id")[:MAX_WORKERS]
    held = Task.objects.using(using).running().values("holder", "concurrency_key")
    running: Counter[str] = Counter()
    by_key: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for row in held.annotate(tasks=Count("id"))[:MAX_GROUPS]:
        running[row["holder"]] += row["tasks"]
        by_key[row["concurrency_key"]][row["holder"]] = row["tasks"]
    return Surroundings(
        now=EPOCH,
        workers={worker.name: worker for worker in present},
        running=running,
        paused={queue.name: queue for queue in Queue.objects.using(using).paused()},
        by_key=dict(by_key),
    )


def _losses(tasks: Iterable[Task], using: str) -> dict[int, list[str]]:
    """The holders from whom those of ``tasks`` that have not ended were lost lately, the latest
    first, where that was often."""
    often = [
        task.pk for task in tasks if task.grants >= FLAPS and task.status not in TaskStatus.ended()
    ]
    if not often:
        return {}
    lately = TaskAttempt.objects.using(using).filter(
        task__in=often, outcome__in=_LOST, ended_at__gt=after(-FLAPPING_WITHIN)
    )
    found: defaultdict[int, list[str]] = defaultdict(list)
    for key, holder in lately.order_by("-pk").values_list("task", "holder")[:MAX_ATTEMPTS_READ]:
        found[key].append(holder)
    return {key: holders for key, holders in found.items() if len(holders) >= FLAPS}
