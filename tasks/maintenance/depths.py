"""Count the tasks that wait in each queue, for pages and metrics alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q

from leasing.conf import leasing_settings
from leasing.db.compiled_queries import query_rows
from leasing.functions import DbNow
from tasks.maintenance.invariants import unknown_put_off
from tasks.models import Task, TaskStatus
from tasks.querysets.base import GIVEN_BACK


@dataclass(frozen=True)
class Depth:
    """The waiting tasks of a queue, and since when the first of them has been due."""

    ready: int = 0
    scheduled: int = 0
    due_since: datetime | None = None


def count_depths() -> dict[str, Depth]:
    """Return the depth of each queue in which tasks wait. Those that no worker has a handler for
    are due, also while a worker has put them off."""
    read = query_rows((_counted, leasing_settings.DATABASE), _counted)
    depths = {queue: Depth(*figures) for queue, *figures, _ in read}
    if any(given_back for *_, given_back in read):
        for queue, (count, first) in unknown_put_off().items():
            if depth := depths.get(queue):  # or its first task has come since
                since = min(filter(None, (depth.due_since, first)))
                depths[queue] = Depth(depth.ready + count, depth.scheduled - count, since)
    return depths


def _counted() -> Any:
    due = Q(scheduled_at__lte=DbNow())
    waiting = Task.objects.home().filter(status=TaskStatus.READY).order_by()
    return waiting.values_list("queue").annotate(
        ready=Count("pk", filter=due),
        later=Count("pk", filter=~due),
        since=Min("scheduled_at", filter=due),
        given_back=Count("pk", filter=GIVEN_BACK),
    )
