"""Give back the tasks of a worker that no handler was called for; on PostgreSQL many in one
statement."""

from __future__ import annotations

from collections.abc import Sequence

from leasing.db import sql
from tasks import registry
from tasks.notifier import notify
from tasks.querysets import ends
from tasks.querysets.base import TaskRows
from tasks.querysets.claimed import ClaimedTask
from tasks.querysets.completions import Refused
from tasks.querysets.sql import give_back as one_statement


def give_back_claimed(rows: TaskRows, claimed: Sequence[ClaimedTask], reason: str) -> Refused:
    """Set each task ready again with its attempt uncounted. Returns the refused ones, each with its
    error."""
    given: list[ClaimedTask] = []
    if sql.serves(rows.db):
        # Of two attempts of one task the latter alone: the keys that come back don't say which.
        alike = {each.id: each for each in claimed if _has_its_kind(each)}
        keys = one_statement.give_back(rows, [*alike.values()]) if alike else set()
        given = [each for key, each in alike.items() if key in keys]
        notify(rows.db, given)
        if given:
            rows._tell("task.returned", given, reason=reason)
    done = set(map(id, given))
    left = {id(each.task): each for each in claimed if id(each) not in done}
    tasks = [each.task for each in left.values()]
    _, refused = ends.give_back(rows, tasks, reason, begun=False)
    return [(left[id(task)], error) for task, error in refused]


def _has_its_kind(each: ClaimedTask) -> bool:
    """Return True unless the row has another kind than the handler here, and is to have that."""
    handler = registry.get(each.name)
    return handler is None or handler.kind.number == each.kind
