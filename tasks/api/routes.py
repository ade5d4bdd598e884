"""All routes of tasks, a module for each noun."""

from __future__ import annotations

from ninja import Router

from leasing.api.bodies import as_json
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
router.add_decorator(as_json)

# The first router with a matching address answers: /tasks/next comes before /tasks/{task_id}.
for each in (batches, holders, lists, operators, queues, schedules, workers, generator):
    router.add_router("", each.router)
