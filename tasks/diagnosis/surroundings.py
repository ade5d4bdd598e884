"""Read what a diagnosis needs in addition to the tasks: workers, queues, recent losses."""

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

#: The greatest number of workers that are read.
MAX_WORKERS: Final = 1000
#: The greatest number of pairs of a holder and a concurrency key that are read.
MAX_GROUPS: Final = 10_000
#: The greatest number of attempts that are read.
MAX_ATTEMPTS_READ: Final = 1_000
#: Outcomes of attempts whose worker ended, rather than their handler.
_LOST: Final = (AttemptOutcome.LOST, AttemptOutcome.RETURNED)


@dataclass(frozen=True)
class Surroundings:
    """The workers that were seen recently, and what they hold: read once for many tasks."""

    now: datetime
    workers: dict[str, Worker]
    running: dict[str, int]
    paused: dict[str, Queue] = field(default_factory=dict)
    #: The number of running tasks of each concurrency key, by holder.
    by_key: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The holders that recently lost a task, by its id, if there were several.
    losses: dict[int, list[str]] = field(default_factory=dict)

    @property
    def someone_sweeps(self) -> bool:
        return any(worker.sweeps for worker in self.workers.values())

    def serving(self, queue: str) -> list[Worker]:
        return [worker for worker in self.workers.values() if queue in worker.queues]

    @property
    def relays(self) -> list[Worker]:
        """Return the live relays, including standbys."""
        return [
            w for w in self.workers.values() if w.role == WorkerRole.RELAY and self.is_live(w.name)
        ]

    def free_threads(self, workers: list[Worker]) -> int:
        return sum(max(0, w.concurrency - self.running.get(w.name, 0)) for w in workers)

    def is_live(self, name: str) -> bool:
        worker = self.workers.get(name)
        return worker is not None and getattr(worker, "state", "") == WorkerState.LIVE


def look_around(tasks: Iterable[Task] = (), *, fresh: bool = True) -> Surroundings:
    """Read what ``diagnose`` needs in addition to ``tasks``: four queries, and a fifth if some of
    them were claimed often. A task that is not among them is never diagnosed as flapping. Unless
    ``fresh``, the answer may be up to SHARED_FOR old."""
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
    """Return the holders that recently lost each of ``tasks``, the latest first, for tasks that
    have not ended and were lost at least FLAPS times."""
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
