"""Workers, and what each of them does now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tasks.models import Task, Worker

#: More running tasks than this are not looked up for one page of workers.
SHOWN = 1_000


@dataclass(frozen=True)
class Member:
    """A worker with the tasks that it holds."""

    worker: Worker
    tasks: list[Task]


def with_tasks(workers: Iterable[Worker]) -> list[Member]:
    """Each of ``workers`` with its running tasks, found by one query."""
    workers = list(workers)
    names = [worker.name for worker in workers]
    held: defaultdict[str, list[Task]] = defaultdict(list)
    running = Task.objects.home().running().filter(holder__in=names)
    for task in running.only("name", "status", "holder", "expires_at", "ttl").order_by("pk")[
        :SHOWN
    ]:
        held[task.holder].append(task)
    return [Member(worker, held[worker.name]) for worker in workers]
