"""All routes of tasks, a module for each noun."""

from __future__ import annotations

from ninja import Router

from tasks.api import (
    batches,
    generator,
    holders,
    lists,
    operators,
    queues,
    schedules,
    workers,
)

router = Router()

# The first whose address fits is asked: /tasks/next comes before /tasks/{task_id}.
for each in (batches, holders, lists, operators, queues, schedules, workers, generator):
    router.add_router("", each.router)
