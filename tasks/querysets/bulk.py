"""Many tasks on PostgreSQL, by one statement for thousands of them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from tasks.payload import dumped_many
from tasks.querysets.columns import NewTasks
from tasks.querysets.sql import insert
from tasks.querysets.sql.insert import Limits
from tasks.querysets.stored import StoredTasks

if TYPE_CHECKING:
    from tasks.models import Task

#: Rows that one statement carries, and characters: PostgreSQL holds 256 MB at most.
BATCH_ROWS = 5000
BATCH_TEXT = 2**24

#: The data of some tasks, their text, and what limits each, where that differs.
Batch = tuple[list[dict[str, Any]], str, Limits | None]
#: Values that the database gave them as they were stored: keys, and columns of moments.
Given = tuple[list[int], dict[str, Any]]


def store(
    model: type[Task],
    connection: BaseDatabaseWrapper,
    new: NewTasks,
    items: list[dict[str, Any]],
) -> Sequence[Task]:
    """Store a task for each of ``items``, its data, in their order. All are checked before the
    first is sent."""
    batches = [
        batch
        for start in range(0, len(items), BATCH_ROWS)
        for batch in _batches(new, items[start : start + BATCH_ROWS])
    ]
    common = {**new.columns, **(new.limit({}) if new.limited_alike else {})}
    with transaction.atomic(using=connection.alias) if len(batches) > 1 else nullcontext():
        given = [
            insert.insert_many(model, connection, common, text, limits)
            for _, text, limits in batches
        ]
    return _lazily(model, connection.alias, common, batches, given)


def _batches(new: NewTasks, items: list[dict[str, Any]]) -> Iterator[Batch]:
    items, text = dumped_many(items)
    if len(text) > BATCH_TEXT and len(items) > 1:
        middle = len(items) // 2
        yield from _batches(new, items[:middle])
        yield from _batches(new, items[middle:])
    else:
        yield items, text, None if new.limited_alike else _limits(new, items)


def _limits(new: NewTasks, items: list[dict[str, Any]]) -> Limits:
    each = [new.limit(item) for item in items]
    return Limits(
        [columns.get("concurrency_key", "") for columns in each],
        [columns.get("concurrency_limit") for columns in each],
    )


def _lazily(
    model: type[Task],
    using: str,
    common: dict[str, Any],
    batches: list[Batch],
    given: list[Given],
) -> StoredTasks:
    starts = [0]
    for items, _, _ in batches:
        starts.append(starts[-1] + len(items))

    def make(number: int) -> Task:
        batch = bisect.bisect_right(starts, number) - 1
        at = number - starts[batch]
        (items, _, limits), (keys, moments) = batches[batch], given[batch]
        own = {"id": keys[at], "task_data": items[at]}
        if limits is not None:
            own |= {
                "concurrency_key": limits.keys[at],
                "concurrency_limit": limits.limits[at],
            }
        return insert.instance(model, using, {**common, **own, **moments})

    return StoredTasks(starts.pop(), make)
